//! `retention status`: how many claims are kept, since when, and what becomes of them next.

use super::table::Table;
use crate::config::Config;
use crate::domain::Timestamp;
use crate::store::{self, Kept, Store};
use serde::Serialize;
use std::fmt;

/// How claims are kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The counts.
    #[serde(flatten)]
    pub kept: Kept,
    /// When the oldest claim in use expires, unless something still needs it.
    pub next_expiry: Option<Timestamp>,
    /// When the first of the expired claims is removed.
    pub next_removal: Option<Timestamp>,
    /// How long after its conclusion a claim expires, in seconds.
    pub life_seconds: f64,
    /// The shortest that this may be.
    pub shortest_life_seconds: f64,
    /// How long after that it is removed, in seconds.
    pub archive_seconds: f64,
}

/// Counts.
///
/// # Errors
/// [`store::Error`] if the database is away.
pub async fn status(store: &dyn Store, config: &Config) -> store::Result<Report> {
    let kept = store.kept_claims().await?;
    let (life, archive) = (config.retention.life, config.retention.archive);
    Ok(Report {
        kept,
        next_expiry: kept.oldest_live.map(|at| at.plus(life)),
        next_removal: kept.oldest_expired.map(|at| at.plus(archive)),
        life_seconds: life.as_secs_f64(),
        shortest_life_seconds: config.ways_back().longest().as_secs_f64(),
        archive_seconds: archive.as_secs_f64(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = &self.kept;
        let time = |at: Option<Timestamp>| at.map_or(String::new(), |at| at.to_string());
        let header = &["claims", "number", "oldest", "next"];
        let mut table = Table::new(header, &["number"]);
        let next = |what: &str, at: Option<Timestamp>| {
            at.map_or(String::new(), |at| format!("{what} {at}"))
        };
        table.row([
            "in use".to_owned(),
            kept.live.to_string(),
            time(kept.oldest_live),
            next("expires", self.next_expiry),
        ]);
        table.row([
            "expired".to_owned(),
            kept.expired.to_string(),
            time(kept.oldest_expired),
            next("removed", self.next_removal),
        ]);
        table.row([
            "removed".to_owned(),
            kept.removed.to_string(),
            String::new(),
            String::new(),
        ]);
        write!(f, "{table}\nnext run ")?;
        match kept.next {
            Some(next) if next > kept.now => writeln!(f, "{next}")?,
            Some(_) | None => writeln!(f, "as soon as a janitor runs")?,
        }
        writeln!(
            f,
            "a claim expires after {} s (at least {} s, see `orderonce config show`) and is removed {} s later",
            self.life_seconds, self.shortest_life_seconds, self.archive_seconds
        )
    }
}
