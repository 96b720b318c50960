//! The layers in front of the database that a configuration describes.

use crate::config::Config;
use crate::domain::RoleName;
use crate::gate::Gate;
use crate::gate::filter::{Filter, Shape};
use crate::gate::redis::{self, RedisGate, Standing};
use std::path::PathBuf;
use std::sync::Arc;

/// The layers of a process; without a Redis there is none.
#[derive(Debug, Default)]
pub struct Gates {
    filter: Option<Arc<Filter>>,
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

/// How large a filter is, if there is one.
#[must_use]
pub fn shape(config: &Config) -> Option<Shape> {
    let gate = &config.gate;
    let is_used = gate.filter_keys > 0 && !gate.redis_url.as_str().is_empty();
    is_used.then(|| Shape::of(gate.filter_keys, 1.0 / f64::from(gate.filter_mistakes)))
}

fn options(config: &Config) -> redis::Options {
    let gate = &config.gate;
    redis::Options {
        url: gate.redis_url.as_str().to_owned(),
        namespace: gate.namespace.clone(),
        ttl: gate.ttl,
        patience: gate.timeout,
    }
}

impl Gates {
    /// Begins to use the layers for some roles. A Redis that is away is no error.
    ///
    /// # Errors
    /// [`Error`] if the URL is not one of a Redis.
    pub fn open(config: &Config, roles: &[RoleName]) -> Result<Self, Error> {
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
        let filter = shape(config).map(|shape| Arc::new(filter(shape, file.as_ref(), roles)));
        Ok(Self {
            filter,
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

    /// Keeps what the filter knows for the next start.
    pub fn close(&self) {
        let (Some(filter), Some(file)) = (&self.filter, &self.file) else {
            return;
        };
        if let Err(error) = filter.save(file) {
            let file = file.display();
            tracing::warn!(%file, %error, "the filter could not be kept, the next start begins with an empty one");
        }
    }
}

/// The filter of the last run, or an empty one.
fn filter(shape: Shape, file: Option<&PathBuf>, roles: &[RoleName]) -> Filter {
    let seed = u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..));
    let empty = || Filter::new(shape, seed, roles);
    let Some(file) = file.filter(|file| file.exists()) else {
        return empty();
    };
    Filter::load(file, shape, roles).unwrap_or_else(|unfit| {
        let file = file.display();
        tracing::info!(%file, "the filter's file {unfit}, so that it begins empty");
        empty()
    })
}

/// Connects to Redis once. Returns what is wrong with it.
///
/// # Errors
/// What is wrong.
pub async fn check(config: &Config) -> Result<(), String> {
    redis::check(&options(config)).await
}
