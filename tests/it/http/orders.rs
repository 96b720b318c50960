//! The states of an order, through the door.

use super::Shop;
use super::client::{Client, order};
use crate::site::{Site, until};
use orderonce::broker::{Headers, Publication};
use rustix::process::Signal;
use serde_json::{Value, json};

/// What a provider reports.
async fn report(site: &Site, event_type: &str, data: Value) {
    let message = json!({
        "specversion": "1.0", "id": format!("{event_type}-{}", fastrand::u64(..)), "source": "test",
        "type": event_type, "subject": "test", "data": data,
    });
    let publication = Publication {
        message_id: "test".into(),
        event_type: event_type.into(),
        addressee: None,
        message: message.to_string().into(),
        headers: Headers::new(),
    };
    site.publish(&[publication]).await;
}

async fn pay(site: &Site, order_id: &str, trade_no: &str, amount: i64) {
    let data = json!({
        "order_id": order_id, "provider": "card", "trade_no": trade_no, "amount_minor": amount, "currency": "GBP",
    });
    report(site, "payment.succeeded", data).await;
}

async fn comes_to(client: &Client, order_id: &str, status: &str) -> Value {
    let mut body = Value::Null;
    until(&format!("{order_id} is {status}"), async || {
        body = client.get(&format!("/v1/orders/{order_id}")).await.body;
        body["status"] == status
    })
    .await;
    body
}

#[tokio::test]
async fn an_order_lives_its_life_through_the_door() {
    let shop = Shop::new("").await;
    let (mut serving, client) = shop.open_all().await;
    let stock = client
        .put(
            "/v1/stock/S1",
            ("if-none-match", "*"),
            &json!({"available": 5}),
        )
        .await;
    assert_eq!(
        (stock.status, stock.headers["etag"].to_str().unwrap()),
        (200, "\"1\"")
    );

    let created = client.post("/v1/orders", &order("O1", "S1")).await;
    created.is(201, "applied");
    assert_eq!(created.headers["location"], "/v1/orders/O1");
    // What is asked too early waits.
    let shipped = client.post("/v1/orders/O1/ship", &json!({})).await;
    shipped.is(202, "parked");
    assert_eq!(shipped.body["awaits"], "order:O1:PAID");
    pay(&shop.site, "O1", "T1", 1999).await;
    comes_to(&client, "O1", "SHIPPED").await;
    client
        .post("/v1/orders/O1/ship", &json!({}))
        .await
        .is(200, "duplicate");
    client
        .post("/v1/orders/O1/cancel", &json!({"reason": "late"}))
        .await
        .is_problem(409, "already_shipped");
    client
        .post("/v1/orders/O1/complete", &json!({}))
        .await
        .is(200, "applied");
    let read = comes_to(&client, "O1", "COMPLETED").await;
    assert_eq!(read["paid_minor"], 1999);
    assert_eq!(read["lines"][0]["sku_id"], "S1");
    assert_eq!(read["payments"][0]["status"], "ACCEPTED");
    let statuses: Vec<_> = read["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["to"])
        .collect();
    assert_eq!(statuses.first(), Some(&&json!("WAIT_PAY")));
    assert_eq!(statuses.last(), Some(&&json!("COMPLETED")));
    until("points are earned", async || {
        let accounts = client.get("/v1/accounts/U1").await.body;
        accounts["accounts"][0]["balance"] == 19
    })
    .await;
    until("the stock is deducted", async || {
        client.get("/v1/stock/S1").await.body["available"] == 4
    })
    .await;
    serving.settles(&shop.site).await;
    serving.stops(Signal::TERM).await;
    shop.site.reconciles();
}

#[tokio::test]
async fn a_payment_before_its_order_waits_for_it_and_a_late_one_is_given_back() {
    let shop = Shop::new("").await;
    let (mut serving, client) = shop.open_all().await;
    client
        .put(
            "/v1/stock/S1",
            ("if-none-match", "*"),
            &json!({"available": 5}),
        )
        .await;
    pay(&shop.site, "O1", "T1", 1999).await;
    until("the payment waits", async || {
        shop.site.number("SELECT count(*) FROM parked_event").await == 1
    })
    .await;
    client
        .post("/v1/orders", &order("O1", "S1"))
        .await
        .is(201, "applied");
    comes_to(&client, "O1", "PAID").await;

    client
        .post("/v1/orders", &order("O2", "S1"))
        .await
        .is(201, "applied");
    client
        .post("/v1/orders/O2/cancel", &json!({}))
        .await
        .is(200, "applied");
    pay(&shop.site, "O2", "T2", 1999).await;
    until("the refund is asked for", async || {
        let read = client.get("/v1/orders/O2").await.body;
        read["refunds"][0]["status"] == "REQUESTED" && read["status"] == "CLOSED"
    })
    .await;
    serving.settles(&shop.site).await;
    serving.stops(Signal::TERM).await;
    shop.site.reconciles();
}

#[tokio::test]
async fn money_is_asked_back_once_and_never_more_than_was_paid() {
    let shop = Shop::new("").await;
    let (mut serving, client) = shop.open_all().await;
    let stock = json!({"available": 5});
    client
        .put("/v1/stock/S1", ("if-none-match", "*"), &stock)
        .await;
    let path = "/v1/orders/O1/refunds";
    let part = json!({"refund_id": "A1", "amount_minor": 500});
    client
        .post("/v1/orders", &order("O1", "S1"))
        .await
        .is(201, "applied");
    let unpaid = client.post(path, &part).await;
    unpaid.is_problem(409, "not_paid");
    pay(&shop.site, "O1", "T1", 1999).await;
    comes_to(&client, "O1", "PAID").await;
    // The rejection was the answer to that request for good; this is another one.
    client.post(path, &part).await.is(200, "duplicate");
    let part = json!({"refund_id": "A2", "amount_minor": 500});
    client.post_as("a", path, &part).await.is(202, "applied");
    client.post_as("a", path, &part).await.is(202, "applied");
    client.post(path, &part).await.is(200, "duplicate");
    let other = json!({"refund_id": "A2", "amount_minor": 501});
    client.post(path, &other).await.is_problem(409, "conflict");
    let much = json!({"amount_minor": 1500});
    let answer = client.post(path, &much).await;
    answer.is_problem(409, "refund_exceeds_paid");
    client.post(path, &json!({})).await.is(202, "applied");
    let read = client.get("/v1/orders/O1").await.body;
    let refunds = read["refunds"].as_array().unwrap();
    let mut asked: Vec<_> = refunds
        .iter()
        .map(|refund| (&refund["status"], refund["amount_minor"].as_i64()))
        .collect();
    asked.sort_by_key(|(_, amount)| *amount);
    let requested = json!("REQUESTED");
    assert_eq!(asked, [(&requested, Some(500)), (&requested, Some(1499))]);
    serving.settles(&shop.site).await;
    serving.stops(Signal::TERM).await;
    shop.site.reconciles();
}

#[tokio::test]
async fn an_order_id_that_is_taken_is_a_duplicate_or_a_conflict() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    client
        .post("/v1/orders", &order("O1", "S1"))
        .await
        .is(201, "applied");
    client
        .post("/v1/orders", &order("O1", "S1"))
        .await
        .is(200, "duplicate");
    client
        .post("/v1/orders", &order("O1", "S2"))
        .await
        .is_problem(409, "conflict");
    assert_eq!(shop.site.number("SELECT count(*) FROM orders").await, 1);
}

/// B35: identifiers are compared byte by byte, also in an address.
#[tokio::test]
async fn identifiers_in_addresses_are_taken_as_they_are() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    for (id, address) in [
        ("Ab1", "Ab1"),
        ("aB1", "aB1"),
        ("é1", "%C3%A91"),
        ("a/b c?d", "a%2Fb%20c%3Fd"),
    ] {
        let created = client.post("/v1/orders", &order(id, "S1")).await;
        created.is(201, "applied");
        assert_eq!(created.headers["location"], format!("/v1/orders/{address}"));
        let read = client.get(&format!("/v1/orders/{address}")).await;
        assert_eq!((read.status, &read.body["order_id"]), (200, &json!(id)));
    }
    client
        .get("/v1/orders/AB1")
        .await
        .is_problem(404, "not_found");
    client
        .get("/v1/orders/%00")
        .await
        .is_problem(400, "invalid_address");
    client
        .get("/v1/orders/%FF")
        .await
        .is_problem(400, "invalid_address");
    client
        .get(&format!("/v1/orders/{}", "x".repeat(513)))
        .await
        .is_problem(400, "invalid_address");
}

/// B43: numbers of 18 digits are taken digit by digit.
#[tokio::test]
async fn a_number_may_be_an_identifier() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let mut body = order("", "S1");
    body["order_id"] = json!(738_529_527_931_269_425_i64);
    client.post("/v1/orders", &body).await.is(201, "applied");
    let read = client.get("/v1/orders/738529527931269425").await;
    assert_eq!(read.body["order_id"], "738529527931269425");
}

#[tokio::test]
async fn an_order_without_a_number_gets_one_that_its_request_decides() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let mut body = order("", "S1");
    body.as_object_mut().unwrap().remove("order_id");
    let first = client.post_as("a", "/v1/orders", &body).await;
    let again = client.post_as("a", "/v1/orders", &body).await;
    let other = client.post_as("b", "/v1/orders", &body).await;
    first.is(201, "applied");
    assert_eq!(first.body, again.body);
    assert_ne!(first.body["order_id"], other.body["order_id"]);
    assert_eq!(shop.site.number("SELECT count(*) FROM orders").await, 2);
}
