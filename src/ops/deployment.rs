//! What a configuration describes, opened.

use crate::broker::embedded::{self, Embedded};
use crate::broker::{Broker, Topology};
use crate::config::Config;
use crate::domain::account::PointsRule;
use crate::domain::{RetryPolicy, RoleName};
use crate::message::Limits;
use crate::store::sqlite::{Database, Options, SqliteStore};
use crate::store::{self, Store};
use crate::worker::supervisor::Plan;
use crate::worker::{Points, Settings, relay};
use std::path::PathBuf;
use std::sync::Arc;

/// A store and a broker that are ready to be used.
#[derive(Clone)]
pub struct Deployment {
    /// What it was opened by.
    pub config: Config,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The broker.
    pub broker: Arc<dyn Broker>,
    /// The embedded queue, which is the broker.
    pub queue: Embedded,
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Migrated {
    /// The database.
    pub database: String,
    /// Migrations that were applied now, by number.
    pub applied: Vec<i64>,
}

impl std::fmt::Display for Migrated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.applied.is_empty() {
            return writeln!(f, "{} is up to date", self.database);
        }
        for number in &self.applied {
            writeln!(f, "applied migration {number:04}")?;
        }
        writeln!(f, "{} is up to date", self.database)
    }
}

impl Deployment {
    /// Opens what `config` describes.
    ///
    /// # Errors
    /// [`store::Error`] that names what cannot be used and the remedy.
    pub async fn open(config: &Config) -> store::Result<Self> {
        let database = Database::open(&options(config)).await?;
        Ok(Self::with(config, database))
    }

    /// Creates what is not there, brings the schema up to date, and opens it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn migrate(config: &Config) -> store::Result<(Self, Migrated)> {
        let options = options(config);
        let (database, applied) = Database::migrate(&options).await?;
        let migrated = Migrated {
            database: options.path.display().to_string(),
            applied,
        };
        Ok((Self::with(config, database), migrated))
    }

    fn with(config: &Config, database: Database) -> Self {
        let options = embedded::Options {
            lease: config.broker.lease,
            delivery_limit: config.broker.delivery_limit,
            poll: config.broker.poll,
            keep_acked: config.broker.keep_acked,
        };
        let queue = Embedded::new(database.clone(), Topology::default(), options);
        Self {
            config: config.clone(),
            store: Arc::new(SqliteStore::new(database)),
            broker: Arc::new(queue.clone()),
            queue,
        }
    }

    /// How deliveries are processed.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let config = &self.config;
        let retry = RetryPolicy::new(config.retry.attempts, config.retry.first_delay);
        Settings {
            limits: Limits {
                max_bytes: config.message.max_bytes,
                max_depth: config.message.max_depth,
            },
            // The configuration admits the delay levels only.
            retry: retry.unwrap_or_default(),
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

    /// A plan to run these roles, with relay and janitor if `and_services`.
    #[must_use]
    pub fn plan(&self, roles: Vec<RoleName>, and_services: bool) -> Plan {
        let config = &self.config;
        Plan {
            roles,
            relay: and_services,
            janitor: and_services,
            settings: self.settings(),
            batch_max: config.batch.max,
            pay_timeout: config.order.pay_timeout,
            points_rule: self.points_rule(),
            relay_settings: relay::Settings {
                window: config.relay.window,
                lease: config.relay.lease,
                ..relay::Settings::default()
            },
            relay_poll: config.relay.poll,
            janitor_interval: config.janitor.interval,
            janitor_batch: config.janitor.batch,
            stop_deadline: config.shutdown.deadline,
            gates: Vec::new(),
            points: Points::default(),
        }
    }
}

fn options(config: &Config) -> Options {
    let url = config.store.url.as_str();
    Options {
        path: PathBuf::from(url.strip_prefix("sqlite://").unwrap_or(url)),
        busy_timeout: config.store.busy_timeout,
        readers: config.store.reader_connections,
    }
}
