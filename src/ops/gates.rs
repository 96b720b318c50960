//! The layers in front of the database that a configuration describes.

use crate::config::Config;
use crate::domain::RoleName;
use crate::gate::Gate;
use crate::gate::filter::{Filter, Mistakes, Shape};
use crate::gate::redis::{self, RedisGate, Standing};
use crate::store::{self, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_util::task::AbortOnDropHandle;

/// Keys that are read at a time to fill a filter.
const PAGE: u32 = 10_000;

/// The layers of a process; without a Redis there is none.
#[derive(Debug, Default)]
pub struct Gates {
    filter: Option<Arc<Filter>>,
    /// Since when there is one.
    since: Option<SystemTime>,
    _filling: Option<AbortOnDropHandle<()>>,
    /// Where the filter is kept while the process is stopped.
    file: Option<PathBuf>,
    redis: Option<Arc<RedisGate>>,
    /// The URL of Redis, without its password.
    at: String,
}

/// Why they cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("gate.redis_url is {at}: {problem}")]
pub struct Error {
    at: String,
    problem: String,
}

/// How large a filter is; for no keys there is none. Where workers mark what they have in hand, Redis
/// hears of every key, and a filter spares it nothing.
#[must_use]
pub fn shape(config: &Config) -> Shape {
    let gate = &config.gate;
    let expected = if gate.marks { 0 } else { gate.filter_keys };
    Shape {
        expected,
        ..Shape::of(expected, false_positives(config))
    }
}

/// The rate of false positives that a filter is made for.
pub(super) fn false_positives(config: &Config) -> f64 {
    1.0 / f64::from(config.gate.filter_mistakes)
}

/// The name of this process in marks: that of the machine, unless it has another.
fn process_name(configured: &str) -> String {
    if !configured.is_empty() {
        return configured.to_owned();
    }
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// How Redis is used.
pub(super) fn options(config: &Config) -> redis::Options {
    let gate = &config.gate;
    redis::Options {
        url: gate.redis_url.as_str().to_owned(),
        namespace: gate.namespace.clone(),
        ttl: gate.ttl,
        patience: gate.timeout,
        marks: gate.marks.then(|| process_name(&gate.process)),
    }
}

impl Gates {
    /// Begins to use the layers for some roles. A Redis that is away is no error. A filter whose file does
    /// not fit is filled from the claims of `store`, while it is in use already.
    ///
    /// # Errors
    /// [`Error`] if the URL is not one of a Redis.
    pub fn open(
        config: &Config,
        roles: &[RoleName],
        store: &Arc<dyn Store>,
    ) -> Result<Self, Error> {
        let gate = &config.gate;
        if gate.redis_url.as_str().is_empty() || roles.is_empty() {
            return Ok(Self::default());
        }
        let at = gate.redis_url.to_string();
        let redis = RedisGate::new(options(config)).map_err(|problem| Error {
            at: at.clone(),
            problem,
        })?;
        let file = Some(&gate.filter_file).filter(|path| !path.is_empty());
        let file = file.map(PathBuf::from);
        let shape = shape(config);
        let loaded = file.as_deref().and_then(|file| loaded(file, shape, roles));
        let filter = (shape.expected > 0).then(|| match loaded {
            Some(filter) => (Arc::new(filter), None),
            None => {
                let filter = Arc::new(Filter::new(shape, seed(), roles));
                let filling = filling(Arc::clone(store), Arc::clone(&filter), gate.ttl);
                (filter, Some(AbortOnDropHandle::new(tokio::spawn(filling))))
            }
        });
        let (filter, filling) = filter.unzip();
        Ok(Self {
            since: filter.is_some().then(SystemTime::now),
            filter,
            _filling: filling.flatten(),
            file,
            redis: Some(Arc::new(redis)),
            at,
        })
    }

    /// The layers in the order in which they are asked.
    #[must_use]
    pub fn layers(&self) -> Vec<Arc<dyn Gate>> {
        let filter = self.filter.clone().map(|filter| filter as Arc<dyn Gate>);
        let redis = self.redis.clone().map(|redis| redis as Arc<dyn Gate>);
        filter.into_iter().chain(redis).collect()
    }

    /// Where Redis is and whether it is used, if there is one.
    #[must_use]
    pub fn redis(&self) -> Option<(&str, Standing)> {
        let redis = self.redis.as_ref()?;
        Some((&self.at, redis.standing()))
    }

    /// How often the filter was mistaken, and since when it is used, if there is one.
    #[must_use]
    pub fn mistakes(&self) -> Option<(Mistakes, SystemTime)> {
        Some((self.filter.as_ref()?.mistakes(), self.since?))
    }

    /// Keeps what the filter knows for the next start.
    pub fn close(&self) {
        let (Some(filter), Some(file)) = (&self.filter, &self.file) else {
            return;
        };
        if let Err(error) = filter.save(file) {
            let file = file.display();
            tracing::warn!(%file, %error, "the filter could not be kept, the next start fills one anew");
        }
    }
}

/// The filter of the last run, if it fits.
fn loaded(file: &Path, shape: Shape, roles: &[RoleName]) -> Option<Filter> {
    if !file.exists() || shape.expected == 0 {
        return None;
    }
    let refused = |unfit| {
        let file = file.display();
        tracing::info!(%file, "the filter's file {unfit}, so that it is filled from the claims");
    };
    Filter::load(file, shape, roles).map_err(refused).ok()
}

fn seed() -> u128 {
    u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..))
}

/// Fills a filter, and says what came of it.
async fn filling(store: Arc<dyn Store>, filter: Arc<Filter>, ttl: Duration) {
    match fill(store.as_ref(), &filter, ttl).await {
        Ok(0) => {}
        Ok(keys) => tracing::info!(keys, "the filter knows recent claims"),
        Err(error) => {
            tracing::warn!(%error, "the filter could not be filled, it knows what this process settles");
        }
    }
}

/// Fills a filter with the keys that Redis may know, as many of each role as it is made for. Returns how
/// many they were.
///
/// # Errors
/// [`store::Error::Unavailable`].
pub async fn fill(store: &dyn Store, filter: &Filter, ttl: Duration) -> store::Result<u64> {
    let now = store.now().await?;
    let since = now.minus(ttl);
    let mut all = 0;
    for role in filter.roles() {
        let (mut until, mut taken) = (now, 0);
        loop {
            let keys = store.recent_keys(role, since, until, PAGE).await?;
            let (Some((_, first)), Some((_, last))) = (keys.first(), keys.last()) else {
                break;
            };
            filter.insert(role, keys.iter().map(|(key, _)| key.as_str()));
            let number = u64::try_from(keys.len()).unwrap_or(u64::MAX);
            taken += number;
            if number < PAGE.into() || taken >= filter.shape().expected {
                break;
            }
            // Those of one moment come again, unless they are the whole page.
            until = match first == last {
                true => last.minus(Duration::from_millis(1)),
                false => *last,
            };
        }
        all += taken;
    }
    Ok(all)
}

/// Connects to Redis once. Returns what is wrong with it.
///
/// # Errors
/// What is wrong.
pub async fn check(config: &Config) -> Result<(), String> {
    redis::check(&options(config)).await
}
