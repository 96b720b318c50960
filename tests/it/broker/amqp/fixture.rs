//! A RabbitMQ of the test run, a proxy in front of it, and the exchanges and queues of one test.

use crate::broker::{Adapter, DELIVERY_LIMIT, topology};
use async_trait::async_trait;
use lapin::options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use orderonce::broker::amqp::{Amqp, Options};
use orderonce::broker::{Broker, Consumer};
use orderonce::domain::RoleName;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use url::Url;

/// The URL of the server that all tests share.
pub(crate) fn server() -> String {
    let variable = "ORDERONCE_TEST_AMQP_URL";
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set, use ./tests/run"))
}

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

/// A connection of the test's own, past the proxy.
pub(crate) async fn connect() -> Connection {
    let properties = ConnectionProperties::default();
    Connection::connect(&server(), properties).await.unwrap()
}

pub(crate) struct AmqpAdapter {
    pub(crate) proxy: Proxy,
    pub(crate) options: Options,
    pub(crate) broker: Amqp,
    connection: Connection,
    channel: Channel,
}

/// Fresh queues, and a broker that reaches them by way of a proxy.
pub(crate) async fn fresh() -> AmqpAdapter {
    fresh_with(|_| {}).await
}

pub(crate) async fn fresh_with(change: impl FnOnce(&mut Options)) -> AmqpAdapter {
    let proxy = Proxy::start(&server()).await;
    let mut options = options(&proxy.url);
    change(&mut options);
    Amqp::migrate(&options, topology()).await.unwrap();
    let broker = Amqp::open(&options, topology()).await.unwrap();
    let connection = connect().await;
    let channel = connection.create_channel().await.unwrap();
    AmqpAdapter {
        proxy,
        options,
        broker,
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
        self.proxy.cut();
        let prefix = self.options.prefix.clone();
        let exchange = self.options.exchange.clone();
        let delete = async move {
            let connection = connect().await;
            let channel = connection.create_channel().await.unwrap();
            let roles = topology();
            let roles = roles.roles();
            let queues = roles.flat_map(|role| [role.to_string(), format!("{role}.crashed")]);
            let delays = ["delay.1s", "delay.10s"].map(str::to_owned);
            for name in queues.chain(delays.clone()) {
                let name = format!("{prefix}{name}");
                let options = QueueDeleteOptions::default();
                channel
                    .queue_delete(name.as_str().into(), options)
                    .await
                    .unwrap();
            }
            let delays = delays.map(|name| format!("{prefix}{name}"));
            for name in delays.into_iter().chain([exchange]) {
                let options = ExchangeDeleteOptions::default();
                channel
                    .exchange_delete(name.as_str().into(), options)
                    .await
                    .unwrap();
            }
            connection.close(200, "OK".into()).await.unwrap();
        };
        let deleting = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(delete);
        });
        // A test that fails already says why.
        let _ = deleting.join();
    }
}

/// Passes connections on to the server until they are cut.
pub(crate) struct Proxy {
    /// The server's URL, with the proxy as its host.
    pub(crate) url: String,
    connections: Arc<Mutex<Option<JoinSet<()>>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server: &str) -> Self {
        let mut url = Url::parse(server).unwrap();
        let host = url.host_str().unwrap().to_owned();
        let target = (host, url.port().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        url.set_port(Some(address.port())).unwrap();
        let connections = Arc::new(Mutex::new(Some(JoinSet::new())));
        let shared = Arc::clone(&connections);
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let target = target.clone();
                if let Some(connections) = shared.lock().unwrap().as_mut() {
                    connections.spawn(async move {
                        // Either end may end it as it likes.
                        let _ = pass(client, target).await;
                    });
                }
            }
        });
        Self {
            url: url.into(),
            connections,
            accepting,
        }
    }

    /// Ends all connections, as a lost network does.
    pub(crate) fn cut(&self) {
        if let Some(connections) = self.connections.lock().unwrap().as_mut() {
            connections.abort_all();
        }
    }

    /// Ends all connections, and every new one at once.
    pub(crate) fn shut(&self) {
        self.connections.lock().unwrap().take();
    }

    /// Lets connections through again.
    pub(crate) fn open(&self) {
        self.connections.lock().unwrap().get_or_insert_default();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(mut client: TcpStream, target: (String, u16)) -> io::Result<()> {
    let mut server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
