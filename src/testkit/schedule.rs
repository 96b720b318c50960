//! Random schedules: the real system, with its store in a file or on a server and the embedded queue, under
//! copies, reordering, crashes, lost leases and a broker that fails, compared with the
//! [model](super::model) step by step and at the end.
//!
//! A schedule follows from its seed alone. One thread runs it; only the clock's milliseconds and
//! the threads of the database differ from one run to the next, and no step depends on them. A team
//! that adds a role of its own can take this as a template: `system` is what it would replace.
//!
//! What a schedule does is in `player`; what it reads of the tables is in `tables`.

mod player;
mod system;
mod tables;

use crate::store::sqlite::Database;
use crate::testkit::sql::Reader;
use player::Player;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// Runs schedules with the seeds from `first` on, `count` of them, several at a time.
///
/// # Errors
/// The first [`Failure`] that is found.
pub fn run_many(first: u64, count: u64) -> Result<Summary, Failure> {
    // Half of the time a schedule waits for the thread of its database.
    let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    run_on(&vec![None; threads], first, count)
}

/// Runs schedules as [`run_many`] does, with the store in databases on servers: as many at a time as
/// there are URLs, each of a database that is empty at first. The queue is the embedded one.
///
/// # Errors
/// The first [`Failure`] that is found.
pub fn run_many_on(servers: &[String], first: u64, count: u64) -> Result<Summary, Failure> {
    let servers: Vec<_> = servers.iter().map(|url| Some(url.as_str())).collect();
    run_on(&servers, first, count)
}

/// Runs schedules, one at a time in each database.
fn run_on(databases: &[Option<&str>], first: u64, count: u64) -> Result<Summary, Failure> {
    let template = Template::create(databases);
    let template = template.map_err(|problem| problem.at(first, Vec::new()))?;
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let result = Mutex::new(Ok(Summary::default()));
    let work = |database: Option<&str>| {
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let ran = template.run(database, first.wrapping_add(number), false);
            let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
            match (&mut *result, ran) {
                (Ok(sum), Ok(summary)) => sum.add(summary),
                (Ok(_), Err(failure)) => {
                    failed.store(true, Ordering::Relaxed);
                    *result = Err(failure);
                }
                (Err(_), _) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for &database in databases {
            scope.spawn(move || work(database));
        }
    });
    result.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the schedule of one seed, comparing all tables after every step, so that it fails at the
/// step that is to blame.
///
/// # Errors
/// [`Failure`].
pub fn replay(seed: u64) -> Result<Summary, Failure> {
    let template = Template::create(&[]).map_err(|problem| problem.at(seed, Vec::new()))?;
    template.run(None, seed, true)
}

/// How often schedules did what they are there for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Schedules that ended as the model said.
    pub schedules: u64,
    /// What became of deliveries, by outcome, and what was done to the system, by name.
    pub counts: BTreeMap<String, u64>,
}

impl Summary {
    fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        for (what, times) in other.counts {
            *self.counts.entry(what).or_default() += times;
        }
    }
}

/// One line for each count.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} schedules", self.schedules)?;
        for (what, times) in &self.counts {
            writeln!(f, "{times:>9} {what}")?;
        }
        Ok(())
    }
}

/// The system did not do what the model says.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The schedule.
    pub seed: u64,
    /// What differed.
    pub problem: String,
    /// All steps up to there.
    pub steps: Vec<String>,
}

impl std::error::Error for Failure {}

/// The last steps, what differed after them, and how to replay it.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        let hidden = self.steps.len().saturating_sub(SHOWN);
        if hidden > 0 {
            writeln!(f, "... {hidden} steps before")?;
        }
        for step in &self.steps[hidden..] {
            writeln!(f, "{step}")?;
        }
        let Self { seed, problem, .. } = self;
        writeln!(f, "\nschedule {seed}: {problem}\n")?;
        write!(f, "ORDERONCE_SEED={seed} ./tests/run -- schedules")
    }
}

/// Why a schedule cannot go on.
#[derive(Debug)]
struct Problem(String);

impl Problem {
    fn at(self, seed: u64, steps: Vec<String>) -> Failure {
        Failure {
            seed,
            problem: self.0,
            steps,
        }
    }
}

impl<E: std::error::Error> From<E> for Problem {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// A migrated file that every schedule starts with a copy of.
struct Template {
    folder: TempDir,
    file: PathBuf,
}

impl Template {
    /// Makes it, and the tables of the databases on servers.
    fn create(databases: &[Option<&str>]) -> Result<Self, Problem> {
        let folder = folder()?;
        let file = folder.path().join("template.db");
        let runtime = runtime()?;
        runtime.block_on(async {
            let (database, _) = Database::migrate(&system::options(&file)).await?;
            database.close().await;
            for url in databases.iter().flatten() {
                system::migrate(url).await?;
            }
            Ok::<_, Problem>(())
        })?;
        Ok(Self { folder, file })
    }

    fn run(&self, server: Option<&str>, seed: u64, thorough: bool) -> Result<Summary, Failure> {
        let file = self.folder.path().join(format!("{seed}.db"));
        let mut steps = Vec::new();
        let play = AssertUnwindSafe(|| self.play(&file, server, seed, thorough, &mut steps));
        let played = std::panic::catch_unwind(play)
            .unwrap_or_else(|panic| Err(Problem(format!("panicked: {}", said(&*panic)))));
        remove(&file);
        played.map_err(|problem| problem.at(seed, steps))
    }

    fn play(
        &self,
        file: &Path,
        server: Option<&str>,
        seed: u64,
        thorough: bool,
        steps: &mut Vec<String>,
    ) -> Result<Summary, Problem> {
        std::fs::copy(&self.file, file)?;
        runtime()?.block_on(async {
            if let Some(url) = server {
                empty(url).await?;
            }
            let mut player = Player::open(file, server, seed, thorough, steps).await?;
            player.play().await?;
            player.close().await
        })
    }
}

/// Takes all rows out of a database on a server.
async fn empty(url: &str) -> sqlx::Result<()> {
    const TABLES: [&str; 18] = [
        "orders",
        "order_line",
        "order_transition",
        "payment",
        "refund",
        "stock",
        "reservation",
        "deduction_flow",
        "account",
        "account_flow",
        "idempotent_record",
        "parked_event",
        "outbox",
        "dead_letter",
        "callback",
        "lease",
        "retention",
        "repair",
    ];
    let mut database = Reader::open(url).await?;
    for table in TABLES {
        database.execute(format!("DELETE FROM {table}")).await?;
    }
    database.close().await
}

/// Where `fsync` costs nothing, if there is such a place: what a machine that loses its power keeps
/// is not what schedules test.
fn folder() -> std::io::Result<TempDir> {
    let in_memory = Path::new("/dev/shm");
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("orderonce-schedules-");
        builder
    };
    match builder().tempdir_in(in_memory) {
        Ok(folder) => Ok(folder),
        Err(_) => builder().tempdir(),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// The file with what SQLite puts beside it. What cannot be removed goes with its folder.
fn remove(file: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut path = file.as_os_str().to_owned();
        path.push(suffix);
        let _ = std::fs::remove_file(path);
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("something that is no text")
}
