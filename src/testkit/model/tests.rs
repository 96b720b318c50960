use super::*;
use crate::testkit::stories::{self, Size};
use fastrand::Rng;
use serde_json::json;
use std::collections::{BTreeSet, HashMap};

const NOW: i64 = 1_700_000_000_000;

/// A model that is told events by type, at one time.
#[derive(Default)]
struct Told(Model);

impl Told {
    fn tell(&mut self, event_type: &str, data: Value) -> Prediction {
        self.tell_at(event_type, data, NOW)
    }

    fn tell_at(&mut self, event_type: &str, data: Value, now_ms: i64) -> Prediction {
        let role = consumer(event_type).unwrap();
        self.0.deliver(role, event_type, &data, now_ms)
    }

    /// Order O1 of U1 over 10.00 CNY.
    fn order(&mut self) {
        let said = self.tell("order.create", order(1000));
        assert_eq!(said.outcome, "applied");
    }

    /// The same, and paid by T1.
    fn paid(&mut self) {
        self.order();
        let said = self.tell("payment.succeeded", payment("T1"));
        assert_eq!(types(&said), ["order.paid"]);
    }

    fn status(&self) -> (String, i64, i64, i64) {
        let order = self.0.snapshot().orders.remove("O1").unwrap();
        let (paid, refunded) = (order.paid_minor, order.refunded_minor);
        (order.status, order.version, paid, refunded)
    }

    fn stock(&self, sku_id: &str) -> (i64, i64) {
        let row = self.0.snapshot().stock.remove(sku_id).unwrap();
        (row.available, row.version)
    }

    fn balance(&self) -> i64 {
        self.0.snapshot().accounts["U1"]["POINTS"].balance
    }
}

fn order(total: i64) -> Value {
    json!({
        "order_id": "O1",
        "user_id": "U1",
        "currency": "CNY",
        "total_minor": total,
        "lines": [
            { "sku_id": "a", "qty": 2, "unit_price_minor": 100, "amount_minor": 200 },
            { "sku_id": "POST", "qty": 1, "unit_price_minor": 5, "amount_minor": 5, "charge": true },
            { "sku_id": "a", "qty": 1, "unit_price_minor": 100, "amount_minor": 100 },
        ],
    })
}

fn payment(trade_no: &str) -> Value {
    json!({
        "order_id": "O1", "provider": "alipay", "trade_no": trade_no,
        "amount_minor": 1000, "currency": "CNY",
    })
}

fn refund(refund_no: &str, field: &str, amount: i64) -> Value {
    json!({
        "order_id": "O1", "provider": "alipay", "refund_no": refund_no,
        field: amount, "currency": "CNY",
    })
}

fn o1() -> Value {
    json!({ "order_id": "O1" })
}

fn types(said: &Prediction) -> Vec<&str> {
    said.emits.iter().map(|it| it.event_type).collect()
}

/// Outcome, and rejection or token.
fn brief(said: &Prediction) -> (&str, &str) {
    let detail = said.rejection.or(said.token.as_deref());
    (said.outcome, detail.unwrap_or_default())
}

fn woken(said: &Prediction) -> Vec<&str> {
    said.wakes.iter().map(|it| it.key.as_str()).collect()
}

#[test]
fn keys_and_tokens_escape_their_own_separator() {
    assert_eq!(joined(&["a/b:c", "%~"], "/"), "a%2Fb:c/%25%7E");
    assert_eq!(joined(&["a/b:c", "%~"], ":"), "a/b%3Ac:%25%7E");
    let refunded = json!({
        "order_id": "O/1", "user_id": "U1", "provider": "p", "refund_no": "R1",
    });
    assert_eq!(
        key("order.refunded", &refunded, false).unwrap(),
        "U1/POINTS/REFUND/O%252F1%2Fp%2FR1/reverse"
    );
}

#[test]
fn a_second_payment_is_surplus_and_given_back() {
    let mut it = Told::default();
    it.paid();
    let said = it.tell("payment.succeeded", payment("T2"));
    assert_eq!(
        (said.outcome, types(&said)),
        ("applied", vec!["refund.requested"])
    );
    assert_eq!(
        said.emits[0].data,
        json!({
            "order_id": "O1", "provider": "alipay", "trade_no": "T2",
            "refund_no": refund_no("alipay", "T2"), "amount_minor": 1000, "currency": "CNY",
        })
    );
    assert_eq!(it.status(), ("PAID".into(), 3, 1000, 0));

    let answer = refund(&refund_no("alipay", "T2"), "amount_minor", 1000);
    let said = it.tell("refund.succeeded", answer.clone());
    assert_eq!((said.outcome, types(&said)), ("applied", vec![]));
    assert_eq!(it.status(), ("PAID".into(), 4, 1000, 0));
    assert_eq!(it.tell("refund.succeeded", answer).outcome, "duplicate");
}

#[test]
fn a_refund_number_is_24_hex_digits_of_the_hash() {
    // printf 'alipay\0T2' | sha256sum
    assert_eq!(refund_no("alipay", "T2"), "RFc1f9b870294d52c2c6609c79");
}

#[test]
fn further_statuses_and_other_content_of_a_trade_are_told_apart() {
    let mut it = Told::default();
    it.paid();
    let mut further = payment("T1");
    further["trade_status"] = json!("TRADE_FINISHED");
    assert_eq!(it.tell("payment.succeeded", further).outcome, "stale");
    let mut other = payment("T1");
    other["amount_minor"] = json!(999);
    assert_eq!(
        it.tell("payment.succeeded", other.clone()).outcome,
        "conflict"
    );
    other["trade_status"] = json!("TRADE_CLOSED");
    assert_eq!(it.tell("payment.succeeded", other).outcome, "conflict");
    let mut renamed = payment("T1");
    renamed["out_trade_no"] = json!("X");
    assert_eq!(it.tell("payment.succeeded", renamed).outcome, "duplicate");
}

#[test]
fn a_payment_that_does_not_fit_is_rejected_and_told() {
    let mut it = Told::default();
    it.order();
    let mut wrong = payment("T1");
    wrong["amount_minor"] = json!(1);
    let said = it.tell("payment.succeeded", wrong.clone());
    assert_eq!(brief(&said), ("rejected", "amount_mismatch"));
    assert_eq!(said.emits[0].data["reason"], "amount_mismatch");
    assert_eq!(it.tell("payment.succeeded", wrong).outcome, "duplicate");
    assert_eq!(it.status(), ("WAIT_PAY".into(), 1, 0, 0));
}

#[test]
fn a_late_payment_is_given_back() {
    let mut it = Told::default();
    it.order();
    let said = it.tell("order.cancel", o1());
    assert_eq!(said.emits[0].data["reason"], "cancelled");
    let said = it.tell("payment.succeeded", payment("T1"));
    assert_eq!(
        (said.outcome, types(&said)),
        ("applied", vec!["refund.requested"])
    );
    assert_eq!(it.status(), ("CLOSED".into(), 3, 0, 0));
}

#[test]
fn running_totals_become_differences() {
    let mut it = Told::default();
    it.paid();
    it.tell(
        "refund.succeeded",
        refund("R1", "total_refunded_minor", 300),
    );
    let said = it.tell(
        "refund.succeeded",
        refund("R3", "total_refunded_minor", 900),
    );
    assert_eq!(said.emits[0].data["amount_minor"], 600);
    let said = it.tell(
        "refund.succeeded",
        refund("R2", "total_refunded_minor", 500),
    );
    assert_eq!(said.outcome, "stale");
    let said = it.tell("refund.succeeded", refund("R4", "amount_minor", 101));
    assert_eq!(brief(&said), ("rejected", "refund_exceeds_paid"));
    let said = it.tell(
        "refund.succeeded",
        refund("R5", "total_refunded_minor", 1000),
    );
    assert_eq!(types(&said), ["order.refunded", "order.closed"]);
    assert_eq!(said.emits[1].data["reason"], "refunded");
    assert_eq!(it.status(), ("REFUNDED".into(), 5, 1000, 1000));
}

#[test]
fn cancelling_a_paid_order_asks_for_what_is_left() {
    let mut it = Told::default();
    it.paid();
    it.tell("refund.succeeded", refund("R1", "amount_minor", 300));
    let said = it.tell("order.cancel", o1());
    assert_eq!(types(&said), ["order.closed", "refund.requested"]);
    assert_eq!(said.emits[1].data["amount_minor"], 700);
    assert_eq!(said.emits[1].data["trade_no"], "T1");
}

#[test]
fn early_events_are_parked_and_woken_step_by_step() {
    let mut it = Told::default();
    let said = it.tell("order.complete", o1());
    assert_eq!(brief(&said), ("parked", "order:O1:WAIT_PAY"));
    assert_eq!(it.tell("order.complete", o1()).outcome, "duplicate");
    it.tell("payment.succeeded", payment("T1"));
    let said = it.tell("order.create", order(1000));
    assert_eq!(
        woken(&said),
        [
            "O1/order.complete",
            "alipay/O1/SUCCEEDED/T1/payment.succeeded"
        ]
    );

    let said = it.tell("order.complete", o1());
    assert_eq!(brief(&said), ("parked", "order:O1:SHIPPED"));
    assert_eq!(it.tell("order.complete", o1()).outcome, "duplicate");
    assert_eq!(
        it.tell("payment.succeeded", payment("T1")).outcome,
        "applied"
    );
    let mut other = payment("T1");
    other["amount_minor"] = json!(1);
    assert_eq!(it.tell("payment.succeeded", other).outcome, "conflict");
    let said = it.tell("order.ship", o1());
    assert_eq!(woken(&said), ["O1/order.complete"]);
    let said = it.tell("order.complete", o1());
    assert_eq!(types(&said), ["order.completed"]);
    assert!(it.0.snapshot().parked.is_empty());
}

#[test]
fn the_end_of_an_order_wakes_all_that_waits_for_it() {
    let mut it = Told::default();
    it.order();
    it.tell("order.ship", o1());
    it.tell("order.complete", o1());
    it.tell("refund.succeeded", refund("R1", "amount_minor", 1));
    let said = it.tell("order.cancel", o1());
    assert_eq!(
        woken(&said),
        [
            "O1/order.complete",
            "O1/order.ship",
            "alipay/O1/R1/refund.succeeded"
        ]
    );
    assert_eq!(
        brief(&it.tell("order.ship", o1())),
        ("rejected", "order_closed")
    );
    let said = it.tell("refund.succeeded", refund("R1", "amount_minor", 1));
    assert_eq!(brief(&said), ("rejected", "payment_unknown"));
}

#[test]
fn an_order_expires_at_its_deadline_or_by_the_clock() {
    let mut it = Told::default();
    it.order();
    let said = it.tell_at("order.expire", o1(), NOW + 1_799_999);
    assert_eq!(brief(&said), ("rejected", "not_due"));
    assert_eq!(
        it.tell_at("order.expire", o1(), NOW + 1_800_000).outcome,
        "duplicate"
    );
    let said = it.0.deliver_clock_expire("O1", NOW + 1_800_000);
    assert_eq!(said.key, "O1/order.expire/clock");
    assert_eq!(
        said.emits[0].data,
        json!({ "order_id": "O1", "reason": "expired" })
    );
}

#[test]
fn an_order_for_nothing_is_paid_at_once() {
    let mut it = Told::default();
    let said = it.tell("order.create", order(0));
    assert_eq!(types(&said), ["order.created", "order.paid"]);
    assert_eq!(it.status(), ("PAID".into(), 1, 0, 0));
    assert_eq!(types(&it.tell("order.cancel", o1())), ["order.closed"]);
}

#[test]
fn lines_of_one_sku_are_added_up_before_they_are_checked() {
    let mut it = Told::default();
    let open = json!({ "adjustment_id": "A1", "sku_id": "a", "set": 2, "version": 0 });
    it.tell("stock.adjust", open);
    let said = it.tell("order.create", order(1000));
    let created = said.emits[0].data.clone();
    assert_eq!(
        created["lines"],
        json!([{ "sku_id": "a", "qty": 2 }, { "sku_id": "a", "qty": 1 }])
    );
    let said = it.tell("order.created", created.clone());
    assert_eq!(said.outcome, "applied");
    assert_eq!(
        said.emits[0].data,
        json!({
            "order_id": "O1",
            "shortages": [{ "sku_id": "a", "wanted": 3, "available": 2 }],
        })
    );
    assert_eq!(it.stock("a"), (2, 1));
    let said = it.tell("stock.rejected", said.emits[0].data.clone());
    assert_eq!(said.emits[0].data["reason"], "out_of_stock");
}

#[test]
fn stock_comes_back_once() {
    let mut it = Told::default();
    let back = |id: &str, qty: i64| json!({ "return_id": id, "order_id": "O1", "lines": [{ "sku_id": "a", "qty": qty }] });
    let open = json!({ "adjustment_id": "A1", "sku_id": "a", "set": 10, "version": 0 });
    it.tell("stock.adjust", open.clone());
    let said = it.tell("stock.return", back("B1", 1));
    assert_eq!(brief(&said), ("parked", "stock:O1:DEDUCTED"));
    let created = it.tell("order.create", order(1000)).emits[0].data.clone();
    let said = it.tell("order.created", created);
    assert_eq!(
        (types(&said), woken(&said)),
        (vec!["stock.deducted"], vec!["B1/return"])
    );
    assert_eq!(it.stock("a"), (7, 2));
    it.tell("stock.return", back("B1", 1));
    assert_eq!(it.stock("a"), (8, 3));
    let closed = json!({ "order_id": "O1", "reason": "cancelled" });
    it.tell("order.closed", closed.clone());
    assert_eq!(it.stock("a"), (10, 4));
    let said = it.tell("stock.return", back("B2", 1));
    assert_eq!(brief(&said), ("rejected", "nothing_deducted"));

    it.0.drop_claims();
    assert_eq!(it.tell("stock.adjust", open).outcome, "duplicate");
    assert_eq!(it.tell("stock.return", back("B1", 1)).outcome, "duplicate");
    assert_eq!(it.tell("order.closed", closed).outcome, "stale");
    assert_eq!(it.stock("a"), (10, 4));
}

#[test]
fn stock_is_adjusted_by_the_version_that_was_seen() {
    let mut it = Told::default();
    let mut adjust = |id: &str, field: &str, n: i64, version: Option<i64>| {
        let mut data = json!({ "adjustment_id": id, "sku_id": "a", field: n });
        if let Some(version) = version {
            data["version"] = json!(version);
        }
        let said = it.tell("stock.adjust", data);
        said.rejection.unwrap_or(said.outcome)
    };
    assert_eq!(adjust("A1", "set", 5, Some(1)), "version_mismatch");
    assert_eq!(adjust("A2", "set", 5, Some(0)), "applied");
    assert_eq!(adjust("A3", "change", -6, None), "insufficient_stock");
    assert_eq!(adjust("A4", "change", i64::MAX, None), "amount_overflow");
    assert_eq!(adjust("A5", "change", -5, Some(1)), "applied");
    assert_eq!(it.stock("a"), (0, 2));
}

#[test]
fn an_order_that_was_closed_first_deducts_nothing() {
    let mut it = Told::default();
    let closed = json!({ "order_id": "O1", "reason": "cancelled" });
    assert_eq!(it.tell("order.closed", closed).outcome, "applied");
    let created = json!({ "order_id": "O1", "user_id": "U1", "lines": [] });
    assert_eq!(it.tell("order.created", created).outcome, "stale");
    assert_eq!(it.0.snapshot().reservations["O1"].status, "RELEASED");
}

#[test]
fn points_follow_what_stays_paid() {
    let mut it = Told::default();
    let completed = json!({
        "order_id": "O1", "user_id": "U1", "currency": "CNY",
        "paid_minor": 1099, "refunded_minor": 0,
    });
    let refunded = |no: &str, refunded: i64, completed: bool| {
        json!({
            "order_id": "O1", "user_id": "U1", "provider": "alipay", "refund_no": no,
            "currency": "CNY", "amount_minor": 1, "paid_minor": 1099,
            "refunded_minor": refunded, "completed": completed,
        })
    };
    let said = it.tell("order.refunded", refunded("R0", 1, false));
    assert_eq!((said.outcome, types(&said)), ("applied", vec![]));
    let said = it.tell("order.refunded", refunded("R1", 100, true));
    assert_eq!(brief(&said), ("parked", "flow:U1:POINTS:ORDER:O1"));
    let said = it.tell("order.completed", completed);
    assert_eq!(said.emits[0].data["balance"], 10);
    assert_eq!(woken(&said), ["U1/POINTS/REFUND/O1%2Falipay%2FR1/reverse"]);
    let said = it.tell("order.refunded", refunded("R1", 100, true));
    assert_eq!(
        said.emits[0].data,
        json!({
            "user_id": "U1", "kind": "POINTS", "source_type": "REFUND",
            "source_id": "O1/alipay/R1", "amount": -1, "balance": 9,
        })
    );
    let said = it.tell("order.refunded", refunded("R2", 200, true));
    assert_eq!(said.emits[0].data["amount"], -1);
    let said = it.tell("order.refunded", refunded("R3", 160, true));
    assert_eq!(said.emits[0].data["amount"], 0);

    let spend = json!({
        "user_id": "U1", "kind": "POINTS", "source_type": "SPEND", "source_id": "D1", "amount": 8,
    });
    it.tell("account.debit", spend);
    let said = it.tell("order.refunded", refunded("R4", 1099, true));
    assert_eq!(brief(&said), ("rejected", "insufficient_balance"));
    assert_eq!(types(&said), ["account.rejected"]);
    assert_eq!(it.balance(), 0);
}

#[test]
fn a_reversal_takes_back_no_more_than_is_left() {
    let mut it = Told::default();
    let reverse = |id: &str, amount: Option<i64>| {
        let mut data = json!({
            "user_id": "U1", "kind": "POINTS", "source_type": "UNDO", "source_id": id,
            "of_source_type": "PROMO", "of_source_id": "P:1",
        });
        if let Some(amount) = amount {
            data["amount"] = json!(amount);
        }
        data
    };
    let said = it.tell("account.reverse", reverse("1", None));
    assert_eq!(brief(&said), ("parked", "flow:U1:POINTS:PROMO:P%3A1"));
    let credit = json!({
        "user_id": "U1", "kind": "POINTS", "source_type": "PROMO", "source_id": "P:1",
        "amount": 10,
    });
    assert_eq!(woken(&it.tell("account.credit", credit)).len(), 1);
    it.tell("account.reverse", reverse("2", Some(4)));
    let said = it.tell("account.reverse", reverse("3", Some(7)));
    assert_eq!(brief(&said), ("rejected", "nothing_to_reverse"));
    let said = it.tell("account.reverse", reverse("1", None));
    assert_eq!(said.emits[0].data["amount"], -6);
    let said = it.tell("account.reverse", reverse("4", None));
    assert_eq!(brief(&said), ("rejected", "nothing_to_reverse"));
    assert_eq!(it.balance(), 0);
}

#[test]
fn what_a_role_does_not_consume_is_dead() {
    let mut model = Model::default();
    assert_eq!(
        model.deliver("order", "order.paid", &o1(), NOW).outcome,
        "dead"
    );
    assert_eq!(
        model.deliver("account", "order.ship", &o1(), NOW).outcome,
        "dead"
    );
    assert_eq!(
        model
            .deliver("order", "order.ship", &json!({}), NOW)
            .outcome,
        "dead"
    );
}

/// All messages of a played story and what became of them.
struct Played {
    model: Model,
    deliveries: Vec<(&'static str, String, Value, Prediction)>,
    /// Net change of each SKU by hand.
    adjusted: BTreeMap<String, i64>,
}

/// Plays a story with the system's own events, wake-ups, copies and some disorder.
fn play(seed: u64) -> Played {
    let mut rng = Rng::with_seed(seed);
    let size = Size {
        orders: 40,
        skus: 5,
        users: 4,
    };
    let story = stories::generate(&mut rng, size);
    let mut queue: Vec<_> = story.into_iter().rev().collect();
    let mut bodies = HashMap::new();
    let mut played = Played {
        model: Model::default(),
        deliveries: Vec::new(),
        adjusted: BTreeMap::new(),
    };
    while !queue.is_empty() {
        let at = queue.len() - 1 - rng.usize(0..queue.len().min(3));
        let message = queue[at].clone();
        if rng.u8(0..100) >= 20 {
            queue.remove(at);
        }
        let stories::StoryMessage { event_type, data } = message.clone();
        let role = message.role();
        let available = |model: &Model| {
            let sku_id = data["sku_id"].as_str().unwrap_or_default();
            model.stock.available(sku_id)
        };
        let before = available(&played.model);
        let said = played.model.deliver(role, &event_type, &data, NOW);
        if event_type == "stock.adjust" && said.outcome == "applied" {
            let sku_id = data["sku_id"].as_str().unwrap().to_owned();
            *played.adjusted.entry(sku_id).or_default() += available(&played.model) - before;
        }
        if said.outcome == "parked" {
            bodies.insert((role.to_owned(), said.key.clone()), message);
        }
        let woken = said.wakes.iter();
        let mut next: Vec<_> = woken
            .map(|it| bodies[&(it.role.clone(), it.key.clone())].clone())
            .collect();
        for emitted in &said.emits {
            if consumer(emitted.event_type).is_some() {
                next.push(stories::StoryMessage {
                    event_type: emitted.event_type.to_owned(),
                    data: emitted.data.clone(),
                });
            }
        }
        for message in next {
            let behind = rng.usize(0..6).min(queue.len());
            queue.insert(queue.len() - behind, message);
        }
        played.deliveries.push((role, event_type, data, said));
    }
    played
}

#[test]
fn stories_reach_every_outcome_and_rejection() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        for (.., said) in play(seed).deliveries {
            seen.insert(said.rejection.unwrap_or(said.outcome));
        }
    }
    let expected = [
        "already_completed",
        "already_shipped",
        "amount_mismatch",
        "applied",
        "conflict",
        "currency_mismatch",
        "duplicate",
        "insufficient_balance",
        "insufficient_stock",
        "not_due",
        "not_paid",
        "nothing_deducted",
        "nothing_out",
        "nothing_to_reverse",
        "number_of_another_order",
        "order_closed",
        "order_refunded",
        "parked",
        "payment_unknown",
        "refund_exceeds_paid",
        "stale",
        "version_mismatch",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn books_balance_at_the_end_of_a_story() {
    for seed in 0..20 {
        let played = play(seed);
        let snapshot = played.model.snapshot();
        for (sku_id, row) in &snapshot.stock {
            let sum = row.available + played.model.stock.out(sku_id);
            assert_eq!(sum, played.adjusted[sku_id], "seed {seed}, SKU {sku_id}");
            assert!(row.available >= 0, "seed {seed}, SKU {sku_id}");
        }
        for accounts in snapshot.accounts.values() {
            assert!(accounts.values().all(|it| it.balance >= 0), "seed {seed}");
        }
        for (paid, refunded) in played.model.orders.paid_and_refunded() {
            assert!(
                (0..=paid).contains(&refunded),
                "seed {seed}: {refunded} of {paid}"
            );
        }
        assert!(
            played.model.parked.values().all(|it| !it.woken),
            "seed {seed}"
        );
    }
}

#[test]
fn copies_change_nothing() {
    for seed in 0..20 {
        let mut played = play(seed);
        let snapshot = played.model.snapshot();
        for (role, event_type, data, _) in &played.deliveries {
            let said = played.model.deliver(role, event_type, data, NOW);
            assert!(
                ["duplicate", "conflict"].contains(&said.outcome),
                "seed {seed}: {said:?}"
            );
        }
        assert_eq!(played.model.snapshot(), snapshot, "seed {seed}");
    }
}

#[test]
fn copies_of_applied_events_move_nothing_when_their_keys_are_forgotten() {
    for seed in 0..20 {
        let mut played = play(seed);
        let without_versions = |model: &Model| {
            let mut snapshot = model.snapshot();
            snapshot.orders.values_mut().for_each(|it| it.version = 0);
            snapshot.claims.clear();
            snapshot
        };
        let before = without_versions(&played.model);
        played.model.drop_claims();
        for (role, event_type, data, said) in &played.deliveries {
            if said.outcome == "applied" {
                let again = played.model.deliver(role, event_type, data, NOW);
                assert!(
                    again.emits.is_empty(),
                    "seed {seed}: {event_type} {again:?}"
                );
            }
        }
        assert_eq!(without_versions(&played.model), before, "seed {seed}");
    }
}
