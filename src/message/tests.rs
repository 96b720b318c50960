use super::*;
use crate::domain::event::{
    AccountChange, AccountEvent, AccountReverse, Adjustment, InventoryEvent, MAX_AMOUNT, MAX_QTY,
    OrderCancel, OrderClosed, OrderCompleted, OrderCreate, OrderCreated, OrderEvent, OrderExpire,
    OrderLine, OrderRef, OrderRefund, OrderRefunded, OrderRemind, PaymentFailed, PaymentSucceeded,
    RefundAmount, RefundFailed, RefundSucceeded, Shortage, StockAdjust, StockLine, StockRejected,
    StockReturn,
};
use crate::domain::inventory::{self, InventoryState, Stock};
use crate::domain::order::{self, Context, OrderState};
use crate::domain::testing::{id, points_rule};
use crate::domain::{Currency, EventType, Fingerprint, Key, RoleName, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use strum::IntoEnumIterator;

const DAY: Timestamp = Timestamp(1_291_191_960_123);

fn parse(text: &str) -> Result<Envelope<'_>, Malformed> {
    Envelope::parse(text.as_bytes(), &Limits::default())
}

/// What a message of this type and content says to the role that consumes it.
fn decode(event_type: EventType, envelope: &Envelope<'_>) -> Result<Vec<Event>, Malformed> {
    let event = |fields: &Fields<'_>| {
        let order = || order_event(event_type, fields).map(|event| event.map(Event::Order));
        let inventory =
            || inventory_event(event_type, fields).map(|event| event.map(Event::Inventory));
        let account = || account_event(event_type, fields).map(|event| event.map(Event::Account));
        let event = order().or_else(inventory).or_else(account);
        event.expect("a role consumes the type")
    };
    envelope.items()?.iter().map(event).collect()
}

fn message(event_type: EventType, data: &Value) -> Value {
    json!({
        "specversion": "1.0", "id": "m-1", "source": "shop", "type": event_type.name(),
        "subject": "O1", "time": "2010-12-01T08:26:00.123Z", "data": data,
    })
}

fn read(event_type: EventType, data: &Value) -> Result<Event, Malformed> {
    let text = message(event_type, data).to_string();
    Ok(decode(event_type, &parse(&text)?)?.remove(0))
}

/// The problem of a message of this type and content, in words.
fn problem(event_type: EventType, data: &Value) -> String {
    match read(event_type, data) {
        Ok(event) => panic!("{event:?} was read from {data}"),
        Err(malformed) => malformed.to_string(),
    }
}

/// Every field that is needed of an event's content, and which of them are its identifiers.
struct Sample {
    event_type: EventType,
    data: Value,
    ids: &'static [&'static str],
}

fn samples() -> Vec<Sample> {
    use EventType as T;
    let order = || json!({"order_id": "O1"});
    let account = || {
        json!({"user_id": "U1", "kind": "POINTS", "source_type": "ORDER", "source_id": "O1",
            "amount": 5})
    };
    let account_ids: &[_] = &["user_id", "kind", "source_type", "source_id"];
    let table = [
        (
            T::OrderCreate,
            json!({"order_id": "O1", "user_id": "U1", "currency": "GBP", "total_minor": 500,
                "lines": [{"sku_id": "S1", "qty": 2, "unit_price_minor": 250}]}),
            &["order_id", "user_id"][..],
        ),
        (T::OrderCancel, order(), &["order_id"]),
        (T::OrderExpire, order(), &["order_id"]),
        (T::OrderShip, order(), &["order_id"]),
        (T::OrderComplete, order(), &["order_id"]),
        (
            T::OrderRefund,
            json!({"order_id": "O1", "refund_id": "A1"}),
            &["order_id", "refund_id"],
        ),
        (T::OrderRemind, order(), &["order_id"]),
        (T::StockDeducted, order(), &["order_id"]),
        (T::StockRejected, order(), &["order_id"]),
        (
            T::PaymentSucceeded,
            json!({"order_id": "O1", "provider": "alipay", "trade_no": "T1", "amount_minor": 500,
                "currency": "GBP"}),
            &["order_id", "provider", "trade_no"],
        ),
        (
            T::PaymentFailed,
            json!({"order_id": "O1", "provider": "alipay", "trade_no": "T1"}),
            &["order_id", "provider", "trade_no"],
        ),
        (
            T::RefundSucceeded,
            json!({"order_id": "O1", "provider": "alipay", "refund_no": "R1", "amount_minor": 500,
                "currency": "GBP"}),
            &["order_id", "provider", "refund_no"],
        ),
        (
            T::RefundFailed,
            json!({"order_id": "O1", "provider": "alipay", "refund_no": "R1"}),
            &["order_id", "provider", "refund_no"],
        ),
        (
            T::OrderCreated,
            json!({"order_id": "O1", "user_id": "U1", "lines": [{"sku_id": "S1", "qty": 2}]}),
            &["order_id", "user_id"],
        ),
        (
            T::OrderClosed,
            json!({"order_id": "O1", "reason": "cancelled"}),
            &["order_id"],
        ),
        (
            T::StockReturn,
            json!({"return_id": "X1", "order_id": "O1", "lines": [{"sku_id": "S1", "qty": 2}]}),
            &["return_id", "order_id"],
        ),
        (
            T::StockAdjust,
            json!({"adjustment_id": "J1", "sku_id": "S1", "change": -5}),
            &["adjustment_id", "sku_id"],
        ),
        (
            T::OrderCompleted,
            json!({"order_id": "O1", "user_id": "U1", "currency": "GBP", "paid_minor": 500,
                "refunded_minor": 0}),
            &["order_id", "user_id"],
        ),
        (
            T::OrderRefunded,
            json!({"order_id": "O1", "user_id": "U1", "provider": "alipay", "refund_no": "R1",
                "currency": "GBP", "amount_minor": 5, "paid_minor": 500, "refunded_minor": 5}),
            &["order_id", "user_id", "provider", "refund_no"],
        ),
        (T::AccountCredit, account(), account_ids),
        (T::AccountDebit, account(), account_ids),
        (
            T::AccountReverse,
            json!({"user_id": "U1", "kind": "POINTS", "source_type": "REFUND", "source_id": "R1",
                "of_source_type": "ORDER", "of_source_id": "O1"}),
            &[
                "user_id",
                "kind",
                "source_type",
                "source_id",
                "of_source_type",
                "of_source_id",
            ],
        ),
    ];
    let samples = table.into_iter().map(|(event_type, data, ids)| Sample {
        event_type,
        data,
        ids,
    });
    samples.collect()
}

fn sample(event_type: EventType) -> Value {
    let mut samples = samples().into_iter();
    samples
        .find(|sample| sample.event_type == event_type)
        .unwrap()
        .data
}

/// The sample of a type with a field in place of what it has there.
fn with(event_type: EventType, field: &str, value: Value) -> Value {
    let mut data = sample(event_type);
    data[field] = value;
    data
}

fn without(value: &Value, field: &str) -> Value {
    let mut value = value.clone();
    value.as_object_mut().unwrap().remove(field).unwrap();
    value
}

#[test]
fn there_is_a_sample_of_every_type_that_a_role_consumes() {
    let consumed: BTreeSet<_> = EventType::iter()
        .filter(|event_type| event_type.consumer().is_some())
        .collect();
    let samples = samples();
    let sampled: BTreeSet<_> = samples.iter().map(|sample| sample.event_type).collect();
    assert_eq!(sampled, consumed);
    for Sample {
        event_type, data, ..
    } in samples
    {
        assert_eq!(read(event_type, &data).unwrap().event_type(), event_type);
    }
}

// The bytes.

#[test]
fn a_message_may_have_as_many_bytes_as_allowed_and_no_more() {
    let limits = Limits {
        max_bytes: 1_024,
        ..Limits::default()
    };
    let text = message(EventType::OrderShip, &json!({"order_id": "O1"})).to_string();
    let at_limit = format!("{text:1024}");
    assert!(Envelope::parse(at_limit.as_bytes(), &limits).is_ok());
    let beyond = format!("{text:1025}");
    let malformed = Envelope::parse(beyond.as_bytes(), &limits).unwrap_err();
    assert_eq!(malformed.code(), "too_large");
    assert_eq!(
        malformed.to_string(),
        "the message has 1025 bytes, at most 1024 are allowed"
    );
}

#[test]
fn a_byte_order_mark_is_refused() {
    let text = message(EventType::OrderShip, &json!({"order_id": "O1"})).to_string();
    let utf_16 = |order: fn(u16) -> [u8; 2]| -> Vec<u8> {
        let marked = std::iter::once(0xFEFF).chain(text.encode_utf16());
        marked.flat_map(order).collect()
    };
    let utf_8 = format!("\u{FEFF}{text}").into_bytes();
    for bytes in [utf_8, utf_16(u16::to_be_bytes), utf_16(u16::to_le_bytes)] {
        let malformed = Envelope::parse(&bytes, &Limits::default()).unwrap_err();
        assert_eq!(malformed, Malformed::ByteOrderMark);
        assert_eq!(
            malformed.to_string(),
            "the message begins with a byte order mark, expected UTF-8 without one"
        );
    }
}

#[test]
fn the_first_byte_that_is_not_utf_8_is_named() {
    // GBK, a lone continuation byte, an overlong slash, a surrogate, and a character cut off.
    for wrong in [
        &b"\xC4\xE3"[..],
        b"\x80",
        b"\xC0\xAF",
        b"\xED\xA0\x80",
        b"\xE2\x82",
    ] {
        let bytes = [b"{\"id\": \"", wrong, b"\"}"].concat();
        let malformed = Envelope::parse(&bytes, &Limits::default()).unwrap_err();
        assert_eq!(malformed, Malformed::NotUtf8 { at: 8 }, "{wrong:?}");
        assert_eq!(malformed.to_string(), "byte 8 of the message is not UTF-8");
    }
}

#[test]
fn what_is_not_json_is_refused() {
    let whole = message(EventType::OrderShip, &json!({"order_id": "O1"})).to_string();
    let table = [
        ("", "EOF while parsing a value at line 1 column 0"),
        (" \n ", "EOF while parsing a value at line 2 column 1"),
        ("order.create O1", "expected value at line 1 column 1"),
        ("{'id': 1}", "key must be a string at line 1 column 2"),
        ("{\"id\": \"a\",}", "trailing comma at line 1 column 12"),
        ("{\"id\": 01}", "invalid number at line 1 column 9"),
        ("{\"id\": NaN}", "expected value at line 1 column 8"),
        (
            "{\"id\": \"a\nb\"}",
            "control character (\\u0000-\\u001F) found while parsing a string at line 1 column 9",
        ),
        ("{\"id\": \"\\x\"}", "invalid escape at line 1 column 10"),
        ("[1] [2]", "trailing characters at line 1 column 5"),
    ];
    for (text, problem) in table {
        let malformed = parse(text).unwrap_err();
        assert_eq!(malformed.code(), "not_json");
        let expected = format!("message is not JSON: {problem}");
        assert_eq!(malformed.to_string(), expected, "{text:?}");
    }
    // Cut off anywhere, it is not JSON; neither is it with anything but white space after it.
    for end in 1..whole.len() {
        assert_eq!(parse(&whole[..end]).unwrap_err().code(), "not_json");
    }
    for after in ["x", "{}", "\0", "\u{FEFF}", "]"] {
        let malformed = parse(&format!("{whole}{after}")).unwrap_err();
        assert_eq!(malformed.code(), "not_json", "{after:?}");
    }
    assert!(parse(&format!(" \t\r\n{whole}\n ")).is_ok());
}

#[test]
fn what_is_json_but_no_object_is_told_from_what_is_not_json() {
    let table = [
        ("[]", "a list"),
        ("\"{}\"", "a text"),
        ("12", "a number"),
        ("1.5", "a number that is not an integer"),
        ("true", "true or false"),
        ("null", "null"),
    ];
    for (text, found) in table {
        let expected = format!("message is {found}, expected an object");
        assert_eq!(parse(text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn nesting_is_allowed_to_the_limit_and_no_deeper() {
    let nested = |levels: usize| {
        // The message and its data are two levels.
        let (open, close) = ("[".repeat(levels - 2), "]".repeat(levels - 2));
        let mut text = message(EventType::OrderShip, &json!({"order_id": "O1", "x": null}));
        text["data"]["x"] = json!("x");
        text.to_string()
            .replace("\"x\":\"x\"", &format!("\"x\":{open}{close}"))
    };
    assert!(parse(&nested(32)).is_ok());
    let malformed = parse(&nested(33)).unwrap_err();
    assert_eq!(malformed, Malformed::TooDeep { max: 32 });
    assert_eq!(
        malformed.to_string(),
        "objects and arrays are nested deeper than 32 levels"
    );
    let deepest = Limits {
        max_depth: 128,
        ..Limits::default()
    };
    assert!(Envelope::parse(nested(128).as_bytes(), &deepest).is_ok());
}

#[test]
fn a_message_of_a_million_brackets_does_not_overflow_the_stack() {
    for text in ["[".repeat(1 << 20), "{\"a\":".repeat(200_000)] {
        assert_eq!(parse(&text).unwrap_err().code(), "too_deep");
    }
}

#[test]
fn brackets_in_a_text_do_not_nest() {
    let data = json!({"order_id": "[".repeat(100), "x": format!("\\\"{}", "{".repeat(100))});
    assert!(read(EventType::OrderShip, &data).is_ok());
}

// The envelope.

/// Every attribute that an envelope must have.
const ATTRIBUTES: [&str; 5] = ["specversion", "id", "source", "type", "subject"];

// B37: empty ids never make two messages one.
#[test]
fn an_envelope_without_one_of_its_attributes_is_malformed() {
    let whole = message(EventType::OrderShip, &json!({"order_id": "O1"}));
    for attribute in ATTRIBUTES.into_iter().chain(["data"]) {
        let missing = Malformed::MissingField {
            field: attribute.to_owned(),
        };
        assert_eq!(missing.to_string(), format!("{attribute} is missing"));
        let text = without(&whole, attribute).to_string();
        assert_eq!(parse(&text).unwrap_err(), missing);
        let mut null = whole.clone();
        null[attribute] = Value::Null;
        assert_eq!(parse(&null.to_string()).unwrap_err(), missing);
    }
    for attribute in ATTRIBUTES.into_iter().chain(["time", "traceparent"]) {
        for blank in ["", " ", "\t\n", "\u{3000}\u{A0}"] {
            let mut empty = whole.clone();
            empty[attribute] = json!(blank);
            let malformed = parse(&empty.to_string()).unwrap_err();
            assert_eq!(malformed.code(), "empty_field");
            assert_eq!(malformed.to_string(), format!("{attribute} is empty"));
        }
    }
}

#[test]
fn an_attribute_of_another_type_is_refused() {
    let whole = message(EventType::OrderShip, &json!({"order_id": "O1"}));
    for attribute in ATTRIBUTES.into_iter().chain(["time", "traceparent"]) {
        let mut wrong = whole.clone();
        wrong[attribute] = json!(1);
        let expected = format!("{attribute} is a number, expected a text");
        let malformed = parse(&wrong.to_string()).unwrap_err();
        assert_eq!(malformed.code(), "wrong_type");
        assert_eq!(malformed.to_string(), expected);
    }
    for data in [json!([]), json!("{}")] {
        let text = message(EventType::OrderShip, &data).to_string();
        let malformed = parse(&text).unwrap_err().to_string();
        assert!(malformed.starts_with("data is a "), "{malformed}");
    }
}

#[test]
fn an_attribute_holds_no_control_character() {
    let whole = message(EventType::OrderShip, &json!({"order_id": "O1"}));
    for attribute in ["id", "source", "type", "subject", "traceparent"] {
        for (control, name) in [("\0", "0000"), ("\n", "000A"), ("\u{85}", "0085")] {
            let mut wrong = whole.clone();
            wrong[attribute] = json!(format!("a{control}b"));
            let malformed = parse(&wrong.to_string()).unwrap_err().to_string();
            let expected = format!("{attribute} holds the control character U+{name}, got ");
            assert!(malformed.starts_with(&expected), "{malformed}");
        }
    }
}

#[test]
fn only_version_1_0_is_read() {
    for version in ["0.3", "1", "1.1", " 1.0"] {
        let mut text = message(EventType::OrderShip, &json!({"order_id": "O1"}));
        text["specversion"] = json!(version);
        assert_eq!(
            parse(&text.to_string()).unwrap_err().to_string(),
            format!("specversion must be 1.0, got {version:?}")
        );
    }
}

#[test]
fn a_field_that_stands_twice_is_refused_wherever_it_stands() {
    let twice = |text: &str, field: &str| {
        let malformed = match parse(text) {
            Err(malformed) => malformed,
            Ok(envelope) => decode(EventType::OrderCreate, &envelope).unwrap_err(),
        };
        assert_eq!(malformed.code(), "duplicate_field");
        assert_eq!(malformed.to_string(), format!("{field} is there twice"));
    };
    let text = message(EventType::OrderCreate, &sample(EventType::OrderCreate)).to_string();
    twice(&text.replacen('{', "{\"id\":\"m-2\",", 1), "id");
    // The same name in other letters of JSON.
    twice(&text.replacen('{', "{\"\\u0069d\":\"m-2\",", 1), "id");
    let order = "\"order_id\":\"O1\"";
    twice(
        &text.replace(order, &format!("{order},{order}")),
        "data.order_id",
    );
    let qty = "\"qty\":2";
    twice(
        &text.replace(qty, "\"qty\":2,\"qty\":3"),
        "data.lines[0].qty",
    );
    // Case is not folded.
    assert!(parse(&text.replace(qty, "\"qty\":2,\"Qty\":3")).is_ok());
}

#[test]
fn a_hundred_thousand_fields_are_read_in_no_time_and_the_first_double_is_found() {
    let fields = |n: u32| -> String { (0..n).map(|i| format!("\"{i:x}\":0,")).collect() };
    let limits = Limits {
        max_bytes: 4 << 20,
        ..Limits::default()
    };
    let text = message(EventType::OrderShip, &json!({"order_id": "O1"})).to_string();
    let many = text.replacen('{', &format!("{{{}", fields(100_000)), 1);
    assert!(Envelope::parse(many.as_bytes(), &limits).is_ok());
    let doubles = format!("{{{}\"12\":1,\"2\":1,", fields(30));
    let malformed = parse(&text.replacen('{', &doubles, 1)).unwrap_err();
    assert_eq!(malformed.to_string(), "12 is there twice");
}

#[test]
fn a_lone_surrogate_is_refused() {
    let text = message(EventType::OrderShip, &json!({"order_id": "O1"})).to_string();
    let envelope = text.replace("\"m-1\"", "\"\\ud800\"");
    assert_eq!(
        parse(&envelope).unwrap_err().to_string(),
        "id is not valid Unicode, got \"\\\"\\\\ud800\\\"\""
    );
    let data = text.replace("\"order_id\":\"O1\"", "\"order_id\":\"O\\udc00\"");
    let malformed = decode(EventType::OrderShip, &parse(&data).unwrap()).unwrap_err();
    assert_eq!(malformed.code(), "invalid");
    assert!(
        malformed
            .to_string()
            .starts_with("data.order_id is not valid Unicode")
    );
    let name = text.replace("\"order_id\":", "\"\\ud800\":");
    assert_eq!(parse(&name).unwrap_err().code(), "not_json");
    // A pair of them is a character.
    let pair = text.replace("\"m-1\"", "\"\\ud83d\\ude00\"");
    assert_eq!(parse(&pair).unwrap().id, "😀");
}

#[test]
fn a_time_is_read_as_rfc_3339_has_it() {
    let with_time = |time: &str| {
        let mut text = message(EventType::OrderShip, &json!({"order_id": "O1"}));
        text["time"] = json!(time);
        parse(&text.to_string()).map(|envelope| envelope.time)
    };
    for time in [
        "2010-12-01T08:26:00.123Z",
        "2010-12-01T08:26:00.123456789Z",
        "2010-12-01T08:26:00.123+00:00",
        "2010-12-01T16:26:00.123+08:00",
        "2010-11-30T22:56:00.123-09:30",
        "2010-12-01t08:26:00.123z",
    ] {
        assert_eq!(with_time(time), Ok(Some(DAY)), "{time}");
    }
    let before_1970 = with_time("1969-12-31T23:59:59.999Z").unwrap();
    assert_eq!(before_1970, Some(Timestamp(-1)));
    for time in [
        "yesterday",
        "2010-12-01",
        "2010-12-01T08:26:00",
        "2010-13-01T08:26:00Z",
        "2010-12-01T25:26:00Z",
        "1291191960",
        "Wed, 01 Dec 2010 08:26:00 GMT",
    ] {
        assert_eq!(
            with_time(time).unwrap_err().to_string(),
            format!("time must be an RFC 3339 time, got {time:?}")
        );
    }
}

#[test]
fn time_and_trace_context_may_be_missing() {
    let whole = message(EventType::OrderShip, &json!({"order_id": "O1"}));
    let text = without(&whole, "time").to_string();
    let envelope = parse(&text).unwrap();
    assert_eq!((envelope.time, envelope.traceparent), (None, None));
}

#[test]
fn unknown_fields_are_ignored_wherever_they_stand() {
    for Sample {
        event_type, data, ..
    } in samples()
    {
        let known = read(event_type, &data).unwrap();
        let mut more = message(event_type, &data);
        let extra = json!({"nested": [1, 2.5, {"a": null}], "big": 1e300});
        more["x_extension"] = extra.clone();
        more["data"]["unknown"] = extra.clone();
        if let Some(line) = more["data"].get_mut("lines") {
            line[0]["unknown"] = extra;
        }
        let text = more.to_string();
        let decoded = decode(event_type, &parse(&text).unwrap());
        assert_eq!(decoded, Ok(vec![known]));
    }
}

// The content.

#[test]
fn an_identifier_is_needed_in_every_event_that_has_one() {
    for Sample {
        event_type,
        data,
        ids,
    } in samples()
    {
        for &field in ids {
            let field_is = |what: &str| format!("data.{field} is {what}");
            let changed = |value| problem(event_type, &with(event_type, field, value));

            let missing = problem(event_type, &without(&data, field));
            assert_eq!(missing, field_is("missing"), "{event_type}");
            assert_eq!(changed(Value::Null), field_is("missing"));
            assert_eq!(changed(json!("")), field_is("empty"));
            assert_eq!(changed(json!(" \t\u{3000}")), field_is("empty"));
            let expected = "expected a text or an integer without a sign";
            for (wrong, kind) in [
                (json!(["O1"]), "a list"),
                (json!({}), "an object"),
                (json!(true), "true or false"),
                (json!(-1), "a number"),
                (json!(1.5), "a number that is not an integer"),
            ] {
                assert_eq!(changed(wrong), field_is(&format!("{kind}, {expected}")));
            }
            assert_eq!(
                changed(json!("a\u{0}b")),
                format!("data.{field} holds the control character U+0000, got \"a\\0b\"")
            );
            assert!(read(event_type, &with(event_type, field, json!("x".repeat(512)))).is_ok());
            assert_eq!(
                changed(json!("x".repeat(513))),
                format!(
                    "data.{field} has 513 bytes, at most 512 are allowed, got \"{}...\"",
                    "x".repeat(64)
                )
            );
        }
    }
}

/// The number fields of each event, with the least and the greatest number that they take.
fn numbers() -> Vec<(EventType, &'static str, i64, i64)> {
    use EventType as T;
    vec![
        (T::OrderCreate, "pay_within_seconds", 1, u32::MAX.into()),
        (T::PaymentSucceeded, "amount_minor", 0, MAX_AMOUNT),
        (T::RefundSucceeded, "amount_minor", 1, MAX_AMOUNT),
        (T::StockAdjust, "change", -MAX_QTY, MAX_QTY),
        (T::StockAdjust, "version", 0, i64::MAX),
        (T::OrderCompleted, "paid_minor", 0, MAX_AMOUNT),
        (T::OrderCompleted, "refunded_minor", 0, MAX_AMOUNT),
        (T::OrderRefunded, "amount_minor", 1, MAX_AMOUNT),
        (T::OrderRefunded, "paid_minor", 0, MAX_AMOUNT),
        (T::OrderRefunded, "refunded_minor", 0, MAX_AMOUNT),
        (T::AccountCredit, "amount", 1, MAX_AMOUNT),
        (T::AccountDebit, "amount", 1, MAX_AMOUNT),
        (T::AccountReverse, "amount", 1, MAX_AMOUNT),
    ]
}

/// A number that stands in the text as it is written here.
fn number_problem(event_type: EventType, field: &str, number: &str) -> String {
    let data = with(event_type, field, json!("NUMBER"));
    let text = message(event_type, &data).to_string();
    let text = text.replace("\"NUMBER\"", number);
    match decode(event_type, &parse(&text).unwrap()) {
        Ok(event) => panic!("{event:?} was read from {text}"),
        Err(malformed) => malformed.to_string(),
    }
}

#[test]
fn a_number_is_taken_within_its_range_and_not_beyond() {
    for (event_type, field, least, most) in numbers() {
        for number in [least, most] {
            read(event_type, &with(event_type, field, json!(number))).unwrap();
        }
        let mut beyond = vec![
            "10000000000000000000".to_owned(),
            "-10000000000000000000".to_owned(),
            "9".repeat(400),
        ];
        beyond.extend(least.checked_sub(1).map(|n| n.to_string()));
        beyond.extend(most.checked_add(1).map(|n| n.to_string()));
        let expected = if most == i64::MAX {
            format!("an integer of at least {least}")
        } else {
            format!("an integer from {least} to {most}")
        };
        for number in beyond {
            let shown = if number.len() > 64 {
                format!("{}...", &number[..64])
            } else {
                number.clone()
            };
            assert_eq!(
                number_problem(event_type, field, &number),
                format!("data.{field} is {shown}, expected {expected}")
            );
        }
        for number in ["1.0", "1e3", "1E2", "0.5", "-1.5e-3"] {
            assert_eq!(
                number_problem(event_type, field, number),
                format!("data.{field} is a number that is not an integer, expected an integer")
            );
        }
        for (wrong, kind) in [
            ("\"5\"", "a text"),
            ("true", "true or false"),
            ("[5]", "a list"),
        ] {
            assert_eq!(
                number_problem(event_type, field, wrong),
                format!("data.{field} is {kind}, expected an integer")
            );
        }
    }
}

#[test]
fn numbers_that_an_event_cannot_do_without_are_asked_for() {
    let optional = ["pay_within_seconds", "version"];
    let optional = |event_type, field: &str| {
        optional.contains(&field) || event_type == EventType::AccountReverse
    };
    for (event_type, field, ..) in numbers() {
        if !optional(event_type, field) {
            let data = without(&sample(event_type), field);
            let missing = format!("data.{field} is missing");
            assert_eq!(problem(event_type, &data), missing, "{event_type}");
        }
    }
}

#[test]
fn the_numbers_of_lines_have_ranges_too() {
    use EventType as T;
    let line = |line: Value| with(T::OrderCreate, "lines", json!([line]));
    let created = |qty: i64| {
        with(
            T::OrderCreated,
            "lines",
            json!([{"sku_id": "S", "qty": qty}]),
        )
    };
    let returned = |qty: i64| {
        with(
            T::StockReturn,
            "lines",
            json!([{"sku_id": "S", "qty": qty}]),
        )
    };
    let qty = format!("an integer from 1 to {MAX_QTY}");
    for wrong in [0, -1, MAX_QTY + 1] {
        let expected = format!("data.lines[0].qty is {wrong}, expected {qty}");
        let ordered = line(json!({"sku_id": "S", "qty": wrong, "unit_price_minor": 0}));
        assert_eq!(problem(T::OrderCreate, &ordered), expected);
        assert_eq!(problem(T::OrderCreated, &created(wrong)), expected);
        assert_eq!(problem(T::StockReturn, &returned(wrong)), expected);
    }
    assert!(read(T::OrderCreated, &created(MAX_QTY)).is_ok());
    for (field, least, charge) in [
        ("unit_price_minor", 0, false),
        ("amount_minor", 0, false),
        ("unit_price_minor", -MAX_AMOUNT, true),
        ("amount_minor", -MAX_AMOUNT, true),
    ] {
        for wrong in [least - 1, MAX_AMOUNT + 1] {
            let mut changed = json!({"sku_id": "S", "qty": 1, "unit_price_minor": 0,
                "charge": charge});
            changed[field] = json!(wrong);
            assert_eq!(
                problem(T::OrderCreate, &line(changed)),
                format!(
                    "data.lines[0].{field} is {wrong}, expected an integer from {least} to {MAX_AMOUNT}"
                )
            );
        }
    }
    let product = line(json!({"sku_id": "S", "qty": 2, "unit_price_minor": MAX_AMOUNT}));
    assert_eq!(
        problem(T::OrderCreate, &product),
        format!(
            "data.lines[0].unit_price_minor times qty 2 is more than {MAX_AMOUNT}, got \"{MAX_AMOUNT}\""
        )
    );
    for level in [-1, MAX_QTY + 1] {
        let data = json!({"adjustment_id": "J1", "sku_id": "S1", "set": level, "version": 0});
        assert_eq!(
            problem(T::StockAdjust, &data),
            format!("data.set is {level}, expected an integer from 0 to {MAX_QTY}")
        );
    }
}

#[test]
fn a_shortage_may_be_of_more_units_than_one_line_may_have() {
    let lines = vec![
        StockLine {
            sku_id: id("S1"),
            qty: MAX_QTY,
        };
        3
    ];
    let created = InventoryEvent::Created(OrderCreated {
        order_id: id("O1"),
        user_id: id("U1"),
        lines,
    });
    let stock = HashMap::new();
    let state = InventoryState {
        reservation: None,
        stock: &stock,
        flows: &[],
    };
    let emitted = inventory::decide(state, &created).emits.remove(0);
    assert_eq!(round_trip(&emitted), emitted);
}

#[test]
fn currencies_are_upper_case_codes_of_iso_4217() {
    use EventType as T;
    for event_type in [
        T::OrderCreate,
        T::PaymentSucceeded,
        T::RefundSucceeded,
        T::OrderCompleted,
        T::OrderRefunded,
    ] {
        for code in ["gbp", "XXX", "GB", "GBPX", "£££", "BTC"] {
            assert_eq!(
                problem(event_type, &with(event_type, "currency", json!(code))),
                format!("data.currency is not an ISO 4217 currency code such as GBP, got {code:?}")
            );
        }
        let missing = without(&sample(event_type), "currency");
        assert_eq!(problem(event_type, &missing), "data.currency is missing");
        let empty = with(event_type, "currency", json!(""));
        assert_eq!(problem(event_type, &empty), "data.currency is empty");
        let number = with(event_type, "currency", json!(826));
        assert_eq!(
            problem(event_type, &number),
            "data.currency is a number, expected a text"
        );
    }
}

#[test]
fn the_total_of_an_order_is_the_sum_of_its_lines() {
    let order = |total: i64, lines: Value| {
        json!({"order_id": "O1", "user_id": "U1", "currency": "GBP", "total_minor": total,
            "lines": lines})
    };
    let line = |amount: i64| json!({"sku_id": "S", "qty": 1, "unit_price_minor": 0, "amount_minor": amount});
    let discount = json!({"sku_id": "D", "qty": 1, "unit_price_minor": -50, "charge": true});
    let lines = json!([line(100), line(200), discount]);
    assert!(read(EventType::OrderCreate, &order(250, lines.clone())).is_ok());
    assert_eq!(
        problem(EventType::OrderCreate, &order(300, lines)),
        "data.total_minor must be the sum of the lines' amounts, which is 250, got \"300\""
    );
    let endless = Value::Array(vec![line(MAX_AMOUNT); 10_000]);
    assert_eq!(
        problem(EventType::OrderCreate, &order(MAX_AMOUNT, endless)),
        format!(
            "data.total_minor must be the sum of the lines' amounts, which is beyond the range, got \"{MAX_AMOUNT}\""
        )
    );
    assert_eq!(
        problem(EventType::OrderCreate, &order(-50, json!([discount]))),
        format!("data.total_minor is -50, expected an integer from 0 to {MAX_AMOUNT}")
    );
    let missing = without(&sample(EventType::OrderCreate), "total_minor");
    assert_eq!(
        problem(EventType::OrderCreate, &missing),
        "data.total_minor is missing"
    );
}

#[test]
fn a_flag_is_true_or_false() {
    let line = json!({"sku_id": "S", "qty": 1, "unit_price_minor": 0, "charge": "yes"});
    assert_eq!(
        problem(
            EventType::OrderCreate,
            &with(EventType::OrderCreate, "lines", json!([line]))
        ),
        "data.lines[0].charge is a text, expected true or false"
    );
    assert_eq!(
        problem(
            EventType::OrderRefunded,
            &with(EventType::OrderRefunded, "completed", json!(1))
        ),
        "data.completed is a number, expected true or false"
    );
}

#[test]
fn a_list_of_lines_holds_objects() {
    use EventType as T;
    for event_type in [T::OrderCreate, T::StockReturn] {
        let empty = with(event_type, "lines", json!([]));
        assert_eq!(problem(event_type, &empty), "data.lines is empty");
    }
    for event_type in [T::OrderCreate, T::OrderCreated, T::StockReturn] {
        let changed = |lines| problem(event_type, &with(event_type, "lines", lines));
        let missing = problem(event_type, &without(&sample(event_type), "lines"));
        assert_eq!(missing, "data.lines is missing");
        assert_eq!(
            changed(json!({"0": {}})),
            "data.lines is an object, expected a list of objects"
        );
        assert_eq!(
            changed(json!([[]])),
            "data.lines[0] is a list, expected an object"
        );
        let mut lines = sample(event_type)["lines"].clone();
        let nameless = json!({"qty": 1, "unit_price_minor": 0});
        lines.as_array_mut().unwrap().push(nameless);
        assert_eq!(changed(lines), "data.lines[1].sku_id is missing");
    }
    // An order of charges alone has no goods to set aside.
    let none = with(T::OrderCreated, "lines", json!([]));
    let text = message(T::OrderCreated, &none).to_string();
    for none in ["[]", "[ ]", "[\n]"] {
        let text = text.replace("[]", none);
        assert!(decode(T::OrderCreated, &parse(&text).unwrap()).is_ok());
    }
}

#[test]
fn an_adjustment_sets_a_level_that_was_seen_or_changes_it() {
    use EventType::StockAdjust as Adjust;
    let adjust = |what: Value| {
        let mut data = json!({"adjustment_id": "J1", "sku_id": "S1"});
        let what = what.as_object().unwrap().clone();
        data.as_object_mut().unwrap().extend(what);
        data
    };
    let table = [
        (json!({}), "data.change is missing"),
        (json!({"set": 5}), "data.version is missing"),
        (
            json!({"change": 0}),
            "data.change must not be zero, got \"0\"",
        ),
        (
            json!({"set": 5, "change": 2, "version": 1}),
            "data.set must not stand beside change, got \"5\"",
        ),
    ];
    for (what, expected) in table {
        assert_eq!(problem(Adjust, &adjust(what)), expected);
    }
    assert!(read(Adjust, &adjust(json!({"set": 0, "version": 0}))).is_ok());
}

#[test]
fn a_refund_states_one_amount() {
    use EventType::RefundSucceeded as Refund;
    let both = with(Refund, "total_refunded_minor", json!(700));
    assert_eq!(
        problem(Refund, &both),
        "data.total_refunded_minor must not stand beside amount_minor, got \"700\""
    );
    let neither = without(&sample(Refund), "amount_minor");
    assert_eq!(problem(Refund, &neither), "data.amount_minor is missing");
    let mut total = neither;
    total["total_refunded_minor"] = json!(0);
    assert_eq!(
        problem(Refund, &total),
        format!("data.total_refunded_minor is 0, expected an integer from 1 to {MAX_AMOUNT}")
    );
}

#[test]
fn many_events_of_one_type_travel_together() {
    let items = json!({"items": [{"order_id": "O1"}, {"order_id": 2}], "order_id": "ignored"});
    let text = message(EventType::OrderShip, &items).to_string();
    let events = decode(EventType::OrderShip, &parse(&text).unwrap()).unwrap();
    let ids: Vec<_> = events.iter().map(Event::subject).collect();
    assert_eq!(ids, ["O1", "2"]);

    let table = [
        (json!([]), "data.items is empty"),
        (
            json!({}),
            "data.items is an object, expected a list of objects",
        ),
        (
            json!([{"order_id": "O1"}, 5]),
            "data.items[1] is a number, expected an object",
        ),
        (
            json!([{"order_id": "O1"}, {}]),
            "data.items[1].order_id is missing",
        ),
    ];
    for (items, expected) in table {
        let text = message(EventType::OrderShip, &json!({"items": items})).to_string();
        let malformed = decode(EventType::OrderShip, &parse(&text).unwrap()).unwrap_err();
        assert_eq!(malformed.to_string(), expected);
    }
    // A line within an item has the whole path.
    let order = with(
        EventType::OrderCreate,
        "lines",
        json!([{"sku_id": "S", "qty": 0}]),
    );
    let text = message(EventType::OrderCreate, &json!({"items": [order]})).to_string();
    let malformed = decode(EventType::OrderCreate, &parse(&text).unwrap()).unwrap_err();
    assert!(
        malformed
            .to_string()
            .starts_with("data.items[0].lines[0].qty is 0")
    );
}

// There and back.

fn round_trip(event: &Event) -> Event {
    let outgoing = Outgoing::from(event);
    let meta = Meta {
        id: "m-1",
        source: "orderonce/order",
        time: DAY,
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    };
    let text = encode(meta, &outgoing);
    let envelope = parse(&text).unwrap();
    assert_eq!(envelope.id, meta.id);
    assert_eq!(envelope.source, meta.source);
    assert_eq!(envelope.time, Some(DAY));
    assert_eq!(envelope.traceparent.as_deref(), meta.traceparent);
    assert_eq!(envelope.event_type, event.event_type().name());
    assert_eq!(envelope.subject, event.subject());
    decode(event.event_type(), &envelope).unwrap().remove(0)
}

fn event_of_every_kind(text: &str, remark: Option<&str>, number: i64) -> Vec<Event> {
    let remark = || remark.map(str::to_owned);
    let order_ref = || OrderRef { order_id: id(text) };
    let refund = |amount| {
        OrderEvent::RefundSucceeded(RefundSucceeded {
            order_id: id(text),
            provider: id(text),
            refund_no: id(text),
            trade_no: remark().map(|_| id(text)),
            amount,
            currency: Currency::GBP,
        })
    };
    let adjust = |adjustment, version| {
        InventoryEvent::Adjust(StockAdjust {
            adjustment_id: id(text),
            sku_id: id(text),
            adjustment,
            version,
            reason: remark(),
        })
    };
    let line = |charge, amount_minor| OrderLine {
        sku_id: id(text),
        qty: number,
        unit_price_minor: amount_minor,
        amount_minor,
        charge,
    };
    let goods = || StockLine {
        sku_id: id(text),
        qty: number,
    };
    let change = || AccountChange {
        user_id: id(text),
        kind: id(text),
        source_type: id(text),
        source_id: id(text),
        amount: number,
    };
    let reverse = |amount| {
        AccountEvent::Reverse(AccountReverse {
            user_id: id(text),
            kind: id(text),
            source_type: id(text),
            source_id: id(text),
            of_source_type: id(text),
            of_source_id: id(text),
            amount,
        })
    };
    let orders = [
        OrderEvent::Create(OrderCreate {
            order_id: id(text),
            user_id: id(text),
            currency: Currency::GBP,
            total_minor: number,
            lines: vec![line(false, number), line(true, number), line(true, -number)],
            pay_within_seconds: remark().map(|_| u32::MAX),
        }),
        OrderEvent::Cancel(OrderCancel {
            order_id: id(text),
            reason: remark(),
        }),
        OrderEvent::Expire(OrderExpire {
            order_id: id(text),
            seen_due: None,
        }),
        OrderEvent::Ship(order_ref()),
        OrderEvent::Complete(order_ref()),
        OrderEvent::Refund(OrderRefund {
            order_id: id(text),
            refund_id: id(text),
            amount_minor: remark().map(|_| number),
            reason: remark(),
        }),
        OrderEvent::Remind(OrderRemind {
            order_id: id(text),
            seen_due: None,
        }),
        OrderEvent::StockDeducted(order_ref()),
        OrderEvent::StockRejected(StockRejected {
            order_id: id(text),
            shortages: Vec::new(),
        }),
        OrderEvent::StockRejected(StockRejected {
            order_id: id(text),
            shortages: vec![Shortage {
                sku_id: id(text),
                wanted: number,
                available: 0,
            }],
        }),
        OrderEvent::PaymentSucceeded(PaymentSucceeded {
            order_id: id(text),
            provider: id(text),
            trade_no: id(text),
            out_trade_no: remark().map(|_| id(text)),
            trade_status: remark().map(|_| text.to_owned()),
            amount_minor: number,
            currency: Currency::GBP,
        }),
        OrderEvent::PaymentFailed(PaymentFailed {
            order_id: id(text),
            provider: id(text),
            trade_no: id(text),
            reason: remark(),
        }),
        refund(RefundAmount::Own(number)),
        refund(RefundAmount::RunningTotal(number)),
        OrderEvent::RefundFailed(RefundFailed {
            order_id: id(text),
            provider: id(text),
            refund_no: id(text),
            reason: remark(),
        }),
    ];
    let inventory = [
        InventoryEvent::Created(OrderCreated {
            order_id: id(text),
            user_id: id(text),
            lines: vec![goods(), goods()],
        }),
        InventoryEvent::Created(OrderCreated {
            order_id: id(text),
            user_id: id(text),
            lines: Vec::new(),
        }),
        InventoryEvent::Closed(OrderClosed {
            order_id: id(text),
            reason: "cancelled".to_owned(),
        }),
        InventoryEvent::Return(StockReturn {
            return_id: id(text),
            order_id: id(text),
            lines: vec![goods()],
        }),
        adjust(Adjustment::Set(number), Some(number)),
        adjust(Adjustment::Change(-number), None),
    ];
    let accounts = [
        AccountEvent::Completed(OrderCompleted {
            order_id: id(text),
            user_id: id(text),
            currency: Currency::GBP,
            paid_minor: number,
            refunded_minor: 0,
        }),
        AccountEvent::Refunded(OrderRefunded {
            order_id: id(text),
            user_id: id(text),
            provider: id(text),
            refund_no: id(text),
            currency: Currency::GBP,
            amount_minor: number,
            paid_minor: number,
            refunded_minor: number,
            completed: remark().is_some(),
        }),
        AccountEvent::Credit(change()),
        AccountEvent::Debit(change()),
        reverse(None),
        reverse(Some(number)),
    ];
    let orders = orders.into_iter().map(Event::Order);
    let inventory = inventory.into_iter().map(Event::Inventory);
    let accounts = accounts.into_iter().map(Event::Account);
    orders.chain(inventory).chain(accounts).collect()
}

#[test]
fn every_event_that_a_role_consumes_comes_back_as_it_went() {
    let mut types = BTreeSet::new();
    for (remark, number) in [(None, 1), (Some("changed my mind"), MAX_QTY)] {
        for event in event_of_every_kind("O1", remark, number) {
            assert_eq!(round_trip(&event), event);
            types.insert(event.event_type());
        }
    }
    let consumed = EventType::iter().filter(|event_type| event_type.consumer().is_some());
    assert_eq!(types, consumed.collect());
}

// B35: no folding, no trimming, no normalising.
#[test]
fn ids_keep_case_accents_and_spaces() {
    let ids = [
        "Ab1",
        "aB1",
        "é1",
        "e\u{301}1",
        "e1",
        "M1 ",
        " M1",
        "M1",
        "令單",
        "a/b%~:",
    ];
    let mut seen = BTreeSet::new();
    for text in ids {
        for event in event_of_every_kind(text, None, 1) {
            assert_eq!(round_trip(&event), event);
        }
        let read = read(EventType::OrderShip, &json!({"order_id": text})).unwrap();
        let Event::Order(read) = read else {
            panic!("{read:?}")
        };
        assert_eq!(read.order_id().as_str(), text);
        assert!(seen.insert((read.key(), read.fingerprint().0)));
    }
}

// B43: a number that is an id is taken digit by digit.
#[test]
fn numeric_ids_are_exact() {
    let long = "9".repeat(100);
    for digits in ["738529527931269425", "9007199254740993", "00000007", &long] {
        let data = with(EventType::OrderShip, "order_id", json!("DIGITS"));
        let text = message(EventType::OrderShip, &data).to_string();
        if digits.starts_with('0') {
            // JSON has no such number; as a text it keeps its noughts.
            let text = text.replace("DIGITS", digits);
            let events = decode(EventType::OrderShip, &parse(&text).unwrap()).unwrap();
            assert_eq!(events[0].subject(), digits);
            continue;
        }
        let number = text.replace("\"DIGITS\"", digits);
        let quoted = text.replace("DIGITS", digits);
        let of_number = decode(EventType::OrderShip, &parse(&number).unwrap()).unwrap();
        assert_eq!(of_number[0].subject(), digits);
        let of_text = decode(EventType::OrderShip, &parse(&quoted).unwrap()).unwrap();
        assert_eq!(of_number, of_text);
    }
}

// B45: no database has to store a NUL, and no message is refused for one in a remark.
#[test]
fn a_nul_in_a_remark_becomes_a_character_that_every_database_stores() {
    use EventType as T;
    for event_type in [
        T::OrderCancel,
        T::OrderRefund,
        T::PaymentFailed,
        T::RefundFailed,
        T::StockAdjust,
        T::OrderClosed,
    ] {
        let nul = read(event_type, &with(event_type, "reason", json!("a\u{0}b"))).unwrap();
        let replaced = read(event_type, &with(event_type, "reason", json!("a\u{FFFD}b"))).unwrap();
        assert_eq!(nul, replaced);
        let wrong = with(event_type, "reason", json!(5));
        assert_eq!(
            problem(event_type, &wrong),
            "data.reason is a number, expected a text"
        );
        if event_type != T::OrderClosed {
            for none in [json!(""), json!("  "), Value::Null] {
                let blank = read(event_type, &with(event_type, "reason", none));
                assert_eq!(blank, read(event_type, &sample(event_type)));
            }
        }
    }
}

/// The key and the fingerprint of a message's event.
fn identity(event_type: EventType, text: &str) -> (Key, Fingerprint) {
    let rule = points_rule();
    match decode(event_type, &parse(text).unwrap()).unwrap().remove(0) {
        Event::Order(event) => (event.key(), event.fingerprint()),
        Event::Inventory(event) => (event.key(), event.fingerprint()),
        Event::Account(event) => (
            crate::domain::account::key(&event, &rule),
            event.fingerprint(),
        ),
        Event::Notice(notice) => panic!("{notice:?}"),
    }
}

// B39: ids longer than a column that share its width stay two.
#[test]
fn long_ids_that_share_their_beginning_are_two_orders() {
    let order = |last: &str| {
        let data = json!({"order_id": format!("{}{last}", "x".repeat(299))});
        identity(
            EventType::OrderShip,
            &message(EventType::OrderShip, &data).to_string(),
        )
    };
    let (a, b) = (order("a"), order("b"));
    assert_ne!(a.0, b.0);
    assert_ne!(a.1.0, b.1.0);
    assert!(a.0.as_str().len() <= 191);
}

// B41: what a producer's retry changes is in neither key nor fingerprint.
#[test]
fn a_copy_with_another_id_time_and_trace_is_the_same_event() {
    for Sample {
        event_type, data, ..
    } in samples()
    {
        let first = message(event_type, &data);
        let mut copy = first.clone();
        copy["id"] = json!("m-2");
        copy["source"] = json!("shop-eu");
        copy["time"] = json!("2011-01-01T00:00:00Z");
        copy["traceparent"] = json!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        copy["data"]["sent_at"] = json!(1_291_191_960);
        copy["data"]["trace_id"] = json!("b7ad6b7169203331");
        assert_eq!(
            identity(event_type, &first.to_string()),
            identity(event_type, &copy.to_string()),
            "{event_type}"
        );
    }
}

#[test]
fn a_request_that_reuses_a_key_for_other_content_shows() {
    let pay = |amount: i64| {
        let data = with(EventType::PaymentSucceeded, "amount_minor", json!(amount));
        let text = message(EventType::PaymentSucceeded, &data).to_string();
        identity(EventType::PaymentSucceeded, &text)
    };
    assert_eq!(pay(500).0, pay(501).0);
    assert_ne!(pay(500).1.0, pay(501).1.0);
}

#[test]
fn decisions_on_the_greatest_numbers_stay_within_64_bits() {
    let context = Context {
        now: DAY,
        pay_timeout: Duration::from_mins(30),
        remind_before: None,
        number_taken: false,
        noted: false,
    };
    let events = event_of_every_kind("O1", Some("x"), MAX_AMOUNT);
    let mut state = OrderState::default();
    for event in &events {
        if let Event::Order(event) = event {
            let decision = order::decide(&state, event, &context);
            if let Some(order) = decision.writes.order {
                state.order = Some(order);
            }
            state.payments.extend(decision.writes.payment);
            state.refunds.extend(decision.writes.refund);
        }
    }
    assert!(state.order.is_some());

    let full = Stock {
        sku_id: id("S1"),
        available: inventory::MAX_UNITS,
        version: 1,
    };
    let stock = HashMap::from([(full.sku_id.clone(), full)]);
    let state = InventoryState {
        reservation: None,
        stock: &stock,
        flows: &[],
    };
    let lines = vec![
        StockLine {
            sku_id: id("S1"),
            qty: MAX_QTY,
        };
        1_000
    ];
    let created = InventoryEvent::Created(OrderCreated {
        order_id: id("O1"),
        user_id: id("U1"),
        lines,
    });
    assert_eq!(inventory::decide(state, &created).verdict, Verdict::Applied);
    for adjustment in [
        Adjustment::Change(MAX_QTY),
        Adjustment::Change(-MAX_QTY),
        Adjustment::Set(0),
    ] {
        let adjust = InventoryEvent::Adjust(StockAdjust {
            adjustment_id: id("J1"),
            sku_id: id("S1"),
            adjustment,
            version: None,
            reason: None,
        });
        let _ = inventory::decide(state, &adjust);
    }
}

#[test]
fn each_type_is_read_by_its_own_role_only() {
    let data = Fields::parse("{}", Path::Root("data")).unwrap();
    for event_type in EventType::iter() {
        let readers = [
            order_event(event_type, &data).is_some(),
            inventory_event(event_type, &data).is_some(),
            account_event(event_type, &data).is_some(),
        ];
        let consumer = event_type.consumer();
        let is = |role| consumer == Some(role);
        let expected = [
            is(RoleName::ORDER) || is(RoleName::PAYMENT),
            is(RoleName::INVENTORY),
            is(RoleName::ACCOUNT),
        ];
        assert_eq!(readers, expected, "{event_type}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Envelope::parse(&bytes, &Limits::default());
    }

    #[test]
    fn arbitrary_json_never_panics(text in "[\\[\\]{}\",:0-9eE.+\\-a-z\\\\ \u{0}-\u{20}]{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_mutated_message_never_panics(
        which in 0..20_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
    ) {
        let Sample { event_type, data, .. } = samples().remove(which);
        let mut bytes = message(event_type, &data).to_string().into_bytes();
        for (place, byte, how) in changes {
            let at = place.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok(envelope) = Envelope::parse(&bytes, &Limits::default()) {
            let _ = decode(event_type, &envelope);
        }
    }

    #[test]
    fn any_identifier_and_remark_comes_back_as_it_went(
        text in "\\PC{1,60}",
        remark in proptest::option::of(".{0,60}"),
        number in 1..=MAX_QTY,
    ) {
        prop_assume!(!text.trim().is_empty() && text.len() <= 512);
        // What `remark` makes of a text is what it keeps.
        let remark = remark.map(|remark| remark.replace('\0', "\u{FFFD}"));
        let remark = remark.filter(|remark| !remark.trim().is_empty());
        for event in event_of_every_kind(&text, remark.as_deref(), number) {
            prop_assert_eq!(round_trip(&event), event);
        }
    }
}
