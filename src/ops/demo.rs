//! A real shop's day through all four roles, with duplicates, overtaking and kills, and the proof
//! that every effect happened once.
//!
//! The workers are a child process, so that a kill is a kill. This process is the shop: it publishes
//! the day's messages, publishes some again, waits until all is settled, and counts.

mod naive;
mod report;
mod shop;
mod tap;

pub use naive::Naive;
pub use report::Report;

use super::deployment::{self, Deployment};
use super::online_retail::{self, Import, Opening};
use super::progress::Progress;
use super::{import, reconcile};
use crate::broker::{self, Broker, Publication};
use crate::config::{self, Config, Url};
use crate::domain::event::{Event, InventoryEvent};
use crate::message::Outgoing;
use crate::worker::inventory::InventoryRole;
use crate::worker::{self, Processor};
use crate::{domain, store};
use shop::Shop;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tap::Tap;

/// The first day of the UCI Online Retail data set.
/// Daqing Chen (2015), <https://doi.org/10.24432/C5BW33>, CC BY 4.0.
pub const FIRST_DAY: &[u8] = include_bytes!("../../tests/data/online-retail-2010-12-01.csv");

/// What the demo is to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// An Online Retail file; the first day if `None`.
    pub data: Option<PathBuf>,
    /// The probability with which each message is delivered once more, from 0 to 1.
    pub duplicates: f64,
    /// Whether messages overtake each other.
    pub shuffle: bool,
    /// How often the workers are killed.
    pub kills: u32,
    /// What duplicates, order and kills follow from.
    pub seed: u64,
    /// The directory in which everything happens.
    pub dir: PathBuf,
    /// The program to run as the workers: this one.
    pub program: PathBuf,
    /// The servers to run on; a file and the embedded queue in the directory if `None`.
    pub servers: Option<Servers>,
}

/// Servers to run the demo on.
#[derive(Debug, Clone)]
pub struct Servers {
    /// The URL of a database that holds no claims yet. The day stays in it.
    pub store: Url,
    /// The URL of the broker. The demo's exchange and queues have names of their own, and go.
    pub broker: Url,
}

/// Why the demo could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or the child process.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system says.
        error: io::Error,
    },
    /// The data file.
    #[error("the data cannot be used")]
    Data(#[from] online_retail::Error),
    /// The configuration of the workers.
    #[error(transparent)]
    Config(#[from] config::Errors),
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] broker::Error),
    /// Database or broker, when they were made ready.
    #[error(transparent)]
    Deployment(#[from] deployment::Error),
    /// The opening stock.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The database is somebody's.
    #[error("the database at {at} holds claims already, the demo needs an empty one")]
    NotEmpty {
        /// The database, password masked.
        at: String,
    },
    /// The workers ended by themselves.
    #[error("the workers ended with {status}, their log is {log}")]
    Ended {
        /// How they ended.
        status: std::process::ExitStatus,
        /// Their log.
        log: PathBuf,
    },
    /// Something never settled.
    #[error(
        "after {seconds} s there are still {queued} messages queued, {outbox} in the outbox and {parked} parked"
    )]
    Unsettled {
        /// Seconds since the last progress.
        seconds: u64,
        /// Messages in the queues.
        queued: u64,
        /// Rows of the outbox.
        outbox: u64,
        /// Parked events.
        parked: u64,
    },
}

impl Error {
    /// Whether something did not work as promised, so that the directory holds the evidence.
    #[must_use]
    pub fn has_evidence(&self) -> bool {
        match self {
            Self::Ended { .. } | Self::Unsettled { .. } => true,
            Self::Io { .. }
            | Self::Data(_)
            | Self::Config(_)
            | Self::Store(_)
            | Self::Broker(_)
            | Self::Deployment(_)
            | Self::NotEmpty { .. }
            | Self::Worker(_) => false,
        }
    }

    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |error| Self::Io {
            what: what.into(),
            error,
        }
    }
}

/// The name of the database in the directory.
pub const DATABASE: &str = "orderonce.db";

/// Messages within which an order of delivery is drawn.
const WINDOW: usize = 200;

/// Runs the demo.
///
/// # Errors
/// [`Error`]. A difference is not an error; the report has it.
pub async fn demo(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let started = Instant::now();
    let mut rng = fastrand::Rng::with_seed(options.seed);
    let day = read_day(options)?;
    let config = configure(options)?;
    let (deployment, _) = Deployment::migrate(&config.loaded, Tap::topology()).await?;
    if !deployment.store.claim_counts().await?.is_empty() {
        let at = config.loaded.store.url.to_string();
        return Err(Error::NotEmpty { at });
    }
    let opening = stock_up(&deployment, day.opening).await?;

    let deliveries = draw(day.messages.clone(), options, &mut rng);
    let (broker, mut tap) = open_broker(&deployment).await?;
    let broker = broker.as_ref();
    let shop = Shop::open(&deployment, broker, &mut tap, options, &config.file, rng);
    let kills = shop.run(&deliveries, progress).await?;

    progress.stage("reconciling", None);
    let reconciled = reconcile::reconcile(
        deployment.store.as_ref(),
        &reconcile::Options::default(),
        |_| {},
    )
    .await?;
    let told = tap.deliveries().await?;
    let kept = tap.look().await?;
    let naive = Naive::of(kept, &opening, &deployment.points_rule());
    let log = tokio::fs::read_to_string(&config.log)
        .await
        .map_err(Error::io(format!("reading {}", config.log.display())))?;
    let report = Report::new(
        report::Facts {
            day: &day.report,
            external: day.messages.len(),
            kept,
            deliveries: told,
            kills,
            log: &log,
            seconds: started.elapsed(),
        },
        reconciled,
        naive,
    );
    drop(tap);
    deployment.remove_queues(Tap::topology()).await?;
    deployment.store.close().await;
    Ok(report)
}

/// The broker, and where its messages are seen.
async fn open_broker(deployment: &Deployment) -> Result<(Arc<dyn Broker>, Tap), Error> {
    if let Some(queue) = deployment.queue() {
        return Ok((Arc::new(queue.clone()), Tap::of_table(queue)));
    }
    let broker = deployment.broker(Tap::topology()).await?;
    let tap = Tap::of_copies(broker.as_ref()).await?;
    Ok((broker, tap))
}

struct Day {
    opening: Vec<Event>,
    messages: Vec<Publication>,
    report: online_retail::Report,
}

/// The day's messages in the order of business. There is exactly as much stock as it sells
/// and writes off, so a unit that is taken twice is missing.
fn read_day(options: &Options) -> Result<Day, Error> {
    let bytes = match &options.data {
        None => FIRST_DAY.into(),
        Some(path) => {
            std::fs::read(path).map_err(Error::io(format!("reading {}", path.display())))?
        }
    };
    let demand = online_retail::demand(&bytes[..])?;
    let opening = Opening::Exactly(demand);
    let mut import = Import::new(&bytes[..], online_retail::Options { opening })?;
    let mut day = Day {
        opening: Vec::new(),
        messages: Vec::new(),
        report: online_retail::Report::default(),
    };
    for invoice in import.by_ref() {
        let mut invoice = invoice?;
        let is_opening = |entry: &online_retail::Entry| entry.message_id.starts_with("opening/");
        let (opening, entries) = invoice.entries.into_iter().partition(is_opening);
        invoice.entries = entries;
        let opening: Vec<online_retail::Entry> = opening;
        day.opening
            .extend(opening.into_iter().map(|entry| entry.event));
        day.messages.extend(import::publications(&invoice));
    }
    day.report = import.into_report();
    Ok(day)
}

struct Configured {
    loaded: Config,
    file: PathBuf,
    log: PathBuf,
}

/// The configuration of this process and the workers: short leases, since nobody but this process
/// kills them, messages that stay where they can be counted, and none that is to blame for the kills.
fn configure(options: &Options) -> Result<Configured, Error> {
    let dir = &options.dir;
    std::fs::create_dir_all(dir).map_err(Error::io(format!("creating {}", dir.display())))?;
    let file = dir.join("orderonce.toml");
    let (store, broker) = match &options.servers {
        Some(servers) => (
            servers.store.as_str().to_owned(),
            servers.broker.as_str().to_owned(),
        ),
        None => {
            let database = dir.join(DATABASE);
            (
                format!("sqlite://{}", database.display()),
                "embedded:".into(),
            )
        }
    };
    let (store, broker) = (
        serde_json::Value::from(store),
        serde_json::Value::from(broker),
    );
    let text = format!(
        "[store]\nurl = {store}\n\n[broker]\nurl = {broker}\nprefix = \"orderonce.demo\"\n\
         lease_seconds = 0.3\npoll_seconds = 0.01\nkeep_acked = true\ndelivery_limit = 1000\n\n\
         [relay]\nlease_seconds = 0.3\npoll_seconds = 0.01\n\n\
         [janitor]\ninterval_seconds = 0.1\nlease_seconds = 0.3\n\n[log]\nformat = \"json\"\n"
    );
    write_private(&file, &text).map_err(Error::io(format!("writing {}", file.display())))?;
    let none: [(String, String); 0] = [];
    let loaded = Config::load(Some(&file), none, &[])?.config;
    Ok(Configured {
        loaded,
        file,
        log: dir.join("workers.log"),
    })
}

/// Writes a file that only this user can read, since it holds passwords.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

/// Puts the opening stock on the shelves, before the day begins.
async fn stock_up(deployment: &Deployment, opening: Vec<Event>) -> Result<naive::Shelf, Error> {
    let store = Arc::clone(&deployment.store);
    let processor = Processor::new(InventoryRole, store, deployment.settings());
    let now = domain::Timestamp::parse_rfc3339("2010-12-01T00:00:00Z");
    let now = now.unwrap_or(domain::Timestamp(0));
    let mut shelf = naive::Shelf::new();
    let events = opening.into_iter().filter_map(|event| {
        let outgoing = Outgoing::from(&event);
        match event {
            Event::Inventory(event) => Some((event, outgoing)),
            Event::Order(_) | Event::Account(_) | Event::Notice(_) => None,
        }
    });
    let events: Vec<_> = events.collect();
    for (event, _) in &events {
        if let InventoryEvent::Adjust(adjust) = event {
            naive::adjust(&mut shelf, adjust);
        }
    }
    for batch in events.chunks(deployment.config.batch.max) {
        processor.process_events(now, batch.to_vec()).await?;
    }
    Ok(shelf)
}

/// Which messages are delivered again, and in which order all of them arrive.
fn draw(
    messages: Vec<Publication>,
    options: &Options,
    rng: &mut fastrand::Rng,
) -> Vec<Publication> {
    let mut deliveries = Vec::with_capacity(messages.len() * 2);
    for (place, message) in messages.into_iter().enumerate() {
        let arrives = |rng: &mut fastrand::Rng| {
            let delay = if options.shuffle {
                rng.usize(..WINDOW)
            } else {
                0
            };
            place + delay
        };
        if rng.f64() < options.duplicates {
            deliveries.push((arrives(rng), message.clone()));
        }
        deliveries.push((arrives(rng), message));
    }
    deliveries.sort_by_key(|(arrives, _)| *arrives);
    deliveries.into_iter().map(|(_, message)| message).collect()
}

/// How long nothing may move before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(60);
