//! What a configuration describes, opened.

use crate::broker::amqp::{self, Amqp};
use crate::broker::embedded::{self, Embedded};
use crate::broker::{self, Broker, Topology};
use crate::config::Config;
use crate::domain::RoleName;
use crate::domain::account::PointsRule;
use crate::message::Limits;
use crate::store::mysql::{self, MySqlStore};
use crate::store::postgres::{self, PostgresStore};
use crate::store::sqlite::{self, SqliteStore};
use crate::store::{self, CLAIMS, Store};
use crate::telemetry::trace::Traces;
use crate::worker::supervisor::Plan;
use crate::worker::{Points, Settings, janitor, relay, retention};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The URL of the queue in the store's file.
const EMBEDDED: &str = "embedded:";

/// A store that is ready to be used, and the way to the broker.
#[derive(Clone)]
pub struct Deployment {
    /// What it was opened by.
    pub config: Config,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The file of the store, in which the embedded queue lives too.
    file: Option<sqlite::Database>,
}

/// Why what a configuration describes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] broker::Error),
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Migrated {
    /// The database.
    pub database: String,
    /// Migrations that were applied now, by number.
    pub applied: Vec<i64>,
    /// What was declared at the broker, unless it is the embedded queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Declared>,
}

/// What a migration declared at a broker.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Declared {
    /// The broker.
    pub broker: String,
    /// Exchanges and queues that were not there before.
    pub created: Vec<String>,
    /// Whatever is there already and works, but not as well as what would have been created.
    pub warnings: Vec<String>,
}

impl std::fmt::Display for Migrated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for number in &self.applied {
            writeln!(f, "applied migration {number:04}")?;
        }
        writeln!(f, "{} is up to date", self.database)?;
        let Some(queues) = &self.queues else {
            return Ok(());
        };
        if !queues.created.is_empty() {
            let count = |what: &str| {
                let created = queues.created.iter();
                created.filter(|created| created.starts_with(what)).count()
            };
            let (exchanges, queues) = (count("exchange"), count("queue"));
            writeln!(f, "created {exchanges} exchanges and {queues} queues")?;
        }
        for warning in &queues.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        writeln!(f, "{} is up to date", queues.broker)
    }
}

impl Deployment {
    /// Opens the database that `config` describes.
    ///
    /// # Errors
    /// [`store::Error`] that names what cannot be used and the remedy.
    pub async fn open(config: &Config) -> store::Result<Self> {
        let (store, file): (Arc<dyn Store>, _) = match Kind::of(config) {
            Kind::Sqlite => {
                let database = sqlite::Database::open(&sqlite_options(config)).await?;
                (Arc::new(SqliteStore::new(database.clone())), Some(database))
            }
            Kind::Postgres => {
                let database = postgres::Database::open(&postgres_options(config)).await?;
                (Arc::new(PostgresStore::new(database)), None)
            }
            Kind::MySql => {
                let database = mysql::Database::open(&mysql_options(config)).await?;
                (Arc::new(MySqlStore::new(database)), None)
            }
        };
        Ok(Self {
            config: config.clone(),
            store,
            file,
        })
    }

    /// Creates what is not there, brings the schema up to date, declares the broker's queues, and
    /// opens the database.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Self::broker`].
    pub async fn migrate(config: &Config, topology: Topology) -> Result<(Self, Migrated), Error> {
        let (deployment, applied) = Self::migrate_store(config).await?;
        let url = config.store.url.to_string();
        let queues = if config.broker.url.as_str() == EMBEDDED {
            None
        } else {
            let options = amqp_options(config);
            let migration = Amqp::migrate(&options, topology).await?;
            Some(Declared {
                broker: config.broker.url.to_string(),
                created: migration.created,
                warnings: migration.warnings,
            })
        };
        let migrated = Migrated {
            database: url.strip_prefix("sqlite://").unwrap_or(&url).to_owned(),
            applied,
            queues,
        };
        Ok((deployment, migrated))
    }

    /// As [`Self::migrate`], with the database alone. Returns the migrations that were applied.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) async fn migrate_store(config: &Config) -> store::Result<(Self, Vec<i64>)> {
        let (store, file, applied): (Arc<dyn Store>, _, _) = match Kind::of(config) {
            Kind::Sqlite => {
                let options = sqlite_options(config);
                let (database, applied) = sqlite::Database::migrate(&options).await?;
                let store = Arc::new(SqliteStore::new(database.clone()));
                (store, Some(database), applied)
            }
            Kind::Postgres => {
                let options = postgres_options(config);
                let (database, applied) = postgres::Database::migrate(&options).await?;
                (Arc::new(PostgresStore::new(database)), None, applied)
            }
            Kind::MySql => {
                let options = mysql_options(config);
                let (database, applied) = mysql::Database::migrate(&options).await?;
                (Arc::new(MySqlStore::new(database)), None, applied)
            }
        };
        let deployment = Self {
            config: config.clone(),
            store,
            file,
        };
        Ok((deployment, applied))
    }

    /// Connects to the broker, with the queues of `topology`.
    ///
    /// # Errors
    /// [`broker::Error`] that names what cannot be used and the remedy.
    pub async fn broker(&self, topology: Topology) -> broker::Result<Arc<dyn Broker>> {
        Self::connect(&self.config, Some(self), topology).await
    }

    /// Connects to the broker, which needs the database of `opened` only if it is a table in it.
    pub(super) async fn connect(
        config: &Config,
        opened: Option<&Self>,
        topology: Topology,
    ) -> broker::Result<Arc<dyn Broker>> {
        if config.broker.url.as_str() == EMBEDDED {
            let queue = opened.and_then(|opened| opened.embedded(topology));
            let queue = queue.ok_or_else(|| {
                broker::Error::Unavailable("the embedded queue is a table in the database".into())
            });
            return Ok(Arc::new(queue?));
        }
        let amqp = Amqp::open(&amqp_options(config), topology).await?;
        Ok(Arc::new(amqp))
    }

    /// Deletes the broker's exchanges and queues, with what they hold. The embedded queue stays.
    ///
    /// # Errors
    /// As [`Self::broker`].
    pub(super) async fn remove_queues(&self, topology: Topology) -> broker::Result<()> {
        if self.config.broker.url.as_str() == EMBEDDED {
            return Ok(());
        }
        Amqp::remove(&amqp_options(&self.config), topology).await
    }

    /// The embedded queue, if that is the broker.
    #[must_use]
    pub fn queue(&self) -> Option<Embedded> {
        self.embedded(Topology::default())
    }

    fn embedded(&self, topology: Topology) -> Option<Embedded> {
        let config = &self.config.broker;
        let options = embedded::Options {
            lease: config.lease,
            delivery_limit: config.delivery_limit,
            poll: config.poll,
            keep_acked: config.keep_acked,
        };
        let file = self.file.clone();
        let file = file.filter(|_| config.url.as_str() == EMBEDDED)?;
        Some(Embedded::new(file, topology, options))
    }

    /// How deliveries are processed.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let config = &self.config;
        Settings {
            limits: Limits {
                max_bytes: config.message.max_bytes,
                max_depth: config.message.max_depth,
            },
            retry: config.retry_policy(),
            redecide: config.retry.redecide,
            keep_body: config.claims.keep_body,
            parking_deadline: config.parking.deadline,
        }
    }

    /// Which points orders earn.
    #[must_use]
    pub fn points_rule(&self) -> PointsRule {
        PointsRule {
            kind: self.config.account.points_kind.clone(),
            per_major_unit: self.config.account.points_per_major_unit.into(),
        }
    }

    /// The names of the leases, and how long each lasts at most without being renewed.
    #[must_use]
    pub fn leases(&self) -> Vec<(&'static str, Duration)> {
        let config = &self.config;
        vec![
            (relay::LEASE, config.relay.lease),
            (janitor::LEASE, config.janitor.lease),
            (CLAIMS, config.retention.interval.max(retention::TURN)),
        ]
    }

    /// A plan to run these roles, with relay and janitor if `and_services`.
    #[must_use]
    pub fn plan(&self, roles: Vec<RoleName>, and_services: bool) -> Plan {
        let config = &self.config;
        Plan {
            janitor_roles: RoleName::BUILT_IN.to_vec(),
            roles,
            relay: and_services,
            janitor: and_services,
            settings: self.settings(),
            batch_max: config.batch.max,
            workers: config.batch.workers,
            pay_timeout: config.order.pay_timeout,
            remind_before: Some(config.order.remind_before).filter(|before| !before.is_zero()),
            points_rule: self.points_rule(),
            relay_settings: relay::Settings {
                window: config.relay.window,
                lease: config.relay.lease,
                ..relay::Settings::default()
            },
            relay_poll: config.relay.poll,
            janitor_interval: config.janitor.interval,
            janitor_lease: config.janitor.lease,
            janitor_batch: config.janitor.batch,
            retention: retention::Settings {
                life: config.retention.life,
                archive: config.retention.archive,
                callbacks: config.callbacks.keep,
                batch: config.retention.batch,
                pause: config.retention.pause,
                interval: config.retention.interval,
            },
            stop_deadline: config.shutdown.deadline,
            gates: Vec::new(),
            points: Points::default(),
            traces: Traces::default(),
        }
    }
}

/// Which database a configuration describes.
enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

impl Kind {
    fn of(config: &Config) -> Self {
        let url = config.store.url.as_str();
        if url.starts_with("postgres") {
            Self::Postgres
        } else if url.starts_with("mysql") || url.starts_with("mariadb") {
            Self::MySql
        } else {
            Self::Sqlite
        }
    }
}

fn sqlite_options(config: &Config) -> sqlite::Options {
    let url = config.store.url.as_str();
    sqlite::Options {
        path: PathBuf::from(url.strip_prefix("sqlite://").unwrap_or(url)),
        busy_timeout: config.store.busy_timeout,
        readers: config.store.reader_connections,
    }
}

fn amqp_options(config: &Config) -> amqp::Options {
    let broker = &config.broker;
    let hosts = broker.url.split().map(str::to_owned).collect();
    let ca_file = Some(&broker.ca_file).filter(|path| !path.is_empty());
    amqp::Options {
        ca_file: ca_file.map(PathBuf::from),
        exchange: format!("{}.events", broker.prefix),
        prefix: format!("{}.", broker.prefix),
        delivery_limit: broker.delivery_limit,
        window: config.relay.window,
        ..amqp::Options::new(hosts)
    }
}

fn postgres_options(config: &Config) -> postgres::Options {
    postgres::Options {
        url: config.store.url.as_str().to_owned(),
        lock_timeout: config.store.busy_timeout,
        statement_timeout: config.store.statement_timeout,
        connections: config.store.connections,
    }
}

fn mysql_options(config: &Config) -> mysql::Options {
    mysql::Options {
        url: config.store.url.as_str().to_owned(),
        lock_timeout: config.store.busy_timeout,
        statement_timeout: config.store.statement_timeout,
        connections: config.store.connections,
    }
}
