//! The table of an order's events and statuses, event by event through the doors.

use super::signing::till;
use super::{Counter, is_taken};
use crate::http::client::{Answer, Client, order};
use crate::site::until;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

const STATUSES: [&str; 7] = [
    "none",
    "WAIT_PAY",
    "PAID",
    "SHIPPED",
    "COMPLETED",
    "CLOSED",
    "REFUNDED",
];

/// What clients ask, with what is answered, and what a provider says, with what is claimed for it; and the status that
/// follows, if it is another.
const TABLE: &str = "
create, the same  | 201 applied -> WAIT_PAY | 200 duplicate | 200 duplicate | 200 duplicate | 200 duplicate | 200 duplicate | 200 duplicate
create, another   | 201 applied -> WAIT_PAY | 409 conflict | 409 conflict | 409 conflict | 409 conflict | 409 conflict | 409 conflict
cancel            | 202 parked | 200 applied -> CLOSED | 200 applied -> CLOSED | 409 already_shipped | 409 already_completed | 200 duplicate | 200 stale
ship              | 202 parked | 202 parked | 200 applied -> SHIPPED | 200 duplicate | 200 duplicate | 409 order_closed | 409 order_refunded
complete          | 202 parked | 202 parked | 202 parked | 200 applied -> COMPLETED | 200 duplicate | 409 order_closed | 409 order_refunded
refund            | 202 parked | 409 not_paid | 202 applied | 202 applied | 202 applied | 409 order_closed | 409 order_refunded
paid              | parked order:O:WAIT_PAY | applied -> PAID | applied | applied | applied | applied | applied
paid, again       | parked order:O:WAIT_PAY | applied -> PAID | applied | applied | applied | applied | applied
paid, too little  | parked order:O:WAIT_PAY | rejected amount_mismatch | applied | applied | applied | applied | applied
not paid          | parked order:O:WAIT_PAY | applied | stale | stale | stale | stale | stale
refunded          | parked order:O:WAIT_PAY | parked order:O:PAID | applied | applied | applied | rejected payment_unknown | stale
refunded, again   | parked order:O:WAIT_PAY | parked order:O:PAID | applied -> REFUNDED | applied -> REFUNDED | applied -> REFUNDED | rejected payment_unknown | applied
not refunded      | parked order:O:WAIT_PAY | stale | applied | applied | applied | applied | applied
";

/// What is asked by the API.
const ASKED: [&str; 6] = [
    "create, the same",
    "create, another",
    "cancel",
    "ship",
    "complete",
    "refund",
];

/// What a provider says.
const SAID: [&str; 7] = [
    "paid",
    "paid, again",
    "paid, too little",
    "not paid",
    "refunded",
    "refunded, again",
    "not refunded",
];

fn id(event: &str, status: &str) -> String {
    let event = event.replace(", ", "-").replace(' ', "-");
    format!("{event}.{status}")
}

/// The order stands at its status.
async fn bring(counter: &Counter, client: &Client) {
    let all = || {
        let events = ASKED.iter().chain(&SAID);
        events.flat_map(|event| STATUSES.map(|status| (id(event, status), status)))
    };
    for (id, status) in all() {
        if status != "none" {
            let created = client.post("/v1/orders", &order(&id, "S1")).await;
            created.is(201, "applied");
        }
        if ["PAID", "SHIPPED", "COMPLETED", "REFUNDED"].contains(&status) {
            is_taken(client, &paid(&id, "own", 1999)).await;
        }
        if status == "REFUNDED" {
            is_taken(client, &refunded(&id, "own", "full", 1999)).await;
        }
        let steps: &[&str] = match status {
            "SHIPPED" => &["ship"],
            "COMPLETED" => &["ship", "complete"],
            "CLOSED" => &["cancel"],
            _ => &[],
        };
        for step in steps {
            let path = format!("/v1/orders/{id}/{step}");
            let done = client.post(&path, &json!({})).await;
            assert!([200, 202].contains(&done.status), "{done:?}");
        }
    }
    let expected: BTreeMap<_, _> = all()
        .filter(|(_, status)| *status != "none")
        .map(|(id, status)| (id, status.to_owned()))
        .collect();
    until("each order has its status", async || {
        let rows: Vec<(String, String)> = { &counter.shop.site }
            .rows("SELECT order_id, status FROM orders")
            .await;
        rows.into_iter().collect::<BTreeMap<_, _>>() == expected
    })
    .await;
}

fn paid(order: &str, trade: &str, amount: i64) -> super::Call {
    say("paid", order, &json!({"trade": trade, "amount": amount}))
}

fn refunded(order: &str, trade: &str, number: &str, amount: i64) -> super::Call {
    let what = json!({"trade": format!("{trade}-{order}"), "refund": number, "amount": amount});
    say("refunded", order, &what)
}

fn say(what: &str, order: &str, fields: &Value) -> super::Call {
    let mut body = json!({"type": what, "order": order, "currency": "GBP"});
    for (name, value) in fields.as_object().unwrap() {
        // Numbers are unique to their order.
        body[name] = match value.as_str() {
            Some(text) if !text.ends_with(order) => json!(format!("{text}-{order}")),
            _ => value.clone(),
        };
    }
    till(&body)
}

async fn ask(client: &Client, event: &str, order_id: &str) -> Answer {
    let mut body = order(order_id, "S1");
    match event {
        "create, the same" => client.post("/v1/orders", &body).await,
        "create, another" => {
            body["user_id"] = json!("U2");
            client.post("/v1/orders", &body).await
        }
        "refund" => {
            let path = format!("/v1/orders/{order_id}/refunds");
            client.post(&path, &json!({"amount_minor": 500})).await
        }
        step => {
            let path = format!("/v1/orders/{order_id}/{step}");
            client.post(&path, &json!({})).await
        }
    }
}

async fn tell(client: &Client, event: &str, order_id: &str) {
    let call = match event {
        "paid" => paid(order_id, "new", 1999),
        "paid, again" => paid(order_id, "own", 1999),
        "paid, too little" => paid(order_id, "new", 10),
        "not paid" => say("failed", order_id, &json!({"trade": "new"})),
        "refunded" => refunded(order_id, "own", "new", 500),
        "refunded, again" => refunded(order_id, "own", "full", 1999),
        "not refunded" => say("refund_failed", order_id, &json!({"refund": "new"})),
        other => panic!("{other}"),
    };
    is_taken(client, &call).await;
}

/// What became of what was said: of the role `payment`, by the order and the part of the key that is of this call.
async fn outcomes(counter: &Counter) -> BTreeMap<(String, bool), String> {
    let rows: Vec<(String, String, String, Option<String>)> = { &counter.shop.site }
        .rows("SELECT subject, key, outcome, detail FROM idempotent_record WHERE role = 'payment'")
        .await;
    let outcome = |(subject, key, outcome, detail): (String, String, String, Option<String>)| {
        let is_new = key.contains("new-");
        let detail = detail.map_or_else(String::new, |detail| format!(" {detail}"));
        ((subject, is_new), format!("{outcome}{detail}"))
    };
    rows.into_iter().map(outcome).collect()
}

#[tokio::test]
async fn every_event_does_in_every_status_what_the_table_says() {
    let counter = Counter::new("").await;
    let (mut serving, client) = counter.shop.open_all().await;
    let stock = json!({"available": 1000});
    let stocked = client.put("/v1/stock/S1", ("if-none-match", "*"), &stock);
    assert_eq!(stocked.await.status, 200);
    bring(&counter, &client).await;

    let mut cells: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for event in ASKED {
        for status in STATUSES {
            let answer = ask(&client, event, &id(event, status)).await;
            let outcome = answer.body["outcome"].as_str();
            let what = outcome.or_else(|| answer.body["code"].as_str()).unwrap();
            cells.insert((event, status), format!("{} {what}", answer.status));
        }
    }
    for event in SAID {
        for status in STATUSES {
            tell(&client, event, &id(event, status)).await;
        }
    }
    // Everything that waits for nothing is decided.
    until("all is decided", async || {
        serving.is_alive();
        let queued = counter
            .count("SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM queue_message)");
        queued.await == 0
    })
    .await;
    let outcomes = outcomes(&counter).await;
    for event in SAID {
        for status in STATUSES {
            let is_new = !event.ends_with("again");
            let outcome = outcomes.get(&(id(event, status), is_new));
            let outcome = outcome.map_or("nothing", String::as_str);
            let outcome = outcome.replace(&id(event, status), "O");
            cells.insert((event, status), outcome);
        }
    }
    let rows: Vec<(String, String)> = { &counter.shop.site }
        .rows("SELECT order_id, status FROM orders")
        .await;
    let statuses: BTreeMap<_, _> = rows.into_iter().collect();
    let mut table = String::from("\n");
    for event in ASKED.iter().chain(&SAID) {
        for status in STATUSES {
            let new = statuses.get(&id(event, status));
            if let (Some(new), Some(cell)) = (new, cells.get_mut(&(*event, status)))
                && new != status
            {
                write!(cell, " -> {new}").unwrap();
            }
        }
        let row = STATUSES.map(|status| cells[&(*event, status)].as_str());
        writeln!(table, "{event:<17} | {}", row.join(" | ")).unwrap();
    }
    assert_eq!(table, TABLE, "{table}");
}
