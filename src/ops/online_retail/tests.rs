//! One test for each rule of the mapping, then the real data.

use super::fields::parse_date;
use super::*;
use crate::domain::event::{Adjustment, InventoryEvent, StockAdjust};
use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

const HEADER: &str =
    "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country";

fn import(input: impl Read, opening: Opening) -> (Vec<Invoice>, Report) {
    let mut import = Import::new(input, Options { opening }).unwrap();
    let invoices = import.by_ref().map(Result::unwrap).collect();
    let report = import.into_report();
    let mapped = report.goods_lines + report.charges;
    assert_eq!(mapped + count(&report.skipped), report.lines);
    (invoices, report)
}

fn count<T>(items: &[T]) -> u64 {
    u64::try_from(items.len()).unwrap()
}

/// Reads rows `invoice code quantity price customer` of one moment.
fn read(rows: &[&str]) -> (Vec<Invoice>, Report) {
    read_with(rows, Opening::Untouched)
}

fn read_with(rows: &[&str], opening: Opening) -> (Vec<Invoice>, Report) {
    let mut text = HEADER.to_owned();
    for row in rows {
        let fields: Vec<&str> = row.split(' ').collect();
        let [invoice, code, quantity, price, customer] = fields[..] else {
            panic!("{row:?}")
        };
        let row =
            format!("\n{invoice},{code},x,{quantity},2010-12-01 08:26:00,{price},{customer},");
        text.push_str(&row);
    }
    import(text.as_bytes(), opening)
}

/// Message id and JSON of each event.
fn shown(invoices: &[Invoice]) -> Vec<String> {
    let entries = invoices.iter().flat_map(|invoice| &invoice.entries);
    let show = |entry: &Entry| {
        let json = serde_json::to_string(&entry.event).unwrap();
        format!("{} {}", entry.message_id, json.replace('"', ""))
    };
    entries.map(show).collect()
}

fn ids(invoices: &[Invoice]) -> Vec<&str> {
    let entries = invoices.iter().flat_map(|invoice| &invoice.entries);
    entries.map(|entry| entry.message_id.as_str()).collect()
}

/// `line reason` of each skipped line.
fn skipped(report: &Report) -> Vec<String> {
    let skipped = report.skipped.iter();
    skipped
        .map(|skipped| format!("{} {}", skipped.line, skipped.reason))
        .collect()
}

fn data(name: &str) -> BufReader<File> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    BufReader::new(File::open(path.join(name)).unwrap())
}

#[test]
fn an_order_is_created_paid_shipped_and_completed() {
    let (invoices, report) = read(&[
        "536365 85123A 6 2.55 17850.0",
        "536365 71053 2 3.39 17850.0",
        "536365 POST 1 18.0 17850.0",
    ]);
    assert_eq!(
        shown(&invoices),
        [
            "536365/order.create {order_id:536365,user_id:17850,currency:GBP,total_minor:4008,lines:[\
             {sku_id:85123A,qty:6,unit_price_minor:255,amount_minor:1530},\
             {sku_id:71053,qty:2,unit_price_minor:339,amount_minor:678},\
             {sku_id:POST,qty:1,unit_price_minor:1800,amount_minor:1800,charge:true}]}",
            "536365/payment.succeeded {order_id:536365,provider:card,trade_no:card-536365,\
             amount_minor:4008,currency:GBP}",
            "536365/order.ship {order_id:536365}",
            "536365/order.complete {order_id:536365}",
        ]
    );
    assert_eq!(invoices[0].number, "536365");
    assert_eq!(invoices[0].line, 2);
    assert_eq!(invoices[0].at.to_string(), "2010-12-01T08:26:00Z");
    assert_eq!(
        (report.orders, report.goods_lines, report.charges),
        (1, 2, 1)
    );
    assert_eq!(report.ordered_minor, 4008);
}

#[test]
fn an_order_of_total_zero_is_not_paid() {
    let (invoices, report) = read(&["1 85123A 6 0.0 17850"]);
    assert_eq!(
        ids(&invoices),
        ["1/order.create", "1/order.ship", "1/order.complete"]
    );
    assert_eq!(report.messages.get("payment.succeeded"), None);
}

#[test]
fn a_missing_customer_becomes_a_guest() {
    let (invoices, report) = read(&["1 10002 1 1.0 ", "C2 10002 -1 1.0 ", "3 10002 -1 0.0 "]);
    let shown = shown(&invoices);
    assert!(shown[0].contains("user_id:guest:1,"), "{shown:?}");
    assert!(shown[4].contains("user_id:guest:C2,"), "{shown:?}");
    assert_eq!(report.guests, 2);
}

#[test]
fn duplicate_lines_and_lines_of_one_sku_stay_lines() {
    let (invoices, report) = read(&["1 10002 1 1.0 7", "1 10002 1 1.0 7", "1 10002 2 1.0 7"]);
    let Event::Order(OrderEvent::Create(order)) = &invoices[0].entries[0].event else {
        panic!("{invoices:?}")
    };
    assert_eq!(order.total_minor, 400);
    assert_eq!(order.lines.len(), 3);
    assert_eq!((report.goods_lines, report.skus), (3, 1));
}

#[test]
fn skus_that_differ_in_case_are_two() {
    let (invoices, report) = read_with(&["1 85123A 1 1.0 7", "1 85123a 1 1.0 7"], Opening::Each(5));
    assert_eq!(ids(&invoices)[..2], ["opening/85123A", "opening/85123a"]);
    assert_eq!(report.skus, 2);
}

#[test]
fn a_cancellation_credits_the_customer_and_returns_the_goods() {
    let (invoices, report) = read(&[
        "C536383 35004C -1 4.65 15311.0",
        "C536383 22556 -12 1.65 15311.0",
        "C536383 35004C -2 4.65 15311.0",
        "C536383 D -1 27.5 15311.0",
    ]);
    assert_eq!(
        shown(&invoices),
        [
            "C536383/account.credit {user_id:15311,kind:BALANCE,source_type:CREDIT_NOTE,\
             source_id:C536383,amount:6125}",
            "C536383/stock.adjust/35004C {adjustment_id:credit-note/C536383/35004C,sku_id:35004C,\
             change:3,reason:credit-note C536383}",
            "C536383/stock.adjust/22556 {adjustment_id:credit-note/C536383/22556,sku_id:22556,\
             change:12,reason:credit-note C536383}",
        ]
    );
    assert_eq!((report.credit_notes, report.guests), (1, 0));
    assert_eq!((report.goods_lines, report.charges), (3, 1));
    assert_eq!(report.credited_minor, 6125);
}

#[test]
fn a_cancellation_without_money_returns_goods_only() {
    let (invoices, report) = read(&["C1 10002 -3 0.0 7", "C2 D -1 0.0 7"]);
    assert_eq!(ids(&invoices), ["C1/stock.adjust/10002"]);
    assert_eq!(
        skipped(&report),
        ["3 the cancellation refunds nothing and returns no goods"]
    );
}

#[test]
fn goods_of_negative_quantity_are_written_off() {
    let (invoices, report) = read(&[
        "536589 21777 -10 0.0 ",
        "2 21777 -1 0.0 7",
        "2 10002 4 0.5 7",
        "2 21777 -2 0.5 7",
    ]);
    let shown = shown(&invoices);
    assert_eq!(
        shown[0],
        "536589/stock.adjust/21777 {adjustment_id:write-off/536589/21777,sku_id:21777,change:-10,\
         reason:write-off 536589}"
    );
    assert!(shown[1].contains("total_minor:200,"), "{shown:?}");
    assert_eq!(
        shown[5],
        "2/stock.adjust/21777 {adjustment_id:write-off/2/21777,sku_id:21777,change:-3,\
         reason:write-off 2}"
    );
    assert_eq!((report.write_offs, report.priced_write_offs), (3, 1));
    assert_eq!((report.orders, report.guests), (1, 0));
}

#[test]
fn a_charge_of_negative_quantity_is_a_discount() {
    let (invoices, _) = read(&["1 10002 1 9.0 7", "1 D -2 1.5 7"]);
    let shown = shown(&invoices);
    assert!(shown[0].contains("total_minor:600,"), "{shown:?}");
    let discount = "{sku_id:D,qty:2,unit_price_minor:-150,amount_minor:-300,charge:true}";
    assert!(shown[0].contains(discount), "{shown:?}");
}

#[test]
fn amounts_are_rounded_half_to_even_and_counted() {
    let (invoices, report) = read(&[
        "1 PADS 1 0.001 7",
        "1 10002 1 0.005 7",
        "1 10002 3 0.005 7",
        "1 10002 10 0.001 7",
    ]);
    let Event::Order(OrderEvent::Create(order)) = &invoices[0].entries[0].event else {
        panic!("{invoices:?}")
    };
    let amounts: Vec<i64> = order.lines.iter().map(|line| line.amount_minor).collect();
    assert_eq!(amounts, [0, 0, 2, 1]);
    assert_eq!(report.rounded_lines, 3);
}

#[test]
fn charges_are_codes_without_a_digit_carriage_and_vouchers() {
    let charges = "POST D M DOT C2 S B PADS CRUK AMAZONFEE m DCGSSBOY gift_0001_40";
    for code in charges.split(' ').chain(["BANK CHARGES"]) {
        assert!(is_charge(code), "{code}");
    }
    for code in ["85123A", "85123a", "22752", "DCGS0003", "C23", "15056BL"] {
        assert!(!is_charge(code), "{code}");
    }
}

#[test]
fn opening_stock_is_set_once_before_a_sku_is_used() {
    let rows = [
        "1 10002 1 1.0 7",
        "1 POST 1 1.0 7",
        "1 10002 1 1.0 7",
        "C2 10080 -1 1.0 7",
        "3 10002 1 1.0 7",
        "4 10080 -1 0.0 ",
    ];
    let (invoices, report) = read_with(&rows, Opening::Each(500));
    let shown = shown(&invoices);
    assert_eq!(
        shown[0],
        "opening/10002 {adjustment_id:opening/10002,sku_id:10002,set:500,version:0,\
         reason:opening stock}"
    );
    assert!(shown[1].starts_with("1/order.create "), "{shown:?}");
    assert!(shown[5].starts_with("opening/10080 "), "{shown:?}");
    let openings = shown.iter().filter(|s| s.starts_with("opening/"));
    assert_eq!((openings.count(), report.skus), (2, 2));
}

#[test]
fn opening_stock_may_be_exactly_what_is_sold_and_written_off() {
    let text = format!(
        "{HEADER}\n1,10002,,3,2010-12-01 08:26,1,7,\n2,10002,,4,2010-12-01 08:26,1,7,\n\
         2,POST,,1,2010-12-01 08:26,1,7,\nC3,10080,,-4,2010-12-01 08:26,1,7,\n\
         4,10002,,-2,2010-12-01 08:26,0,,\n"
    );
    let demand = demand(text.as_bytes()).unwrap();
    let expected = BTreeMap::from([(SkuId::new("10002").unwrap(), 9)]);
    assert_eq!(demand, expected);
    let (invoices, _) = import(text.as_bytes(), Opening::Exactly(demand));
    let shown = shown(&invoices);
    assert!(shown[0].contains("set:9,"), "{shown:?}");
    let openings = shown.iter().filter(|s| s.starts_with("opening/"));
    assert_eq!(openings.count(), 1);
}

#[test]
fn a_line_that_cannot_be_used_is_told_and_its_invoice_left_out_whole() {
    let cases = [
        (
            "1 10002 six 1.0 7",
            "Quantity \"six\" is not a whole number other than 0",
        ),
        (
            "1 10002 0 1.0 7",
            "Quantity \"0\" is not a whole number other than 0",
        ),
        (
            "1 10002 1 1e3 7",
            "UnitPrice \"1e3\" is not a decimal number such as 2.55",
        ),
        ("1 10002 1 -1.0 7", "UnitPrice -1.0 of goods is negative"),
        ("1  1 1.0 7", "StockCode is empty"),
        (
            "1 10002 9223372036854775807 9.0 7",
            "the amount or the total is too large",
        ),
        (
            "1 10002 1 1.0 8",
            "CustomerID \"8\" differs from \"7\" on the first line of the invoice",
        ),
    ];
    for (row, reason) in cases {
        let rows = ["1 10080 1 1.0 7", row, "1 10080 1 1.0 7", "2 10080 1 1.0 7"];
        let (invoices, report) = read(&rows);
        let neighbour = "line 3 of the same invoice cannot be used, so the invoice is left out";
        assert_eq!(
            skipped(&report),
            [
                format!("2 {neighbour}"),
                format!("3 {reason}"),
                format!("4 {neighbour}")
            ]
        );
        assert_eq!(invoices.len(), 1, "{row}");
        assert_eq!(report.invoices, 2, "{row}");
        let invoice = report.skipped[1].invoice.as_deref();
        assert_eq!(invoice, Some("1"), "{row}");
    }
}

#[test]
fn an_invoice_that_makes_no_sense_is_told_on_each_line() {
    let (invoices, report) = read(&[
        " 10002 1 1.0 7",
        "1 10002 1 1.0 7",
        "1 D -1 2.0 7",
        "C2 10002 1 1.0 7",
        "C3 10002 -1 1.0 7",
        "C3 D -1 -2.0 7",
        "A563186 B 1 -11062.06 ",
        "4 10002 5000000000000000000 0.0 7",
        "4 10002 5000000000000000000 0.0 7",
    ]);
    assert!(invoices.is_empty());
    assert_eq!(
        skipped(&report),
        [
            "2 InvoiceNo is empty",
            "3 the order's total of -100 pence is negative",
            "4 the order's total of -100 pence is negative",
            "5 Quantity 1 is positive in a cancellation",
            "6 the cancellation's refund of -100 pence is negative",
            "7 the cancellation's refund of -100 pence is negative",
            "8 a bad-debt adjustment (A...) is neither an order nor a cancellation",
            "9 the amount or the total is too large",
            "10 the amount or the total is too large",
        ]
    );
    assert_eq!(report.skipped[0].invoice, None);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["skipped"][0]["reason"], "InvoiceNo is empty");
}

#[test]
fn a_broken_row_stops_neither_the_file_nor_other_invoices() {
    let text = format!(
        "{HEADER}\n\
         1,10002,a,1,2010-12-01 08:26,1,7,UK\n\
         2,10002,a,1,2010-12-01 08:26,1,7\n\
         2,10002,\"a, b\",1,2010-12-01 08:26,1,7,UK\n\
         3,10002,\"a,1,2010-12-01 08:26,1,7,UK\n\
         4,10002,\"a \"\"b\"\"\nc\",1,2010-12-01 08:26,1,7,UK\n\
         5,10002,a,1,yesterday,1,7,UK\n\
         total,5\n\
         6,10002,a,1,2010-12-01 08:26,1,7,UK"
    );
    let (invoices, report) = import(text.as_bytes(), Opening::Untouched);
    let numbers: Vec<&str> = invoices.iter().map(|i| i.number.as_str()).collect();
    assert_eq!(numbers, ["1", "4", "6"]);
    assert_eq!(
        skipped(&report),
        [
            "3 has 7 fields instead of 8",
            "4 line 3 of the same invoice cannot be used, so the invoice is left out",
            "5 has a quote that is not closed, or that is followed by text",
            "8 InvoiceDate \"yesterday\" is not a time such as 2010-12-01 08:26:00 or 12/1/2010 8:26",
            "9 has 2 fields instead of 8",
        ]
    );
}

#[test]
fn lines_of_an_invoice_may_stand_a_little_apart() {
    let others: Vec<String> = (0..WINDOW).map(|n| format!("o{n} 10002 1 1.0 7")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let first = ["1 10002 1 1.0 7"];
    let (invoices, report) = read(&[&first[..], &others, &first].concat());
    assert_eq!(report.skipped, []);
    assert_eq!(invoices[0].number, "1");
    assert_eq!(
        report.ordered_minor,
        100 * (2 + i64::try_from(WINDOW).unwrap())
    );

    let (_, report) = read(&[&first[..], &others, &["x 10002 1 1.0 7"], &first].concat());
    assert_eq!(
        skipped(&report),
        ["36 more than 32 other invoices stand between this line and its invoice"]
    );
}

#[test]
fn descriptions_need_not_be_utf8_but_what_is_used_must() {
    let row = b"1,10002,\xA3 5 NOTE,1,2010-12-01 08:26:00,1,7,UK\n";
    let bad = b"2,1000\xA3,x,1,2010-12-01 08:26:00,1,7,UK\n";
    let text = [HEADER.as_bytes(), b"\r\n", row, bad].concat();
    let (invoices, report) = import(text.as_slice(), Opening::Untouched);
    assert_eq!(invoices.len(), 1);
    assert_eq!(skipped(&report), ["3 StockCode is not UTF-8"]);
}

#[test]
fn columns_are_found_by_name() {
    let text = "\u{feff}Country,CustomerID,\"UnitPrice\", InvoiceDate ,Quantity,StockCode,InvoiceNo\n\
                UK,7,2.5,12/1/2010 8:26,2,10002,1\n";
    let (invoices, _) = import(text.as_bytes(), Opening::Untouched);
    assert_eq!(invoices[0].at.to_string(), "2010-12-01T08:26:00Z");
    assert!(shown(&invoices)[0].contains("total_minor:500,"));
}

#[test]
fn dates_are_read_as_utc() {
    for text in [
        "2010-12-01 08:26:00",
        "2010-12-01T08:26:00",
        "2010-12-01 08:26",
        "12/1/2010 8:26",
        "12/01/2010 08:26:00",
    ] {
        let at = parse_date(text).unwrap();
        assert_eq!(at.to_string(), "2010-12-01T08:26:00Z", "{text}");
    }
    for text in [
        "",
        "2010-12-01",
        "2010-13-01 08:26:00",
        "2011-02-29 08:26:00",
        "2010-12-01 24:00:00",
        "2010-12-01 08:26:00.5",
        "10-12-01 08:26:00",
        "13/1/2010 8:26",
        "2010-12-01 +8:26",
        "01.12.2010 08:26",
    ] {
        assert_eq!(parse_date(text), None, "{text}");
    }
}

#[test]
fn a_file_that_is_none_of_ours_is_refused_in_one_sentence() {
    let error = |text: &str| {
        let import = Import::new(text.as_bytes(), Options::default());
        import.unwrap_err().to_string()
    };
    let columns = "InvoiceNo, StockCode, Quantity, InvoiceDate, UnitPrice, CustomerID";
    assert_eq!(
        error("\n"),
        format!("the file is empty, expected a header with the columns {columns}")
    );
    assert_eq!(
        error("InvoiceNo,StockCode,Qty,InvoiceDate,CustomerID\n"),
        "the header lacks Quantity, UnitPrice, it has [\"InvoiceNo\", \"StockCode\", \"Qty\", \
         \"InvoiceDate\", \"CustomerID\"]"
    );
    assert!(error("InvoiceNo;StockCode\n").contains("it has [\"InvoiceNo;StockCode\"]"));
    let (invoices, report) = import(HEADER.as_bytes(), Opening::Untouched);
    assert_eq!((invoices.len(), report), (0, Report::default()));
}

#[test]
fn a_file_that_breaks_off_ends_with_the_error() {
    struct Torn(bool);
    impl Read for Torn {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::other("disk gone"));
            }
            let text = format!("{HEADER}\n1,10002,a,1,2010-12-01 08:26,1,7,UK\n2,10");
            buffer[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
    }
    let mut import = Import::new(Torn(false), Options::default()).unwrap();
    let error = import.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "cannot read line 3");
    assert!(import.next().is_none());
}

fn messages(counts: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    counts.iter().copied().collect()
}

// The counts of both files were computed by an independent program from the CSV.
#[test]
fn the_first_day_of_the_shop_is_mapped_to_the_penny() {
    let day = || data("online-retail-2010-12-01.csv");
    let (invoices, report) = import(day(), Opening::Each(1000));
    assert_eq!(
        report,
        Report {
            lines: 3_108,
            invoices: 143,
            orders: 136,
            credit_notes: 6,
            goods_lines: 3_099,
            charges: 9,
            write_offs: 1,
            priced_write_offs: 0,
            rounded_lines: 0,
            guests: 15,
            skus: 1_346,
            ordered_minor: 5_896_079,
            credited_minor: 32_523,
            messages: messages(&[
                ("order.create", 136),
                ("payment.succeeded", 127),
                ("order.ship", 136),
                ("order.complete", 136),
                ("account.credit", 6),
                ("stock.adjust", 26 + 1_346),
            ]),
            skipped: Vec::new(),
        }
    );
    assert_eq!(invoices.len(), 143);
    let unique: HashSet<&str> = ids(&invoices).into_iter().collect();
    assert_eq!(unique.len(), ids(&invoices).len());
    let (again, _) = import(day(), Opening::Each(1000));
    assert_eq!(invoices, again);

    let demand = demand(day()).unwrap();
    assert_eq!(demand.len(), 1_344);
    assert_eq!(demand.values().sum::<i64>(), 27_007);
    assert_eq!(demand[&SkuId::new("85123A").unwrap()], 454);
    assert_eq!(demand[&SkuId::new("22423").unwrap()], 115);
}

#[test]
fn every_line_of_the_year_is_accounted_for() {
    let year = liblzma::read::XzDecoder::new(data("online-retail.csv.xz"));
    let mut import = Import::new(year, Options::default()).unwrap();
    let mut units = 0;
    let mut stock = 0;
    let mut most_lines = 0;
    for invoice in import.by_ref() {
        for entry in invoice.unwrap().entries {
            match entry.event {
                Event::Order(OrderEvent::Create(order)) => {
                    let goods = order.lines.iter().filter(|line| !line.charge);
                    units += goods.map(|line| line.qty).sum::<i64>();
                    most_lines = most_lines.max(order.lines.len());
                }
                Event::Inventory(InventoryEvent::Adjust(StockAdjust {
                    adjustment: Adjustment::Change(change),
                    ..
                })) => stock += change,
                Event::Order(_) | Event::Inventory(_) | Event::Account(_) | Event::Notice(_) => {}
            }
        }
    }
    let report = import.into_report();
    assert_eq!(
        skipped(&report),
        [299_984, 299_985, 299_986].map(|line| format!("{line} {}", Reason::BadDebt))
    );
    assert_eq!(
        Report {
            skipped: Vec::new(),
            ..report
        },
        Report {
            lines: 541_909,
            invoices: 25_900,
            orders: 20_725,
            credit_notes: 3_836,
            goods_lines: 538_935,
            charges: 2_971,
            write_offs: 1_336,
            priced_write_offs: 0,
            rounded_lines: 4,
            guests: 2_371,
            skus: 4_051,
            ordered_minor: 1_065_562_248,
            credited_minor: 89_681_249,
            messages: messages(&[
                ("order.create", 20_725),
                ("payment.succeeded", 19_959),
                ("order.ship", 20_725),
                ("order.complete", 20_725),
                ("account.credit", 3_836),
                ("stock.adjust", 9_970),
            ]),
            skipped: Vec::new(),
        }
    );
    assert_eq!(538_935 + 2_971 + 3, 541_909);
    assert_eq!(units, 5_645_030);
    assert_eq!(stock, 272_030 - 206_957);
    assert_eq!(most_lines, 1_114);
}
