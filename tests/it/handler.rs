//! A role from a plain function.

use crate::support::{World, envelope, outcomes};
use async_trait::async_trait;
use orderonce::broker::{Headers, Topology};
use orderonce::domain::key::EmptyPart;
use orderonce::domain::{Key, RoleName};
use orderonce::message::Outgoing;
use orderonce::store::{self, Connection, Tx};
use orderonce::worker::Processor;
use orderonce::worker::batch::ANEW;
use orderonce::worker::handler::{Failure, Handler, HandlerRole};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const MAIL: &str = "mail.send";

#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    mail_id: String,
    to: String,
}

/// Writes each mail to a table of its own and, for some addresses, fails after that.
#[derive(Default)]
struct Mailer {
    calls: Arc<AtomicU32>,
}

#[async_trait]
impl Handler for Mailer {
    type Event = Mail;

    fn key(&self, mail: &Mail) -> Result<Key, EmptyPart> {
        Key::new(&["mail", &mail.mail_id])
    }

    async fn handle(&self, tx: &mut dyn Tx, mail: &Mail) -> Result<Vec<Outgoing>, Failure> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Connection::Sqlite(connection) = tx.connection() else {
            return Err(Failure::Again("not SQLite".to_owned()));
        };
        sqlx::query("INSERT INTO mail (mail_id, recipient) VALUES (?1, ?2)")
            .bind(&mail.mail_id)
            .bind(&mail.to)
            .execute(connection)
            .await
            .map_err(|error| store::Error::Refused(error.to_string()))?;
        match mail.to.as_str() {
            "nobody" => Err(Failure::Again("nobody lives there".to_owned())),
            "refused" => Err(store::Error::Refused("not there".to_owned()).into()),
            "away" => Err(store::Error::Unavailable("gone".to_owned()).into()),
            "long" => Err(Failure::Again("x".repeat(200_000))),
            "both" => Ok(vec![sent("Ann"), sent("Bob")]),
            to => Ok(vec![sent(to)]),
        }
    }
}

fn sent(to: &str) -> Outgoing {
    Outgoing {
        event_type: "mail.sent".into(),
        subject: to.to_owned(),
        data: json!({"to": to}).to_string(),
    }
}

fn role() -> RoleName {
    RoleName::new("mailer")
}

fn mail(id: &str, to: &str) -> Value {
    json!({"mail_id": id, "to": to})
}

async fn world() -> World {
    let mut topology = Topology::default();
    topology.bind(&role(), MAIL);
    let world = World::with(topology).await;
    world
        .execute("CREATE TABLE mail (mail_id TEXT, recipient TEXT)")
        .await;
    world
}

fn mailer(world: &World) -> Processor<HandlerRole<Mailer>> {
    world.processor(HandlerRole::new(role(), MAIL, Mailer::default()))
}

async fn run(world: &World) -> Vec<String> {
    outcomes(&world.run(&role(), mailer(world)).await)
}

async fn mails(world: &World) -> Vec<String> {
    world
        .rows("SELECT mail_id, recipient FROM mail ORDER BY 1, 2")
        .await
}

#[tokio::test]
async fn what_a_handler_writes_and_publishes_is_committed_with_its_claim() {
    let world = world().await;
    world.publish(MAIL, mail("1", "Ann")).await;
    world.publish(MAIL, mail("2", "Bob")).await;
    assert_eq!(run(&world).await, ["applied", "applied"]);
    assert_eq!(mails(&world).await, ["1 Ann", "2 Bob"]);
    assert_eq!(
        world.claims("1").await,
        ["mailer mail/1 applied", "mailer mail/2 applied"]
    );
    let outbox = "SELECT aggregate, event_type, message_id FROM outbox ORDER BY id";
    let expected = [
        "Ann mail.sent mailer:mail/1>mail.sent",
        "Bob mail.sent mailer:mail/2>mail.sent",
    ];
    assert_eq!(world.rows(outbox).await, expected);
}

#[tokio::test]
async fn a_handler_is_called_once_per_key() {
    let world = world().await;
    let handler = Mailer::default();
    let calls = Arc::clone(&handler.calls);
    world.publish(MAIL, mail("1", "Ann")).await;
    world.publish(MAIL, mail("1", "Ann")).await;
    world.publish(MAIL, mail("1", "Bob")).await;
    let processor = world.processor(HandlerRole::new(role(), MAIL, handler));
    let settled = world.run(&role(), processor).await;
    let expected = ["applied", "duplicate (batch)", "conflict"];
    assert_eq!(outcomes(&settled), expected);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    world.publish(MAIL, mail("1", "Ann")).await;
    assert_eq!(run(&world).await, ["duplicate (claim)"]);
    assert_eq!(mails(&world).await, ["1 Ann"]);
}

#[tokio::test]
async fn a_failure_takes_back_its_own_writes_and_no_others_and_comes_again() {
    let world = world().await;
    world.publish(MAIL, mail("1", "Ann")).await;
    world.publish(MAIL, mail("2", "nobody")).await;
    world.publish(MAIL, mail("3", "Cem")).await;
    let expected = ["applied", "retried (attempt 1, again in 1 s)", "applied"];
    assert_eq!(run(&world).await, expected);
    assert_eq!(mails(&world).await, ["1 Ann", "3 Cem"]);
    assert_eq!(world.claims("key = 'mail/2'").await, [""; 0]);
    world.advance(Duration::from_secs(1));
    assert_eq!(run(&world).await, ["retried (attempt 2, again in 5 s)"]);
    world.advance(Duration::from_secs(5));
    assert_eq!(run(&world).await, ["dead (retries_exhausted)"]);
    assert_eq!(mails(&world).await, ["1 Ann", "3 Cem"]);
    let letter = "SELECT reason, key, detail FROM dead_letter";
    let expected = "retries_exhausted mail/2 nobody lives there";
    assert_eq!(world.row(letter).await, expected);
}

#[tokio::test]
async fn data_that_the_database_refuses_takes_no_neighbour_along() {
    let world = world().await;
    world.publish(MAIL, mail("1", "Ann")).await;
    world.publish(MAIL, mail("2", "refused")).await;
    world.publish(MAIL, mail("3", "Cem")).await;
    let expected = ["applied", "retried (attempt 1, again in 1 s)", "applied"];
    assert_eq!(run(&world).await, expected);
    assert_eq!(mails(&world).await, ["1 Ann", "3 Cem"]);
}

#[tokio::test]
async fn a_database_that_goes_away_in_a_handler_rolls_the_batch_back_and_counts_no_attempt() {
    let world = world().await;
    world.publish(MAIL, mail("1", "Ann")).await;
    world.publish(MAIL, mail("2", "away")).await;
    let mut worker = world.worker(&role(), mailer(&world)).await;
    assert!(worker.run_available().await.is_err());
    assert_eq!(mails(&world).await, [""; 0]);
    let deliveries = crate::support::received(&mut worker).await;
    let attempts: Vec<_> = deliveries.iter().map(|delivery| delivery.attempt).collect();
    assert_eq!(attempts, [0, 0]);
    worker.close().await.unwrap();
}

#[tokio::test]
async fn each_event_of_a_message_is_handled_for_itself() {
    let world = world().await;
    let items = json!({"items": [mail("1", "Ann"), mail("2", "nobody"), mail("1", "Ann")]});
    world.publish(MAIL, items).await;
    let expected = [
        "applied",
        "retried (attempt 1, again in 1 s)",
        "duplicate (batch)",
    ];
    assert_eq!(run(&world).await, expected);
    world.advance(Duration::from_secs(1));
    let expected = [
        "duplicate (claim)",
        "retried (attempt 2, again in 5 s)",
        "duplicate (batch)",
    ];
    let again = run(&world).await;
    assert_eq!(again[..2], expected[..2]);
    assert_eq!(mails(&world).await, ["1 Ann"]);
}

#[tokio::test]
async fn an_event_of_another_type_or_shape_is_dead() {
    let world = world().await;
    world.publish(MAIL, json!({"mail_id": 1})).await;
    let other = envelope("m9", "mail.burn", &mail("1", "Ann"));
    world
        .publish_to(&role(), other.as_bytes(), Headers::new())
        .await;
    assert_eq!(
        run(&world).await,
        ["dead (malformed)", "dead (unknown_type)"]
    );
}

#[tokio::test]
async fn an_event_that_is_decided_anew_is_handled_once_more_and_no_more() {
    let world = world().await;
    world.publish(MAIL, mail("1", "Ann")).await;
    assert_eq!(run(&world).await, ["applied"]);
    let message = envelope("m2", MAIL, &mail("1", "Ann"));
    let anew = Headers::from([(ANEW.to_owned(), "1".to_owned())]);
    for outcome in ["applied", "duplicate (claim)"] {
        world
            .publish_raw(MAIL, message.clone().into_bytes(), anew.clone())
            .await;
        assert_eq!(run(&world).await, [outcome]);
    }
    assert_eq!(mails(&world).await, ["1 Ann", "1 Ann"]);
    // In one batch with a copy that is not decided anew.
    world.publish(MAIL, mail("2", "Bob")).await;
    let message = envelope("m4", MAIL, &mail("2", "Bob"));
    world.publish_raw(MAIL, message.into_bytes(), anew).await;
    assert_eq!(run(&world).await, ["applied", "applied"]);
    assert_eq!(mails(&world).await, ["1 Ann", "1 Ann", "2 Bob", "2 Bob"]);
}

#[tokio::test]
async fn two_events_of_one_type_that_a_handler_publishes_have_ids_of_their_own() {
    let world = world().await;
    world.publish(MAIL, mail("1", "both")).await;
    assert_eq!(run(&world).await, ["applied"]);
    let ids = "SELECT message_id, message ->> 'id' FROM outbox ORDER BY id";
    let expected = [
        "mailer:mail/1>mail.sent mailer:mail/1>mail.sent",
        "mailer:mail/1>mail.sent/2 mailer:mail/1>mail.sent/2",
    ];
    assert_eq!(world.rows(ids).await, expected);
}

// B47
#[tokio::test]
async fn a_long_account_of_a_failure_does_not_keep_its_message_from_the_dead_letters() {
    let world = world().await;
    world.publish(MAIL, mail("1", "long")).await;
    run(&world).await;
    world.advance(Duration::from_secs(1));
    run(&world).await;
    world.advance(Duration::from_secs(5));
    assert_eq!(run(&world).await, ["dead (retries_exhausted)"]);
    let detail = world.row("SELECT length(detail) FROM dead_letter").await;
    assert!(
        detail.parse::<u32>().unwrap() <= 4096,
        "{detail} characters"
    );
}
