//! Who may call, how often, and with what.

use super::Shop;
use super::client::{Client, fresh_key, order};
use serde_json::{Value, json};
use std::process::Output;

/// Every route that needs a key.
const ROUTES: [(&str, &str); 9] = [
    ("POST", "/v1/orders"),
    ("GET", "/v1/orders/O1"),
    ("POST", "/v1/orders/O1/cancel"),
    ("POST", "/v1/orders/O1/ship"),
    ("POST", "/v1/orders/O1/complete"),
    ("POST", "/v1/orders/O1/refunds"),
    ("GET", "/v1/stock/S1"),
    ("PUT", "/v1/stock/S1"),
    ("GET", "/v1/accounts/U1"),
];

#[tokio::test]
async fn nobody_gets_in_without_a_key_and_nobody_without_the_right() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let headers = [
        ("idempotency-key", "a"),
        ("content-type", "application/json"),
        ("if-none-match", "*"),
    ];
    for (key, status, code) in [
        ("", 401, "unauthorized"),
        ("oo_wrong", 401, "unauthorized"),
        (&shop.nobody[..], 403, "forbidden"),
    ] {
        let stranger = Client::new(client.at, key);
        for (method, path) in ROUTES {
            let answer = stranger.send(method, path, &headers, "{}").await;
            answer.is_problem(status, code);
            let challenged = answer.headers.contains_key("www-authenticate");
            assert_eq!(challenged, status == 401, "{method} {path}");
        }
    }
    assert_eq!(
        shop.site
            .number("SELECT count(*) FROM idempotent_record")
            .await,
        0
    );
}

#[tokio::test]
async fn a_caller_that_calls_too_often_waits_and_the_others_do_not() {
    let shop = Shop::new("http.rate_per_second = 1\nhttp.rate_burst = 3").await;
    let (_serving, client) = shop.open().await;
    let mut refused = client.get("/v1/accounts/U1").await;
    // However slow the machine is, some three of these come within a second.
    for _ in 0..1_000 {
        if refused.status != 200 {
            break;
        }
        refused = client.get("/v1/accounts/U1").await;
    }
    refused.is_problem(429, "too_many_requests");
    assert_eq!(refused.headers["retry-after"], "1");
    let till = Client::new(client.at, &shop.till);
    assert_eq!(till.get("/v1/accounts/U1").await.status, 200);
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused_with_the_reason() {
    let shop = Shop::new("http.body_max_bytes = 1024").await;
    let (_serving, client) = shop.open().await;
    let json = "application/json";
    let mut wrong_total = order("O1", "S1");
    wrong_total["total_minor"] = json!(1998);
    let long = order(&"x".repeat(1024), "S1").to_string();
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    for (content_type, body, status, code) in [
        ("text/plain", "{}", 415, "unsupported_media_type"),
        ("", "{}", 415, "unsupported_media_type"),
        (json, "{", 400, "not_json"),
        (json, "{\"a\":1,\"a\":2}", 400, "duplicate_field"),
        (json, &deep, 400, "too_deep"),
        (json, "\u{feff}{}", 400, "byte_order_mark"),
        (json, "[]", 422, "wrong_type"),
        (json, "", 422, "missing_field"),
        (json, &wrong_total.to_string(), 422, "invalid"),
        (json, &long, 413, "too_large"),
    ] {
        let key = fresh_key();
        let headers = [
            ("idempotency-key", &key[..]),
            ("content-type", content_type),
        ];
        let answer = client.send("POST", "/v1/orders", &headers, body).await;
        answer.is_problem(status, code);
    }
    let missing = client
        .post(
            "/v1/orders",
            &json!({"order_id": "O1", "lines": [{"qty": 1}]}),
        )
        .await;
    let detail = missing.body["detail"].as_str().unwrap();
    assert!(
        detail.contains("lines[0].unit_price_minor is missing"),
        "{detail}"
    );
    let twice = client
        .post("/v1/orders/O1/cancel", &json!({"order_id": "O2"}))
        .await;
    twice.is_problem(422, "invalid");
    assert_eq!(
        shop.site
            .number("SELECT count(*) FROM idempotent_record")
            .await,
        0
    );
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_like_any_other() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    client.get("/v2/orders").await.is_problem(404, "not_found");
    client
        .send("DELETE", "/v1/orders/O1", &[], "")
        .await
        .is_problem(405, "method_not_allowed");
    client
        .get("/v1/orders")
        .await
        .is_problem(405, "method_not_allowed");
}

#[tokio::test]
async fn a_request_has_the_number_that_its_caller_gave_or_one_of_its_own() {
    let shop = Shop::new("").await;
    let (mut serving, client) = shop.open().await;
    let given = client
        .send("GET", "/v1/accounts/U1", &[("x-request-id", "r-1")], "")
        .await;
    assert_eq!(given.headers["x-request-id"], "r-1");
    serving.says("\"request_id\":\"r-1\"").await;
    let log = serving.log();
    let told = log.lines().find(|line| line.contains("r-1")).unwrap();
    let told: Value = serde_json::from_str(told).unwrap();
    assert_eq!(
        (&told["caller"], &told["status"]),
        (&json!("shop"), &json!(200))
    );
    assert_eq!(told["route"], "/v1/accounts/{user_id}");
    let (one, two) = (
        client.get("/v1/accounts/U1").await,
        client.get("/v1/accounts/U1").await,
    );
    assert_ne!(one.headers["x-request-id"], two.headers["x-request-id"]);
    assert!(!serving.log().contains(&shop.shop), "a key is in the log");
}

fn serve_api(shop: &Shop, variables: &[(&str, &str)]) -> (Output, String) {
    let mut command = shop.site.command(&["serve", "--role", "api"]);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[tokio::test]
async fn an_api_that_cannot_be_served_says_what_to_do() {
    let shop = Shop::new("").await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (variables, expected) in [
        (("ORDERONCE__HTTP__LISTEN", ""), "http.listen is empty"),
        (
            ("ORDERONCE__HTTP__LISTEN", &taken[..]),
            "http.listen is 127.0.0.1:",
        ),
        (("ORDERONCE__HTTP__KEYS_FILE", ""), "orderonce keys new"),
        (
            ("ORDERONCE__HTTP__KEYS_FILE", "no/such/file"),
            "http.keys_file is no/such/file",
        ),
    ] {
        let held = std::net::TcpListener::bind(&taken);
        let (output, said) = serve_api(&shop, &[variables]);
        drop(held);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[tokio::test]
async fn a_new_key_is_told_once_and_its_entry_is_for_the_file() {
    let shop = Shop::new("").await;
    let output = shop
        .site
        .run(&["keys", "new", "web", "--right", "stock.read"]);
    let (entry, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(
        entry.contains("name = \"web\"") && entry.contains("rights = [\"stock.read\"]"),
        "{entry}"
    );
    let key = said.split_whitespace().last().unwrap();
    assert!(key.starts_with("oo_") && !entry.contains(key), "{said}");
    let wrong = shop
        .site
        .run(&["keys", "new", "web", "--right", "everything"]);
    assert_eq!(wrong.status.code(), Some(2));
}
