//! Callbacks of payment providers, over real sockets to the real binary.

mod signing;
mod table;

use super::client::{Answer, Client, order};
use super::{Shop, address};
use crate::servers::shared;
use crate::site::until;
use crate::telemetry::metrics as telemetry;
use orderonce::testkit::kill;
use rustix::process::Signal;
use serde_json::{Value, json};
use signing::{
    Call, alipay, stripe, stripe_paid, stripe_signed, till, wechat, wechat_signed, write,
};
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const API: [&str; 4] = ["--role", "api", "--no-relay", "--no-janitor"];

/// A shop that providers call.
struct Counter {
    shop: Shop,
    _providers: TempDir,
}

impl Counter {
    async fn new(more: &str) -> Self {
        let (more, providers) = with_providers(more);
        Self {
            shop: Shop::new(&more).await,
            _providers: providers,
        }
    }

    async fn on_server(store: &str, broker: &str) -> Self {
        let (more, providers) = with_providers("");
        Self {
            shop: Shop::on_server(store, broker, &more).await,
            _providers: providers,
        }
    }

    /// An order of 19.99.
    async fn ordered(client: &Client, order_id: &str, currency: &str) {
        let mut body = order(order_id, "S1");
        body["currency"] = json!(currency);
        client.post("/v1/orders", &body).await.is(201, "applied");
    }

    async fn stocked(client: &Client) {
        let stock = json!({"available": 100});
        let stocked = client.put("/v1/stock/S1", ("if-none-match", "*"), &stock);
        assert_eq!(stocked.await.status, 200);
    }

    /// Every role works until all is settled.
    async fn settle(&self) {
        self.shop.site.serve_to_the_end().await;
    }

    async fn status(&self, order_id: &str) -> (String, i64, i64) {
        let (_serving, client) = self.shop.open().await;
        let read = client.get(&format!("/v1/orders/{order_id}")).await;
        assert_eq!(read.status, 200, "{read:?}");
        let read = read.body;
        let number = |field: &str| read[field].as_i64().unwrap();
        let status = read["status"].as_str().unwrap().to_owned();
        (status, number("paid_minor"), number("refunded_minor"))
    }

    async fn count(&self, select: &'static str) -> i64 {
        self.shop.site.number(select).await
    }
}

fn with_providers(more: &str) -> (String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path());
    let more = format!("callbacks.file = '{}'\n{more}", file.display());
    (more, folder)
}

async fn send(client: &Client, call: &Call) -> Answer {
    try_send(client, call).await.unwrap()
}

async fn try_send(
    client: &Client,
    call: &Call,
) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let headers: Vec<_> = { call.headers.iter() }
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let path = format!("/v1/callbacks/{}", call.to);
    let provider = Client::new(client.at, "");
    provider.try_send("POST", &path, &headers, &call.body).await
}

/// Expects that a provider takes an answer for `received`.
fn is_received(call: &Call, answer: &Answer) {
    let expected = match call.to {
        "alipay" => (200, "success"),
        "wechat" => (204, ""),
        _ => (200, ""),
    };
    assert_eq!(
        (answer.status, answer.text.as_str()),
        expected,
        "{answer:?}"
    );
}

async fn is_taken(client: &Client, call: &Call) {
    is_received(call, &send(client, call).await);
}

const KEPT: &str = "SELECT count(*) FROM callback";
const CLAIMED: &str = "SELECT count(*) FROM idempotent_record WHERE role = 'callback'";
const PAYMENTS: &str = "SELECT count(*) FROM payment";
const WAITING: &str = "SELECT count(*) FROM outbox";

// B01
async fn fifty_at_once_to_two_processes_pay_once(counter: &Counter) {
    let (mut one, first) = counter.shop.open().await;
    let (mut two, second) = counter.shop.open().await;
    Counter::stocked(&first).await;
    Counter::ordered(&first, "O1", "GBP").await;
    let before = counter.count(WAITING).await;
    let call = stripe_paid("O1", "pi_1", 1999);
    let mut sending = tokio::task::JoinSet::new();
    for n in 0..50 {
        let client = if n % 2 == 0 { &first } else { &second }.clone();
        let call = call.clone();
        sending.spawn(async move { send(&client, &call).await });
    }
    for answer in sending.join_all().await {
        is_received(&call, &answer);
    }
    assert_eq!(counter.count(KEPT).await, 1);
    assert_eq!(counter.count(CLAIMED).await, 1);
    assert_eq!(counter.count(WAITING).await, before + 1);
    one.stops(Signal::TERM).await;
    two.stops(Signal::TERM).await;
    counter.settle().await;
    assert_eq!(counter.status("O1").await, ("PAID".to_owned(), 1999, 0));
    assert_eq!(counter.count(PAYMENTS).await, 1);
    counter.shop.site.reconciles();
}

#[tokio::test]
async fn fifty_at_once_pay_once_in_a_file() {
    fifty_at_once_to_two_processes_pay_once(&Counter::new("").await).await;
}

#[tokio::test]
async fn fifty_at_once_pay_once_on_postgres() {
    let broker = shared("ORDERONCE_TEST_AMQP_URL");
    let store = shared("ORDERONCE_TEST_POSTGRES_URL");
    fifty_at_once_to_two_processes_pay_once(&Counter::on_server(&store, &broker).await).await;
}

#[tokio::test]
async fn fifty_at_once_pay_once_on_mariadb() {
    let broker = shared("ORDERONCE_TEST_AMQP_URL");
    let store = shared("ORDERONCE_TEST_MARIADB_URL");
    fifty_at_once_to_two_processes_pay_once(&Counter::on_server(&store, &broker).await).await;
}

/// Each provider pays an order; nothing of it needs a role at work.
#[tokio::test]
async fn a_provider_is_answered_in_its_own_words_once_it_is_safe() {
    let counter = Counter::new("").await;
    let (mut serving, client) = counter.shop.open().await;
    Counter::stocked(&client).await;
    let calls = [
        (alipay("O1", &[]), "CNY"),
        (
            wechat(
                "TRANSACTION.SUCCESS",
                &json!({
                    "mchid": "1900", "appid": "wx0", "out_trade_no": "O2", "transaction_id": "42",
                    "trade_state": "SUCCESS", "amount": {"total": 1999, "currency": "CNY"},
                }),
            ),
            "CNY",
        ),
        (stripe_paid("O3", "pi_3", 1999), "GBP"),
        (
            till(&json!({
                "type": "paid", "order": "O4", "trade": "t4", "amount": 1999, "currency": "GBP",
            })),
            "GBP",
        ),
    ];
    for (n, (call, currency)) in calls.iter().enumerate() {
        Counter::ordered(&client, &format!("O{}", n + 1), currency).await;
        is_taken(&client, call).await;
        // Again, and it is known.
        is_taken(&client, call).await;
    }
    assert_eq!(counter.count(PAYMENTS).await, 0);
    assert_eq!(counter.count(KEPT).await, 4);
    serving.stops(Signal::TERM).await;
    counter.settle().await;
    for n in 1..=4 {
        let status = counter.status(&format!("O{n}")).await;
        assert_eq!(status, ("PAID".to_owned(), 1999, 0), "O{n}");
    }
    counter.shop.site.reconciles();
}

// B25
#[tokio::test]
async fn alipay_may_call_again_after_refunds_and_months_later() {
    let counter = Counter::new("").await;
    let (mut serving, client) = counter.shop.open().await;
    Counter::stocked(&client).await;
    Counter::ordered(&client, "O1", "CNY").await;
    let first = ("refund_fee", "3.00");
    let second = ("refund_fee", "5.50");
    let calls = [
        alipay("O1", &[]),
        alipay("O1", &[first, ("out_biz_no", "R1"), ("notify_id", "n2")]),
        alipay("O1", &[second, ("out_biz_no", "R2"), ("notify_id", "n3")]),
        alipay("O1", &[first, ("out_biz_no", "R1"), ("notify_id", "n4")]),
        alipay(
            "O1",
            &[
                second,
                ("trade_status", "TRADE_FINISHED"),
                ("out_biz_no", "R2"),
            ],
        ),
        alipay("O1", &[("notify_id", "n5")]),
    ];
    for call in &calls {
        is_taken(&client, call).await;
    }
    // The first and the last say the same, and so do the two of R1.
    assert_eq!(counter.count(KEPT).await, 4);
    serving.stops(Signal::TERM).await;
    counter.settle().await;
    assert_eq!(counter.status("O1").await, ("PAID".to_owned(), 1999, 550));
    assert_eq!(counter.count(PAYMENTS).await, 1);
    assert_eq!(counter.count("SELECT count(*) FROM refund").await, 2);
    counter.shop.site.reconciles();
}

// B03, B05, B11, B23
#[tokio::test]
async fn what_is_said_is_decided_as_if_it_had_come_by_the_queue() {
    let counter = Counter::new("").await;
    let (mut serving, client) = counter.shop.open().await;
    Counter::stocked(&client).await;
    for order_id in ["TWICE", "LITTLE", "OTHER", "FAILED", "PARTS", "EARLY"] {
        Counter::ordered(&client, order_id, "GBP").await;
    }
    let charge = |order: &str, refunded: i64| {
        let object = json!({
            "id": format!("ch_{order}"), "payment_intent": format!("pi_{order}"), "currency": "gbp",
            "amount_refunded": refunded, "metadata": {"order_id": order},
        });
        stripe("charge.refunded", &object)
    };
    let failed = |order: &str, trade: &str| {
        let object = json!({"id": trade, "metadata": {"order_id": order}});
        stripe("payment_intent.payment_failed", &object)
    };
    let dollars = json!({
        "id": "pi_6", "amount_received": 1999, "currency": "usd", "metadata": {"order_id": "OTHER"},
    });
    let calls = [
        stripe_paid("TWICE", "pi_1", 1999),
        stripe_paid("TWICE", "pi_2", 1999),
        stripe_paid("LITTLE", "pi_3", 10),
        stripe("payment_intent.succeeded", &dollars),
        stripe_paid("FAILED", "pi_5", 1999),
        failed("FAILED", "pi_4"),
        stripe_paid("PARTS", "pi_PARTS", 1999),
        charge("PARTS", 500),
        charge("PARTS", 1000),
        charge("PARTS", 500),
        // The refund overtakes its payment.
        charge("EARLY", 700),
        stripe_paid("EARLY", "pi_EARLY", 1999),
        // The payment overtakes its order.
        stripe_paid("AHEAD", "pi_7", 1999),
    ];
    for call in &calls {
        is_taken(&client, call).await;
    }
    serving.stops(Signal::TERM).await;
    {
        let (_serving, client) = counter.shop.open_all().await;
        until("the payment waits for its order", async || {
            counter
                .count("SELECT count(*) FROM parked_event WHERE subject = 'AHEAD'")
                .await
                == 1
        })
        .await;
        Counter::ordered(&client, "AHEAD", "GBP").await;
    }
    counter.settle().await;
    let paid = |refunded| ("PAID".to_owned(), 1999, refunded);
    assert_eq!(counter.status("TWICE").await, paid(0));
    let waits = ("WAIT_PAY".to_owned(), 0, 0);
    assert_eq!(counter.status("LITTLE").await, waits);
    assert_eq!(counter.status("OTHER").await, waits);
    assert_eq!(counter.status("FAILED").await, paid(0));
    assert_eq!(counter.status("PARTS").await, paid(1000));
    assert_eq!(counter.status("EARLY").await, paid(700));
    assert_eq!(counter.status("AHEAD").await, paid(0));
    let asked_back: Vec<(String, String)> = { &counter.shop.site }
        .rows("SELECT order_id, status FROM refund WHERE status = 'REQUESTED'")
        .await;
    assert_eq!(asked_back, [("TWICE".to_owned(), "REQUESTED".to_owned())]);
    counter.shop.site.reconciles();
}

#[tokio::test]
async fn a_late_payment_is_asked_back_and_its_callback_received() {
    let counter = Counter::new("order.pay_timeout_seconds = 0.001").await;
    let (mut serving, client) = counter.shop.open_all().await;
    Counter::stocked(&client).await;
    Counter::ordered(&client, "O1", "GBP").await;
    until("the order is closed", async || {
        client.get("/v1/orders/O1").await.body["status"] == "CLOSED"
    })
    .await;
    is_taken(&client, &stripe_paid("O1", "pi_1", 1999)).await;
    serving.settles(&counter.shop.site).await;
    serving.stops(Signal::TERM).await;
    const REQUESTED: &str =
        "SELECT count(*) FROM refund WHERE status = 'REQUESTED' AND amount_minor = 1999";
    assert_eq!(counter.count(REQUESTED).await, 1);
    assert_eq!(counter.status("O1").await, ("CLOSED".to_owned(), 0, 0));
    counter.shop.site.reconciles();
}

/// Stripe is told 503, and so are the others in their words.
#[tokio::test]
async fn a_database_that_is_away_makes_the_provider_come_again() {
    let counter = Counter::new("store.busy_timeout_seconds = 0.05\nretry.redecide = 0").await;
    let (_serving, client) = counter.shop.open().await;
    let mut locked = counter.shop.site.stranger().await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut locked)
        .await
        .unwrap();
    let calls = [
        (stripe_paid("O1", "pi_1", 1999), ""),
        (alipay("O2", &[]), "failure"),
        (
            wechat(
                "TRANSACTION.SUCCESS",
                &json!({
                    "mchid": "1900", "appid": "wx0", "out_trade_no": "O3", "transaction_id": "42",
                    "trade_state": "SUCCESS", "amount": {"total": 1999, "currency": "CNY"},
                }),
            ),
            "{\"code\":\"FAIL\",",
        ),
    ];
    for (call, words) in &calls {
        let away = send(&client, call).await;
        assert_eq!(away.status, 503, "{away:?}");
        assert!(away.text.starts_with(words), "{away:?}");
    }
    sqlx::query("ROLLBACK").execute(&mut locked).await.unwrap();
    for (call, _) in &calls {
        is_taken(&client, call).await;
    }
    assert_eq!(counter.count(KEPT).await, 3);
    assert_eq!(counter.count(WAITING).await, 3);
}

/// The provider does not wait for longer than it would, and the work goes on.
#[tokio::test]
async fn a_provider_that_would_wait_too_long_is_told_to_come_again() {
    let counter = Counter::new("callbacks.answer_within_seconds = 0.01").await;
    let (_serving, client) = counter.shop.open().await;
    let mut locked = counter.shop.site.stranger().await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut locked)
        .await
        .unwrap();
    let call = stripe_paid("O1", "pi_1", 1999);
    assert_eq!(send(&client, &call).await.status, 503);
    sqlx::query("ROLLBACK").execute(&mut locked).await.unwrap();
    until("it is kept", async || counter.count(KEPT).await == 1).await;
    until("it is received", async || {
        send(&client, &call).await.status == 200
    })
    .await;
    assert_eq!(counter.count(WAITING).await, 1);
}

#[tokio::test]
async fn a_request_that_does_not_end_is_answered_all_the_same() {
    let counter = Counter::new("callbacks.answer_within_seconds = 0.05").await;
    let (_serving, client) = counter.shop.open().await;
    let mut stream = TcpStream::connect(client.at).await.unwrap();
    let request =
        "POST /v1/callbacks/stripe HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 503");
    assert_eq!(counter.count(KEPT).await, 0);
}

#[tokio::test]
async fn a_process_that_is_killed_on_either_side_of_the_commit_keeps_it_once() {
    for point in ["written", "committed"] {
        let counter = Counter::new("").await;
        let at = format!("{point}:1");
        let (mut serving, client) = counter.shop.open_with(&API, &[(kill::AT, &at)]).await;
        let call = stripe_paid("O1", "pi_1", 1999);
        let lost = try_send(&client, &call).await;
        assert!(lost.is_err(), "{lost:?}");
        serving.ends().await;
        let (_serving, client) = counter.shop.open().await;
        is_taken(&client, &call).await;
        assert_eq!(counter.count(KEPT).await, 1, "{point}");
        assert_eq!(counter.count(WAITING).await, 1, "{point}");
    }
}

#[tokio::test]
async fn a_provider_that_hangs_up_is_heard_all_the_same() {
    let counter = Counter::new("").await;
    let (mut serving, client) = { &counter.shop }
        .open_with(&API, &[(kill::STOP_AT, "begun:1")])
        .await;
    let call = stripe_paid("O1", "pi_1", 1999);
    let (name, value) = &call.headers[0];
    let request = format!(
        "POST /v1/callbacks/stripe HTTP/1.1\r\nhost: test\r\n{name}: {value}\r\ncontent-length: {}\r\n\r\n{}",
        call.body.len(),
        call.body
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
    until("it is kept", async || counter.count(KEPT).await == 1).await;
    is_taken(&client, &call).await;
    assert_eq!(counter.count(WAITING).await, 1);
}

/// Forged, altered, replayed, truncated, oversized, in a wrong charset, by an unknown key, of a stranger.
#[tokio::test]
async fn what_is_not_believed_is_refused_and_kept_and_does_nothing() {
    let counter = Counter::new("health.listen = \"127.0.0.1:0\"").await;
    let (mut serving, client) = counter.shop.open().await;
    let paid = stripe_paid("O1", "pi_1", 1999);
    let altered = |from: &str, to: &str| Call {
        body: paid.body.replace(from, to),
        ..paid.clone()
    };
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let mut unknown = wechat("TRANSACTION.SUCCESS", &json!({}));
    unknown.headers[0].1 = "PUB_KEY_ID_2".to_owned();
    let mut charset = alipay("O1", &[]);
    charset.body.push_str("&charset=utf-8");
    let calls = [
        (
            stripe_signed("whsec_wrong", &paid.body, seconds),
            "bad_signature",
        ),
        (altered("1999", "1"), "bad_signature"),
        (altered("}", &"}".repeat(100_000)), "bad_signature"),
        (
            stripe_signed("whsec_old", &paid.body, seconds - 301),
            "too_old",
        ),
        (
            stripe_signed("whsec_old", &paid.body, seconds + 400),
            "too_far_ahead",
        ),
        (
            Call {
                body: paid.body[..40].to_owned(),
                ..paid.clone()
            },
            "bad_signature",
        ),
        (
            Call {
                body: "x".repeat(1024 * 1024 + 1),
                ..paid.clone()
            },
            "malformed",
        ),
        (
            Call {
                headers: Vec::new(),
                ..paid.clone()
            },
            "missing_header",
        ),
        (unknown, "unknown_key"),
        (wechat_signed("{}", Some("AAAA")), "bad_signature"),
        (alipay("O1", &[("charset", "utf-16")]), "charset"),
        (charset, "field_twice"),
        (alipay("O1", &[("app_id", "2022")]), "other_merchant"),
        (alipay("O1", &[("total_amount", "0.105")]), "inexact_amount"),
        (
            till(&json!({"type": "paid", "order": "O1"})),
            "missing_field",
        ),
    ];
    for (call, reason) in &calls {
        for _ in 0..2 {
            let answer = send(&client, call).await;
            assert!((400..500).contains(&answer.status), "{reason}: {answer:?}");
        }
    }
    let kept: Vec<(String, String)> = { &counter.shop.site }
        .rows("SELECT verdict, detail FROM callback ORDER BY id")
        .await;
    let expected: Vec<_> = calls.iter().map(|(_, reason)| *reason).collect();
    let reasons: Vec<_> = { kept.iter() }
        .map(|(_, detail)| detail.split_once(':').unwrap().0)
        .collect();
    assert_eq!(reasons, expected);
    assert!(kept.iter().all(|(verdict, _)| verdict == "REFUSED"));
    // Of a long one the beginning is kept.
    assert_eq!(
        counter
            .count("SELECT max(length(body)) FROM callback")
            .await,
        65_536
    );
    for empty in [
        WAITING,
        PAYMENTS,
        "SELECT count(*) FROM parked_event",
        "SELECT count(*) FROM dead_letter",
    ] {
        assert_eq!(counter.count(empty).await, 0, "{empty}");
    }
    let at = telemetry::address(&mut serving, "answering /live, /ready and /metrics").await;
    let (_, metrics) = telemetry::get(at, "/metrics").await;
    for line in [
        "orderonce_callbacks_total{provider=\"stripe\",verdict=\"refused\",reason=\"bad_signature\"} 8",
        "orderonce_callbacks_total{provider=\"alipay\",verdict=\"refused\",reason=\"other_merchant\"} 2",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    // The same request, unaltered, is believed.
    is_taken(&client, &paid).await;
}

#[tokio::test]
async fn probes_and_floods_of_forgeries_leave_no_more_than_a_few_rows() {
    let counter = Counter::new("callbacks.refusals_kept_per_minute = 3").await;
    let (serving, client) = counter.shop.open().await;
    let probe = wechat_signed("{}", Some("WECHATPAY/SIGNTEST/abc"));
    let answer = send(&client, &probe).await;
    assert!((400..500).contains(&answer.status), "{answer:?}");
    assert_eq!(counter.count(KEPT).await, 0);
    assert!(!serving.log().contains("not believed"));
    for n in 0..20 {
        let forged = stripe_signed("whsec_wrong", &n.to_string(), 1);
        assert_eq!(send(&client, &forged).await.status, 400);
    }
    let kept = counter.count(KEPT).await;
    // Another one may be kept after twenty seconds.
    assert!((3..=6).contains(&kept), "{kept}");
    is_taken(&client, &stripe_paid("O1", "pi_1", 1999)).await;
}

#[tokio::test]
async fn what_is_of_no_interest_is_received_and_kept() {
    let counter = Counter::new("").await;
    let (_serving, client) = counter.shop.open().await;
    let call = stripe("charge.dispute.created", &json!({"id": "dp_1"}));
    is_taken(&client, &call).await;
    is_taken(&client, &call).await;
    let kept: Vec<(String, String)> = { &counter.shop.site }
        .rows("SELECT verdict, subject FROM callback")
        .await;
    assert_eq!(kept, [("IGNORED".to_owned(), String::new())]);
    assert_eq!(counter.count(WAITING).await, 0);
}

#[tokio::test]
async fn an_address_without_a_provider_or_another_method_is_a_problem() {
    let counter = Counter::new("").await;
    let (_serving, client) = counter.shop.open().await;
    let call = stripe_paid("O1", "pi_1", 1999);
    let nowhere = Call {
        to: "paypal",
        ..call
    };
    send(&client, &nowhere).await.is_problem(404, "not_found");
    let read = client.get("/v1/callbacks/stripe").await;
    read.is_problem(405, "method_not_allowed");
    assert_eq!(counter.count(KEPT).await, 0);
}

#[tokio::test]
async fn callbacks_are_shown_as_they_came_and_told_of_in_the_life_of_their_order() {
    let counter = Counter::new("").await;
    let (mut serving, client) = counter.shop.open().await;
    Counter::ordered(&client, "O1", "GBP").await;
    let mut call = stripe_paid("O1", "pi_1", 1999);
    call.headers
        .push(("authorization", "Bearer hunter2".to_owned()));
    is_taken(&client, &call).await;
    let forged = stripe_signed("whsec_wrong", "{}", 1);
    assert_eq!(send(&client, &forged).await.status, 400);
    serving.stops(Signal::TERM).await;

    let said = |args: &[&str]| {
        let output = counter.shop.site.run(args);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let listed: Value =
        serde_json::from_str(&said(&["callbacks", "list", "--report", "json"])).unwrap();
    let listed = listed["callbacks"].as_array().unwrap();
    let verdicts: Vec<_> = listed
        .iter()
        .map(|row| row["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["REFUSED", "ACCEPTED"]);
    let of_order = said(&["callbacks", "list", "--about", "O1"]);
    assert!(
        of_order.contains("payment.succeeded") && !of_order.contains("REFUSED"),
        "{of_order}"
    );
    let refused = said(&["callbacks", "list", "--verdict", "refused"]);
    assert!(
        refused.contains("bad_signature: the signature is not"),
        "{refused}"
    );
    let shown = said(&["callbacks", "show", "1"]);
    assert!(
        shown.contains(&call.body) && shown.contains("stripe-signature: t="),
        "{shown}"
    );
    assert!(
        shown.contains("127.0.0.1") && !shown.contains("hunter2"),
        "{shown}"
    );
    let explained = said(&["explain", "O1"]);
    assert!(
        explained.contains("stripe called: payment.succeeded (callback 1)"),
        "{explained}"
    );

    let nothing = counter.shop.site.run(&["callbacks", "show", "7"]);
    assert_eq!(nothing.status.code(), Some(1));
    let nothing = String::from_utf8(nothing.stderr).unwrap();
    assert!(nothing.contains("there is no callback 7"), "{nothing}");
}

#[tokio::test]
async fn providers_that_cannot_be_used_are_named_with_all_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("callbacks.toml");
    std::fs::write(
        &file,
        "[[stripe]]\nname = \"s\"\n[[paypal]]\nname = \"p\"\n",
    )
    .unwrap();
    let more = format!("callbacks.file = '{}'", file.display());
    let shop = Shop::new(&more).await;
    let refused = shop.site.run(&["serve", "--role", "api"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    for part in [
        "expected secret or secret_file",
        "paypal is no kind of provider",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// A shop that has no API keys may have providers.
#[tokio::test]
async fn providers_need_no_api_keys() {
    let (more, _providers) = with_providers("http.listen = \"127.0.0.1:0\"");
    let site = crate::site::Site::new(&more).await;
    let mut serving = site.serve(&API, &[]);
    serving.says("answering /v1").await;
    let client = Client::new(address(&serving.log()), "anything");
    client
        .get("/v1/orders/O1")
        .await
        .is_problem(401, "unauthorized");
    is_taken(&client, &stripe_paid("O1", "pi_1", 1999)).await;
}
