//! A RabbitMQ of the test run, a proxy in front of it, and the exchanges and queues of one test.

use crate::broker::{Adapter, DELIVERY_LIMIT, topology};
use crate::proxy::Proxy;
use crate::servers;
use async_trait::async_trait;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use orderonce::broker::amqp::{Amqp, Options};
use orderonce::broker::{Broker, Consumer};
use orderonce::domain::RoleName;
use std::time::Duration;

/// The options of one test: names of its own, and few and short delays.
pub(crate) fn options(url: &str) -> Options {
    let prefix = format!("{:012x}.", fastrand::u64(..1 << 48));
    Options {
        exchange: format!("{prefix}events"),
        prefix,
        delivery_limit: DELIVERY_LIMIT,
        levels: vec![Duration::from_secs(1), Duration::from_secs(10)],
        ..Options::new(vec![url.to_owned()])
    }
}

pub(crate) struct AmqpAdapter {
    pub(crate) proxy: Proxy,
    pub(crate) options: Options,
    pub(crate) broker: Amqp,
    /// The URL of the server, past the proxy.
    pub(crate) server: String,
    connection: Connection,
    channel: Channel,
}

/// The URL of the server that all tests share.
pub(crate) fn server() -> String {
    servers::shared("ORDERONCE_TEST_AMQP_URL")
}

/// Fresh queues, and a broker that reaches them by way of a proxy.
pub(crate) async fn fresh() -> AmqpAdapter {
    fresh_at(&server(), |_| {}).await
}

pub(crate) async fn fresh_at(server: &str, change: impl FnOnce(&mut Options)) -> AmqpAdapter {
    let proxy = Proxy::before(server).await;
    let mut options = options(&proxy.url(server));
    change(&mut options);
    Amqp::migrate(&options, topology()).await.unwrap();
    let broker = Amqp::open(&options, topology()).await.unwrap();
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(server, properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    AmqpAdapter {
        proxy,
        options,
        broker,
        server: server.to_owned(),
        connection,
        channel,
    }
}

impl AmqpAdapter {
    pub(crate) fn queue(&self, role: &RoleName) -> String {
        format!("{}{role}", self.options.prefix)
    }

    /// A channel past the proxy and the broker.
    pub(crate) async fn channel(&self) -> Channel {
        self.connection.create_channel().await.unwrap()
    }

    /// How many consumers the queues have.
    async fn consumers(&self) -> u32 {
        let mut consumers = 0;
        for role in topology().roles() {
            let passive = QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::default()
            };
            let queue = self.queue(role).as_str().into();
            let declared = self
                .channel
                .queue_declare(queue, passive, FieldTable::default());
            consumers += declared.await.unwrap().consumer_count();
        }
        consumers
    }
}

#[async_trait]
impl Adapter for AmqpAdapter {
    fn broker(&self) -> &dyn Broker {
        &self.broker
    }

    async fn advance(&self, by: Duration) {
        tokio::time::sleep(by).await;
    }

    /// What was received is dropped with the channel, as when a process ends.
    async fn kill(&self, consumer: Box<dyn Consumer>) {
        let before = self.consumers().await;
        drop(consumer);
        while self.consumers().await >= before {}
    }

    async fn take_deliveries_away(&self) {
        self.proxy.cut();
        while self.consumers().await > 0 {}
    }

    /// What was written to a connection that is cut may never arrive.
    async fn end_holds(&self) {
        self.broker.close().await;
        while self.consumers().await > 0 {}
    }
}

/// Hundreds of quorum queues would slow the server down.
impl Drop for AmqpAdapter {
    fn drop(&mut self) {
        let url = self.server.clone();
        let options = Options {
            hosts: vec![url],
            ..self.options.clone()
        };
        let removing = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let removing = async move { Amqp::remove(&options, topology()).await };
            // A test that fails already says why.
            let _ = runtime.unwrap().block_on(removing);
        });
        let _ = removing.join();
    }
}
