//! A proxy in front of a server, which cuts connections when it is told to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A proxy. It cuts all connections when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    server: String,
    /// Raised by one with each cut: connections that are older end.
    cuts: watch::Sender<u64>,
    /// Whether the next answer of the server is kept back, and its connection cut.
    swallowing: AtomicBool,
    /// Whether new connections are cut at once.
    shut: AtomicBool,
}

impl Proxy {
    /// A proxy in front of the server of a URL, which has a host, a port and a path.
    pub(crate) async fn before(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            server: host(url).to_owned(),
            cuts: watch::Sender::new(0),
            swallowing: AtomicBool::new(false),
            shut: AtomicBool::new(false),
        });
        Self {
            address: listener.local_addr().unwrap(),
            listening: tokio::spawn(listen(listener, Arc::clone(&shared))),
            shared,
        }
    }

    /// The URL with the proxy in place of the server.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replace(host(url), &self.address.to_string())
    }

    /// Cuts all connections. New ones are let through.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts all connections, and new ones too until it is opened again.
    pub(crate) fn shut(&self) {
        self.shared.shut.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Lets connections through again.
    pub(crate) fn open(&self) {
        self.shared.shut.store(false, Ordering::SeqCst);
    }

    /// Keeps the server's next answer back, on whichever connection, and cuts all of them: the server
    /// has done what it was asked, and its client does not know.
    pub(crate) fn swallow_next_answer(&self) {
        self.shared.swallowing.store(true, Ordering::SeqCst);
    }

    /// Whether an answer is still to be kept back.
    pub(crate) fn is_swallowing(&self) -> bool {
        self.shared.swallowing.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}

fn host(url: &str) -> &str {
    let (_, rest) = url.split_once('@').unwrap();
    rest.split('/').next().unwrap()
}

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let mut cuts = shared.cuts.subscribe();
            if shared.shut.load(Ordering::SeqCst) {
                return;
            }
            // A server that is away cuts the connection by itself.
            let Ok(server) = TcpStream::connect(&shared.server).await else {
                return;
            };
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let asking = pass(from_client, to_server, None);
            let answering = pass(from_server, to_client, Some(&shared));
            // Whichever way ends first, the connection is over.
            tokio::select! {
                () = asking => {}
                () = answering => {}
                _ = cuts.changed() => {}
            }
        });
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    answers: Option<&Shared>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
    {
        if let Some(shared) = answers
            && shared.swallowing.swap(false, Ordering::SeqCst)
        {
            shared.cuts.send_modify(|cuts| *cuts += 1);
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
