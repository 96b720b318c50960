//! Redis saves work while it is there, and costs nothing when it is not.

use crate::servers::Servers;
use crate::site::until;
use crate::support::{Meddled, World, create, order_role, outcomes};
use orderonce::broker::Broker as _;
use orderonce::domain::{Fingerprint, Key, RoleName};
use orderonce::gate::filter::{Filter, Shape};
use orderonce::gate::redis::{Options, RedisGate};
use orderonce::gate::{Gate, Known, Told};
use orderonce::store;
use redis::Client;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::Duration;

const ROLE: RoleName = RoleName::ORDER;
const PRINT: Fingerprint = Fingerprint([7; 32]);

/// A Redis that this test may do anything to, and a gate to it.
struct Fixture {
    servers: Servers,
    url: String,
    gate: Arc<RedisGate>,
}

async fn fixture() -> Option<Fixture> {
    let servers = Servers::turn().await?;
    let url = servers.start("redis");
    let gate = used(options(&url)).await;
    Some(Fixture { servers, url, gate })
}

/// A namespace of the test's own.
fn options(url: &str) -> Options {
    Options {
        url: url.to_owned(),
        namespace: format!("test{:016x}", fastrand::u64(..)),
        ttl: Duration::from_secs(600),
        patience: Duration::from_millis(500),
        marks: None,
    }
}

/// A gate that is connected.
async fn used(options: Options) -> Arc<RedisGate> {
    let gate = Arc::new(RedisGate::new(options).unwrap());
    comes_back(&gate).await;
    gate
}

async fn comes_back(gate: &RedisGate) {
    until("Redis is used", async || gate.standing().down.is_none()).await;
}

/// Waits until it is gone round; returns why.
async fn is_gone_round(gate: &RedisGate) -> String {
    until("Redis is gone round", async || {
        gate.ask(&ROLE, &[&key("any")]).await;
        gate.standing().down.is_some()
    })
    .await;
    gate.standing().down.unwrap()
}

fn key(text: &str) -> Key {
    Key::new(&[text]).unwrap()
}

async fn tell(gate: &RedisGate, key: &Key) {
    let told = Told {
        key,
        fingerprint: PRINT,
        is_first: true,
    };
    gate.tell(&ROLE, &[told]).await;
}

impl Fixture {
    async fn admin(&self) -> MultiplexedConnection {
        let client = Client::open(self.url.as_str()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    async fn command(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let done: redis::RedisResult<redis::Value> =
            command.query_async(&mut self.admin().await).await;
        done.unwrap();
    }

    /// How long a mark lives, in milliseconds.
    async fn life(&self, key: &str) -> i64 {
        let mut life = redis::cmd("PTTL");
        let life = life.arg(key).query_async(&mut self.admin().await).await;
        life.unwrap()
    }

    async fn knows(&self, key: &Key) -> Known {
        self.gate.ask(&ROLE, &[key]).await[0]
    }
}

#[tokio::test]
async fn what_it_was_told_all_processes_know_until_it_is_flushed() {
    let Some(redis) = fixture().await else { return };
    let (a, b) = (key("a"), key("b"));
    tell(&redis.gate, &a).await;
    let answers = redis.gate.ask(&ROLE, &[&b, &a, &b]).await;
    assert_eq!(
        answers,
        [Known::Unknown, Known::Done(PRINT), Known::Unknown]
    );
    let of_another_role = redis.gate.ask(&RoleName::PAYMENT, &[&a]).await;
    assert_eq!(of_another_role, [Known::Unknown]);
    let elsewhere = used(options(&redis.url)).await;
    assert_eq!(
        elsewhere.ask(&ROLE, &[&a]).await,
        [Known::Unknown],
        "another namespace"
    );
    redis.command(&["FLUSHALL"]).await;
    assert_eq!(redis.knows(&a).await, Known::Unknown);
    assert_eq!(redis.gate.standing().down, None);
}

#[tokio::test]
async fn commands_are_counted_and_keys_that_do_not_come_again_are_forgotten() {
    let Some(redis) = fixture().await else { return };
    let (a, b) = (key("a"), key("b"));
    let gate = &redis.gate;
    assert_eq!(gate.commands(), 0);
    gate.ask(&ROLE, &[&a, &b]).await;
    assert_eq!(gate.commands(), 1, "one question for a batch");
    let told = [&a, &b].map(|key| Told {
        key,
        fingerprint: PRINT,
        is_first: true,
    });
    gate.tell(&ROLE, &told).await;
    assert_eq!(gate.commands(), 3, "one command for each key");
    gate.forget(&ROLE, std::slice::from_ref(&a)).await;
    gate.forget(&ROLE, &[]).await;
    let answers = gate.ask(&ROLE, &[&a, &b]).await;
    assert_eq!(answers, [Known::Unknown, Known::Done(PRINT)]);
    assert_eq!(gate.standing().down, None);
}

#[tokio::test]
async fn a_key_is_forgotten_after_its_time() {
    let Some(redis) = fixture().await else { return };
    let brief = Options {
        ttl: Duration::from_millis(50),
        ..options(&redis.url)
    };
    let gate = used(brief).await;
    let a = key("a");
    tell(&gate, &a).await;
    until("it is forgotten", async || {
        gate.ask(&ROLE, &[&a]).await == [Known::Unknown]
    })
    .await;
    assert_eq!(gate.standing().down, None);
}

#[tokio::test]
async fn one_that_is_slow_is_waited_for_once_and_used_again_when_it_is_quick() {
    let Some(redis) = fixture().await else { return };
    let a = key("a");
    tell(&redis.gate, &a).await;
    redis.command(&["CLIENT", "PAUSE", "3000", "ALL"]).await;
    assert_eq!(redis.knows(&a).await, Known::Unknown);
    let why = redis.gate.standing().down.unwrap();
    assert!(why.contains("no answer within 500ms"), "{why}");
    comes_back(&redis.gate).await;
    assert_eq!(redis.knows(&a).await, Known::Done(PRINT));
}

#[tokio::test]
async fn one_that_was_killed_is_used_again_after_its_start() {
    let Some(redis) = fixture().await else { return };
    redis.servers.kill("redis");
    is_gone_round(&redis.gate).await;
    tell(&redis.gate, &key("a")).await;
    redis.servers.start("redis");
    comes_back(&redis.gate).await;
    assert_eq!(redis.knows(&key("a")).await, Known::Unknown);
    tell(&redis.gate, &key("a")).await;
    assert_eq!(redis.knows(&key("a")).await, Known::Done(PRINT));
}

#[tokio::test]
async fn one_that_takes_no_writes_is_gone_round() {
    let Some(redis) = fixture().await else { return };
    // A replica of a server that is not there only reads.
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    tell(&redis.gate, &key("a")).await;
    let why = is_gone_round(&redis.gate).await;
    assert!(why.to_lowercase().contains("read"), "{why}");
    redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    comes_back(&redis.gate).await;

    redis
        .command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    tell(&redis.gate, &key("a")).await;
    let why = is_gone_round(&redis.gate).await;
    assert!(why.contains("memory") || why.contains("OOM"), "{why}");
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    comes_back(&redis.gate).await;
}

#[tokio::test]
async fn a_wrong_password_is_named_without_showing_it() {
    let Some(redis) = fixture().await else { return };
    let (_, host) = redis.url.rsplit_once('@').unwrap();
    let wrong = RedisGate::new(options(&format!("redis://:hunter2@{host}"))).unwrap();
    until("it was tried", async || {
        let why = wrong.standing().down;
        why.is_some_and(|why| why != "not connected yet")
    })
    .await;
    let shown = format!("{:?}", wrong.standing());
    assert!(
        shown.to_lowercase().contains("auth") || shown.contains("WRONGPASS"),
        "{shown}"
    );
    assert!(!shown.contains("hunter2") && !format!("{wrong:?}").contains("hunter2"));
    let refused = RedisGate::new(options("http://:hunter2@host")).unwrap_err();
    assert!(!refused.contains("hunter2"), "{refused}");
}

/// The filter spares Redis what was never told of; a copy is a duplicate of the gate, other content goes
/// to the database.
#[tokio::test]
async fn copies_stop_at_the_gate_and_conflicts_do_not() {
    let Some(redis) = fixture().await else { return };
    let world = World::new().await;
    let filter = Filter::new(Shape::of(1_000, 0.01), 5, &RoleName::BUILT_IN);
    let gates: Vec<Arc<dyn Gate>> = vec![Arc::new(filter), Arc::clone(&redis.gate) as _];
    for (qty, expected) in [
        (1, "applied"),
        (1, "duplicate (gate)"),
        (2, "conflict"),
        (1, "duplicate (gate)"),
    ] {
        world
            .publish("order.create", create("O1", &[("A", qty)]))
            .await;
        let orders = world.orders().with_gates(gates.clone());
        assert_eq!(outcomes(&world.run(&ROLE, orders).await), [expected]);
    }
    // Without Redis the database says the same.
    redis.servers.kill("redis");
    is_gone_round(&redis.gate).await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let orders = world.orders().with_gates(gates);
    assert_eq!(
        outcomes(&world.run(&ROLE, orders).await),
        ["duplicate (claim)"]
    );
    redis.servers.start("redis");
}

/// Workers of one role that mark what they have in hand.
struct Marking {
    namespace: String,
    gate: Arc<RedisGate>,
}

impl Marking {
    async fn at(redis: &Fixture) -> Self {
        let options = Options {
            marks: Some("process".to_owned()),
            ..options(&redis.url)
        };
        Self {
            namespace: options.namespace.clone(),
            gate: used(options).await,
        }
    }

    /// A process that was started after this one, under a name.
    async fn again(&self, redis: &Fixture, process: &str) -> Self {
        let options = Options {
            marks: Some(process.to_owned()),
            namespace: self.namespace.clone(),
            ..options(&redis.url)
        };
        Self {
            namespace: self.namespace.clone(),
            gate: used(options).await,
        }
    }

    fn worker(&self, name: &str) -> Arc<dyn Gate> {
        self.gate.of_worker(name).unwrap()
    }

    fn key(&self, key: &Key) -> String {
        format!("{}:{{order}}:{key}", self.namespace)
    }
}

#[tokio::test]
async fn a_mark_is_taken_back_by_its_owner_alone() {
    let Some(redis) = fixture().await else { return };
    let marking = Marking::at(&redis).await;
    let (a, b) = (marking.worker("a"), marking.worker("b"));
    let keys = [&key("k1"), &key("k2")];
    assert_eq!(a.ask(&ROLE, &keys[..1]).await, [Known::Unknown]);
    assert_eq!(b.ask(&ROLE, &keys).await, [Known::Held, Known::Unknown]);
    b.release(&ROLE, &keys).await;
    assert_eq!(b.ask(&ROLE, &keys[..1]).await, [Known::Held]);
    assert_eq!(a.ask(&ROLE, &keys[1..]).await, [Known::Unknown]);
    a.release(&ROLE, &keys).await;
    assert_eq!(b.ask(&ROLE, &keys).await, [Known::Unknown; 2]);
    let told = Told {
        key: keys[0],
        fingerprint: PRINT,
        is_first: true,
    };
    b.tell(&ROLE, &[told]).await;
    b.release(&ROLE, &keys).await;
    assert_eq!(
        a.ask(&ROLE, &keys).await,
        [Known::Done(PRINT), Known::Unknown]
    );
    assert!(redis.gate.of_worker("a").is_none(), "marks are off");
}

#[tokio::test]
async fn a_process_that_was_killed_half_way_takes_its_own_marks_over() {
    let Some(redis) = fixture().await else { return };
    let first = Marking::at(&redis).await;
    let k = key("k");
    let ask = async |marking: &Marking, worker| marking.worker(worker).ask(&ROLE, &[&k]).await;
    assert_eq!(ask(&first, "a").await, [Known::Unknown]);
    let life = redis.life(&first.key(&k)).await;
    assert!((1..=30_000).contains(&life), "{life}");
    redis.command(&["PEXPIRE", &first.key(&k), "20000"]).await;
    assert_eq!(ask(&first, "b").await, [Known::Held]);
    let other = first.again(&redis, "another process").await;
    assert_eq!(ask(&other, "a").await, [Known::Held]);
    assert!(redis.life(&first.key(&k)).await <= 20_000);
    let second = first.again(&redis, "process").await;
    assert_eq!(ask(&second, "b").await, [Known::Unknown], "taken over");
    let life = redis.life(&first.key(&k)).await;
    assert!((20_001..=30_000).contains(&life), "{life}");
    assert_eq!(ask(&second, "a").await, [Known::Held], "it is b's now");
    assert_eq!(ask(&second, "b").await, [Known::Unknown]);
    second.worker("b").release(&ROLE, &[&k]).await;
    assert_eq!(redis.life(&first.key(&k)).await, -2, "it is gone");
}

// B81
#[tokio::test]
async fn a_copy_of_what_another_worker_has_in_hand_waits_and_is_never_acknowledged() {
    let Some(redis) = fixture().await else { return };
    let marking = Marking::at(&redis).await;
    let world = World::new().await;
    let run = async |worker: &str| {
        let orders = world.orders().with_gates(vec![marking.worker(worker)]);
        outcomes(&world.run(&ROLE, orders).await)
    };
    let create_key = Key::new(&["O1", "order.create"]).unwrap();
    marking.worker("a").ask(&ROLE, &[&create_key]).await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    for _ in 0..5 {
        assert_eq!(run("b").await, ["retried (attempt 0, again in 1 s)"]);
        assert_eq!(run("b").await, [""; 0]);
        let depth = world.queue.depth(&ROLE).await.unwrap();
        assert_eq!((depth.ready, depth.delayed), (0, 1));
        world.advance(Duration::from_secs(1));
    }
    assert_eq!(world.count("idempotent_record").await, 0);
    marking.worker("a").release(&ROLE, &[&create_key]).await;
    assert_eq!(run("b").await, ["applied"]);
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    assert_eq!(run("a").await, ["duplicate (gate)"]);
}

// B81
#[tokio::test]
async fn a_failure_leaves_no_mark_that_would_hold_up_the_next_attempt() {
    let Some(redis) = fixture().await else { return };
    let marking = Marking::at(&redis).await;
    let world = World::new().await;
    let gates = |worker| vec![marking.worker(worker)];
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let fails = |_: &str| Some(store::Error::Refused("of no use".to_owned()));
    let failing = Meddled::failing(order_role(), fails);
    let failed = world.processor(failing).with_gates(gates("a"));
    let failed = outcomes(&world.run(&ROLE, failed).await);
    assert_eq!(failed, ["retried (attempt 1, again in 1 s)"]);
    world.advance(Duration::from_secs(1));
    let away = |_: &str| Some(store::Error::Unavailable("away".to_owned()));
    let away = Meddled::failing(order_role(), away);
    let away = world.processor(away).with_gates(gates("a"));
    assert!(world.try_run(&ROLE, away).await.is_err());
    let orders = world.orders().with_gates(gates("b"));
    assert_eq!(outcomes(&world.run(&ROLE, orders).await), ["applied"]);
}

// B79
#[tokio::test]
async fn redis_that_is_flushed_half_way_lets_the_database_stop_the_copy() {
    let Some(redis) = fixture().await else { return };
    let marking = Marking::at(&redis).await;
    let world = World::new().await;
    for number in 0..2 {
        let message = create("O1", &[("A", 1)]);
        world
            .publish_as(&format!("m{number}"), "order.create", message)
            .await;
    }
    let mut a = world
        .worker(&ROLE, world.orders().with_gates(vec![marking.worker("a")]))
        .await;
    let deliveries = a.receive().await.unwrap();
    let (first, second) = deliveries.split_at(1);
    let create_key = Key::new(&["O1", "order.create"]).unwrap();
    marking.worker("b").ask(&ROLE, &[&create_key]).await;
    redis.command(&["FLUSHALL"]).await;
    assert_eq!(outcomes(&a.handle(first).await.unwrap()), ["applied"]);
    redis.command(&["FLUSHALL"]).await;
    assert_eq!(
        outcomes(&a.handle(second).await.unwrap()),
        ["duplicate (claim)"]
    );
    a.close().await.unwrap();
}
