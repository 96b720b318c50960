//! The same request again: while the first is under way, after it, after a kill, with other content.

use super::client::{Client, order};
use super::{Shop, address};
use crate::servers::shared;
use crate::site::until;
use orderonce::testkit::kill;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn the_same_request_has_the_first_answer_whatever_happened_since() {
    let shop = Shop::new("").await;
    let (mut serving, client) = shop.open().await;
    let first = client.post_as("a", "/v1/orders", &order("O1", "S1")).await;
    first.is(201, "applied");
    assert!(!first.is_replayed());
    client
        .post_as("b", "/v1/orders/O1/cancel", &json!({}))
        .await
        .is(200, "applied");
    let rejected = client.post_as("c", "/v1/orders/O1/ship", &json!({})).await;
    rejected.is_problem(409, "order_closed");
    serving.stops(Signal::TERM).await;

    let (_serving, client) = shop.open().await;
    let again = client.post_as("a", "/v1/orders", &order("O1", "S1")).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.headers["location"], first.headers["location"]);
    assert!(again.is_replayed());
    let again = client.post_as("c", "/v1/orders/O1/ship", &json!({})).await;
    assert_eq!(
        (again.status, &again.body),
        (rejected.status, &rejected.body)
    );
    assert!(again.is_replayed());
    assert_eq!(
        shop.site
            .number("SELECT count(*) FROM idempotent_record WHERE role = 'api'")
            .await,
        3
    );
}

#[tokio::test]
async fn spacing_and_order_of_fields_make_no_other_request() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let headers = [
        ("idempotency-key", "a"),
        ("content-type", "application/json; charset=utf-8"),
    ];
    let path = "/v1/orders/O1/cancel";
    client
        .send("POST", path, &headers, r#"{"reason":"x","more":1}"#)
        .await
        .is(202, "parked");
    let again = client
        .send(
            "POST",
            path,
            &headers,
            "{ \"more\": 1,\n \"reason\": \"x\" }",
        )
        .await;
    again.is(202, "parked");
    assert!(again.is_replayed());
    let other = client
        .send("POST", path, &headers, r#"{"reason":"x","more":2}"#)
        .await;
    other.is_problem(422, "idempotency_key_reused");
}

#[tokio::test]
async fn a_key_belongs_to_one_request_of_one_caller() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    client
        .post_as("a", "/v1/orders", &order("O1", "S1"))
        .await
        .is(201, "applied");
    let reused = "idempotency_key_reused";
    client
        .post_as("a", "/v1/orders", &order("O2", "S1"))
        .await
        .is_problem(422, reused);
    client
        .post_as("a", "/v1/orders/O1/cancel", &order("O1", "S1"))
        .await
        .is_problem(422, "invalid");
    client
        .post_as("a", "/v1/orders/O1/cancel", &json!({}))
        .await
        .is_problem(422, reused);
    client
        .post_as("A", "/v1/orders", &order("O3", "S1"))
        .await
        .is(201, "applied");
    let till = Client::new(client.at, &shop.till);
    till.post_as("a", "/v1/orders", &order("O4", "S1"))
        .await
        .is(201, "applied");
    let ids: Vec<(String,)> = shop
        .site
        .rows("SELECT order_id FROM orders ORDER BY order_id")
        .await;
    assert_eq!(
        ids.iter().map(|(id,)| &id[..]).collect::<Vec<_>>(),
        ["O1", "O3", "O4"]
    );
}

#[tokio::test]
async fn a_post_without_one_right_key_does_nothing() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let json = ("content-type", "application/json");
    let body = order("O1", "S1").to_string();
    let long = "x".repeat(256);
    for keys in [
        &[][..],
        &[""],
        &["a b"],
        &["\u{e9}"],
        &[&long[..]],
        &["a", "b"],
    ] {
        let keys = keys.iter().map(|&key| ("idempotency-key", key));
        let headers: Vec<_> = keys.chain([json]).collect();
        let answer = client.send("POST", "/v1/orders", &headers, &body).await;
        answer.is_problem(400, "idempotency_key");
    }
    assert_eq!(shop.site.number("SELECT count(*) FROM orders").await, 0);
    let longest = ("idempotency-key", &long[1..]);
    client
        .send("POST", "/v1/orders", &[longest, json], &body)
        .await
        .is(201, "applied");
}

/// B01, by way of the door.
async fn fifty_at_once_to_two_processes_create_one_order(shop: &Shop) {
    let (_one, first) = shop.open().await;
    let (_two, second) = shop.open().await;
    let mut sending = tokio::task::JoinSet::new();
    for n in 0..50 {
        let client = if n % 2 == 0 {
            first.clone()
        } else {
            second.clone()
        };
        sending.spawn(async move { client.post_as("a", "/v1/orders", &order("O1", "S1")).await });
    }
    let answers = sending.join_all().await;
    for answer in &answers {
        answer.is(201, "applied");
        assert_eq!(answer.body, answers[0].body);
    }
    assert_eq!(
        answers
            .iter()
            .filter(|answer| !answer.is_replayed())
            .count(),
        1
    );
    for count in [
        "SELECT count(*) FROM orders",
        "SELECT count(*) FROM order_transition",
        "SELECT count(*) FROM outbox",
        "SELECT count(*) FROM idempotent_record WHERE role = 'api'",
        "SELECT count(*) FROM idempotent_record WHERE role = 'order'",
    ] {
        assert_eq!(shop.site.number(count).await, 1, "{count}");
    }
}

#[tokio::test]
async fn fifty_at_once_create_one_order_in_a_file() {
    fifty_at_once_to_two_processes_create_one_order(&Shop::new("").await).await;
}

#[tokio::test]
async fn fifty_at_once_create_one_order_on_postgres() {
    let broker = shared("ORDERONCE_TEST_AMQP_URL");
    let shop = Shop::on_server(&shared("ORDERONCE_TEST_POSTGRES_URL"), &broker, "").await;
    fifty_at_once_to_two_processes_create_one_order(&shop).await;
}

#[tokio::test]
async fn fifty_at_once_create_one_order_on_mariadb() {
    let broker = shared("ORDERONCE_TEST_AMQP_URL");
    let shop = Shop::on_server(&shared("ORDERONCE_TEST_MARIADB_URL"), &broker, "").await;
    fifty_at_once_to_two_processes_create_one_order(&shop).await;
}

/// Before the commit nothing is there, after it the answer is: whoever asks again has it.
#[tokio::test]
async fn a_process_that_is_killed_on_either_side_of_the_commit_leaves_one_order() {
    for (point, replayed) in [("written", false), ("committed", true)] {
        let shop = Shop::new("").await;
        let api = ["--role", "api", "--no-relay", "--no-janitor"];
        let at = format!("{point}:1");
        let (mut serving, client) = shop.open_with(&api, &[(kill::AT, &at)]).await;
        let body = order("O1", "S1");
        let json = [
            ("idempotency-key", "a"),
            ("content-type", "application/json"),
        ];
        let lost = client
            .try_send("POST", "/v1/orders", &json, &body.to_string())
            .await;
        assert!(lost.is_err(), "{lost:?}");
        serving.ends().await;
        let (_serving, client) = shop.open().await;
        let again = client.post_as("a", "/v1/orders", &body).await;
        again.is(201, "applied");
        assert_eq!(again.is_replayed(), replayed, "{point}");
        assert_eq!(shop.site.number("SELECT count(*) FROM orders").await, 1);
    }
}

/// What was taken goes on: the transaction ends cleanly, and the next one on its connection too.
#[tokio::test]
async fn a_caller_that_hangs_up_has_its_order_all_the_same() {
    let shop = Shop::new("").await;
    let api = ["--role", "api", "--no-relay", "--no-janitor"];
    let (mut serving, client) = shop.open_with(&api, &[(kill::STOP_AT, "begun:1")]).await;
    let body = order("O1", "S1").to_string();
    let request = format!(
        "POST /v1/orders HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\nidempotency-key: a\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        shop.shop,
        body.len()
    );
    let mut stream = TcpStream::connect(client.at).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    until("the transaction is open", async || {
        serving.is_alive();
        serving.is_stopped()
    })
    .await;
    drop(stream);
    serving.signal(Signal::CONT);
    until("the order is there", async || {
        shop.site.number("SELECT count(*) FROM orders").await == 1
    })
    .await;
    let again = client.post_as("a", "/v1/orders", &order("O1", "S1")).await;
    again.is(201, "applied");
    assert!(again.is_replayed());
    let cancelled = client.post("/v1/orders/O1/cancel", &json!({})).await;
    cancelled.is(200, "applied");
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_asked_again_and_has_its_answer() {
    let shop = Shop::new("http.timeout_seconds = 0.2").await;
    let (_serving, client) = shop.open().await;
    let mut locked = shop.site.stranger().await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut locked)
        .await
        .unwrap();
    let late = client.post_as("a", "/v1/orders", &order("O1", "S1")).await;
    late.is_problem(503, "unavailable");
    assert_eq!(late.headers["retry-after"], "1");
    sqlx::query("ROLLBACK").execute(&mut locked).await.unwrap();
    until("the answer is there", async || {
        client
            .post_as("a", "/v1/orders", &order("O1", "S1"))
            .await
            .status
            == 201
    })
    .await;
    assert_eq!(shop.site.number("SELECT count(*) FROM orders").await, 1);
}

/// A database that is away is not the caller's fault: nothing is recorded, and the same may be asked again.
#[tokio::test]
async fn a_database_that_is_away_makes_the_caller_ask_again() {
    let shop = Shop::new("store.busy_timeout_seconds = 0.05\nretry.redecide = 0").await;
    let (_serving, client) = shop.open().await;
    let mut locked = shop.site.stranger().await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut locked)
        .await
        .unwrap();
    let away = client.post_as("a", "/v1/orders", &order("O1", "S1")).await;
    away.is_problem(503, "unavailable");
    assert_eq!(away.headers["retry-after"], "1");
    sqlx::query("ROLLBACK").execute(&mut locked).await.unwrap();
    let answer = client.post_as("a", "/v1/orders", &order("O1", "S1")).await;
    answer.is(201, "applied");
    assert!(!answer.is_replayed());
}

#[tokio::test]
async fn a_stop_answers_what_it_has_taken() {
    let shop = Shop::new("").await;
    let api = ["--role", "api", "--no-relay", "--no-janitor"];
    let (mut serving, client) = shop.open_with(&api, &[(kill::STOP_AT, "begun:1")]).await;
    let waiting = client.clone();
    let asked = async move { waiting.post_as("a", "/v1/orders", &order("O1", "S1")).await };
    let asked = tokio::spawn(asked);
    until("the transaction is open", async || {
        serving.is_alive();
        serving.is_stopped()
    })
    .await;
    serving.signal(Signal::TERM);
    serving.signal(Signal::CONT);
    asked.await.unwrap().is(201, "applied");
    assert_eq!(
        serving.ends().await.code(),
        Some(0),
        "{}",
        serving.last_words()
    );
    let at = address(&serving.log());
    assert!(TcpStream::connect(at).await.is_err());
}
