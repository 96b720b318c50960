//! Connecting, and what must be at the server.

use super::fixture::{AmqpAdapter, fresh, options, server};
use crate::broker::{Adapter, in_time, message, publish, topology};
use crate::servers;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use orderonce::broker::amqp::{Amqp, Migration, Options};
use orderonce::broker::{Broker, Error, Setup, State, Topology};
use orderonce::domain::RoleName;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use url::Url;

/// What opening with these options is refused with.
async fn refused(options: &Options) -> Setup {
    match in_time(Amqp::open(options, topology())).await {
        Err(Error::Setup(setup)) => setup,
        other => panic!("{other:?}"),
    }
}

/// The options for the shared server with a part of its URL changed.
fn changed(change: impl FnOnce(&mut Url)) -> Options {
    let mut url = Url::parse(&server()).unwrap();
    change(&mut url);
    options(url.as_str())
}

fn assert_sentence(setup: &Setup, start: &str, remedy: &str) {
    let text = setup.to_string();
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains(remedy), "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
}

#[tokio::test]
async fn a_host_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let options = options(&format!("amqp://shop:secret@127.0.0.1:{port}/shop"));
    let setup = refused(&options).await;
    assert!(matches!(setup, Setup::Unreachable { .. }), "{setup:?}");
    let start = format!("nothing answers at amqp://shop:***@127.0.0.1:{port}/shop (");
    assert_sentence(&setup, &start, "start the broker or change broker.url");
}

/// The server closes a channel for each exchange and queue that is not there yet; the connection stays.
#[tokio::test]
async fn migrating_a_fresh_broker_loses_no_connection() {
    let scratch = tempfile::tempdir().unwrap();
    let prefix = format!("fresh{:08x}", fastrand::u32(..));
    let migrated = std::process::Command::new(env!("CARGO_BIN_EXE_orderonce"))
        .arg("migrate")
        .env_clear()
        .env("ORDERONCE__BROKER__URL", server())
        .env("ORDERONCE__BROKER__PREFIX", &prefix)
        .current_dir(scratch.path())
        .output()
        .unwrap();
    let options = Options {
        exchange: format!("{prefix}.events"),
        prefix: format!("{prefix}."),
        ..Options::new(vec![server()])
    };
    Amqp::remove(&options, Topology::default()).await.unwrap();
    let logged = String::from_utf8_lossy(&migrated.stderr);
    assert!(migrated.status.success() && logged.is_empty(), "{logged}");
}

#[tokio::test]
async fn what_does_not_speak_amqp_is_named() {
    for greeting in ["HTTP/1.1 400 Bad Request\r\n\r\n", ""] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(greeting.as_bytes()).await;
            }
        });
        let options = options(&format!("amqp://127.0.0.1:{port}"));
        let setup = refused(&options).await;
        assert!(matches!(setup, Setup::NotABroker { .. }), "{setup:?}");
        assert_sentence(&setup, "what answers at ", "does not speak AMQP 0-9-1");
    }
}

#[tokio::test]
async fn a_host_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let options = Options {
        connect_timeout: Duration::from_millis(50),
        ..options(&format!("amqp://{address}"))
    };
    let setup = refused(&options).await;
    assert_sentence(&setup, "what answers at ", "silent for 0.05 s");
}

#[tokio::test]
async fn a_wrong_password_is_named_and_not_shown() {
    let options = changed(|url| url.set_password(Some("not-it")).unwrap());
    let setup = refused(&options).await;
    assert!(
        matches!(&setup, Setup::Login { user, .. } if user == "orderonce"),
        "{setup:?}"
    );
    assert_sentence(
        &setup,
        "the broker at amqp://orderonce:***@",
        "correct user and password in broker.url",
    );
    assert!(!setup.to_string().contains("not-it"));
}

#[tokio::test]
async fn a_missing_virtual_host_is_named() {
    for (path, vhost) in [("/nowhere", "nowhere"), ("/", "")] {
        let setup = refused(&changed(|url| url.set_path(path))).await;
        assert!(
            matches!(&setup, Setup::VirtualHost { vhost: v, .. } if v == vhost),
            "{setup:?}"
        );
        assert_sentence(
            &setup,
            "the broker at ",
            "/%2f for the default virtual host",
        );
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused_and_one_of_the_authority_is_taken() {
    let variables = ["ORDERONCE_TEST_AMQPS_URL", "ORDERONCE_TEST_CA_FILE"].map(std::env::var);
    let [Ok(url), Ok(authority)] = variables else {
        eprintln!("skipped: the servers of these tests have no TLS");
        return;
    };
    let setup = refused(&options(&url)).await;
    assert!(matches!(setup, Setup::Tls { .. }), "{setup:?}");
    assert_sentence(&setup, "no TLS to the broker at amqps://", "broker.ca_file");

    let trusting = Options {
        ca_file: Some(PathBuf::from(authority)),
        ..options(&url)
    };
    let setup = refused(&trusting).await;
    assert!(matches!(setup, Setup::Missing { .. }), "{setup:?}");

    let by_address = url.replace("localhost", "127.0.0.2");
    let setup = refused(&Options {
        hosts: vec![by_address],
        ..trusting
    })
    .await;
    assert!(
        matches!(setup, Setup::Tls { .. } | Setup::Unreachable { .. }),
        "{setup:?}"
    );
}

#[tokio::test]
async fn plain_amqp_where_tls_is_expected_is_refused() {
    let setup = refused(&changed(|url| url.set_scheme("amqps").unwrap())).await;
    assert!(matches!(setup, Setup::Tls { .. }), "{setup:?}");
}

#[tokio::test]
async fn a_file_of_certificates_that_cannot_be_used_is_named() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    for path in [empty.path().to_owned(), empty.path().join("nothing")] {
        let options = Options {
            ca_file: Some(path.clone()),
            ..options(&server())
        };
        let setup = refused(&options).await;
        let start = format!("broker.ca_file is {}: ", path.display());
        assert_sentence(&setup, &start, "");
    }
}

#[tokio::test]
async fn a_server_without_our_queues_asks_for_a_migration_and_gets_none() {
    let options = options(&server());
    for _ in 0..2 {
        let setup = refused(&options).await;
        assert!(matches!(setup, Setup::Missing { .. }), "{setup:?}");
        assert_sentence(&setup, "there is no exchange ", "with `orderonce migrate`");
    }
}

#[tokio::test]
async fn a_migration_says_what_it_created_and_the_next_creates_nothing() {
    let options = options(&server());
    let migrated = Amqp::migrate(&options, topology()).await.unwrap();
    let queue = format!("queue {}order.crashed", options.prefix);
    assert!(migrated.created.contains(&queue), "{migrated:?}");
    // The events, and for each of the two delays; five roles with two queues, two delays.
    assert_eq!(migrated.created.len(), 3 + 5 * 2 + 2, "{migrated:?}");
    assert_eq!(migrated.warnings, [""; 0]);
    let again = Amqp::migrate(&options, topology()).await.unwrap();
    assert_eq!(again, Migration::default());
    Amqp::remove(&options, topology()).await.unwrap();
}

#[tokio::test]
async fn a_missing_queue_is_named() {
    let adapter = fresh().await;
    for queue in ["order", "order.crashed", "delay.1s"] {
        let name = format!("{}{queue}", adapter.options.prefix);
        delete(&adapter, &name).await;
        let setup = refused(&adapter.options).await;
        let expected = Setup::Missing {
            what: "queue",
            name,
            at: at(&adapter),
        };
        assert_eq!(setup, expected);
        Amqp::migrate(&adapter.options, topology()).await.unwrap();
    }
}

fn at(adapter: &AmqpAdapter) -> String {
    adapter.broker.connections()[0].at.clone()
}

async fn delete(adapter: &AmqpAdapter, queue: &str) {
    let channel = adapter.channel().await;
    let options = QueueDeleteOptions::default();
    channel.queue_delete(queue.into(), options).await.unwrap();
}

/// Declares a queue of another kind in the place of one of ours.
async fn replace(adapter: &AmqpAdapter, queue: &str, arguments: &[(&str, AMQPValue)]) {
    delete(adapter, queue).await;
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let channel = adapter.channel().await;
    let declared = channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), table);
    declared.await.unwrap();
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

#[tokio::test]
async fn a_queue_that_was_made_otherwise_is_named_with_both_values() {
    let adapter = fresh().await;
    let other = Options {
        delivery_limit: 7,
        ..adapter.options.clone()
    };
    let expected = Setup::Mismatch {
        what: "queue",
        name: format!("{}account", adapter.options.prefix),
        at: at(&adapter),
        argument: "x-delivery-limit".to_owned(),
        found: "2".to_owned(),
        expected: "6".to_owned(),
    };
    assert_eq!(refused(&other).await, expected);
    let migrated = Amqp::migrate(&other, topology()).await;
    assert_eq!(migrated, Err(Error::Setup(expected.clone())));
    assert_sentence(&expected, "queue ", "has x-delivery-limit 2, expected 6");

    let delay = format!("{}delay.1s", adapter.options.prefix);
    replace(&adapter, &delay, &[]).await;
    let setup = refused(&adapter.options).await;
    assert!(
        matches!(&setup, Setup::Mismatch { name, argument, .. } if *name == delay && argument == "x-message-ttl"),
        "{setup:?}"
    );
}

#[tokio::test]
async fn an_exchange_of_another_kind_is_named() {
    let options = options(&server());
    let url = server();
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default());
    let connection = connection.await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let name = options.exchange.as_str();
    let declared = channel.exchange_declare(
        name.into(),
        ExchangeKind::Direct,
        durable,
        FieldTable::default(),
    );
    declared.await.unwrap();
    let migrated = Amqp::migrate(&options, topology()).await;
    assert!(
        matches!(
            &migrated,
            Err(Error::Setup(Setup::Mismatch { what: "exchange", argument, found, expected, .. }))
                if (argument.as_str(), found.as_str(), expected.as_str()) == ("type", "direct", "topic")
        ),
        "{migrated:?}"
    );
    let deleted = channel.exchange_delete(
        name.into(),
        lapin::options::ExchangeDeleteOptions::default(),
    );
    deleted.await.unwrap();
}

/// B55: the server drops a message that was returned too often, unless it has somewhere to put it.
#[tokio::test]
async fn a_delivery_limit_without_a_dead_letter_queue_is_refused() {
    let adapter = fresh().await;
    let queue = adapter.queue(&RoleName::ORDER);
    let limit = AMQPValue::LongInt(2);
    let arguments = [
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", limit),
    ];
    replace(&adapter, &queue, &arguments).await;
    let setup = refused(&adapter.options).await;
    let expected = Setup::NoDeadLetters {
        name: queue,
        at: at(&adapter),
    };
    assert_eq!(setup, expected);
    assert_sentence(&setup, "queue ", "drops each message at the delivery limit");
}

#[tokio::test]
async fn a_classic_queue_is_taken_with_a_warning_of_what_is_lost() {
    let adapter = fresh().await;
    let queue = adapter.queue(&RoleName::ORDER);
    replace(&adapter, &queue, &[]).await;
    let migrated = Amqp::migrate(&adapter.options, topology()).await.unwrap();
    assert_eq!(migrated.created, [""; 0]);
    let [warning] = &migrated.warnings[..] else {
        panic!("{migrated:?}");
    };
    assert!(
        warning.starts_with(&format!("queue {queue} is a classic queue: ")),
        "{warning}"
    );
    let broker = Amqp::open(&adapter.options, topology()).await.unwrap();
    publish(&broker, &[message("m1", "order.create")]).await;
    let mut consumer = broker.consumer(&RoleName::ORDER, 1).await.unwrap();
    let first = in_time(consumer.receive(1)).await.unwrap();
    assert_eq!(first[0].deliveries, 1);
    adapter.kill(consumer).await;
    let mut consumer = broker.consumer(&RoleName::ORDER, 1).await.unwrap();
    let second = in_time(consumer.receive(1)).await.unwrap();
    assert_eq!(second[0].deliveries, 2);
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let Some(directory) = std::env::var_os("ORDERONCE_TEST_SERVERS").map(PathBuf::from) else {
        eprintln!("skipped: the servers of these tests are not ours to manage");
        return;
    };
    let adapter = fresh().await;
    let user = format!("guest{:08x}", fastrand::u32(..));
    let ctl = |args: &[&str]| servers::run("ctl", &directory, args);
    ctl(&["add_user", &user, "secret"]);
    let as_guest = |permissions: [&str; 3]| {
        let [configure, write, read] = permissions;
        ctl(&["set_permissions", &user, configure, write, read]);
        let mut url = Url::parse(&server()).unwrap();
        url.set_username(&user).unwrap();
        Options {
            hosts: vec![url.into()],
            ..adapter.options.clone()
        }
    };

    let options = as_guest(["^$", ".*", ".*"]);
    // One who may only use the queues can work.
    let broker = Amqp::open(&options, topology()).await.unwrap();
    publish(&broker, &[message("m1", "order.create")]).await;
    let fresh_names = Options {
        prefix: "none.".to_owned(),
        exchange: "none.events".to_owned(),
        ..options
    };
    let migrated = Amqp::migrate(&fresh_names, topology()).await;
    let Err(Error::Setup(setup @ Setup::Permission { .. })) = migrated else {
        panic!("{migrated:?}");
    };
    assert_sentence(&setup, "the broker at ", "access to exchange 'none.events'");

    let broker = Amqp::open(&as_guest(["^$", "^$", "^$"]), topology())
        .await
        .unwrap();
    let consumer = broker.consumer(&RoleName::ORDER, 1).await.err();
    let mut publisher = broker.publisher().await.unwrap();
    let published = publisher
        .publish(&[message("m1", "order.create")])
        .await
        .err();
    for error in [consumer, published] {
        let Some(Error::Unavailable(sentence)) = error else {
            panic!("{error:?}");
        };
        assert!(
            sentence.contains("rabbitmqctl set_permissions"),
            "{sentence}"
        );
    }
    ctl(&["delete_user", &user]);
}

#[tokio::test]
async fn hosts_are_tried_in_turn_and_the_one_in_use_is_named() {
    let adapter = fresh().await;
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let options = Options {
        hosts: vec![format!("amqp://shop:secret@{closed}"), server()],
        ..adapter.options.clone()
    };
    let broker = Amqp::open(&options, topology()).await.unwrap();
    let at = server().replace(":secret@", ":***@");
    for connection in broker.connections() {
        assert_eq!(connection.state, State::Up);
        assert_eq!(connection.at, at);
    }
}

#[tokio::test]
async fn no_option_shows_a_password() {
    let shown = format!("{:?}", options("amqp://shop:secret@mq"));
    assert!(!shown.contains("secret"), "{shown}");
    let adapter = fresh().await;
    let shown = format!("{:?}", adapter.broker);
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn a_lost_connection_is_down_and_comes_back() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let names: Vec<_> = broker.connections().iter().map(|c| c.name).collect();
    assert_eq!(names, ["consuming", "publishing"]);
    adapter.proxy.shut();
    let is_down = || {
        broker
            .connections()
            .iter()
            .all(|c| matches!(c.state, State::Down(_)))
    };
    in_time(async {
        while !is_down() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let lost = broker.publisher().await.err();
    assert!(matches!(lost, Some(Error::Unavailable(_))), "{lost:?}");
    adapter.proxy.open();
    in_time(async {
        while broker.publisher().await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(broker.connections()[1].state, State::Up);
}
