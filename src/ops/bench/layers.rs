//! What each layer in front of the database is worth.
//!
//! The inventory role handles streams with more and more duplicates: with the database alone, with the
//! filter, with Redis, and with both in front of it.

use super::feed::Feed;
use super::ground::Ground;
use super::run::{self, Check, Cost};
use super::stream::Stream;
use super::{Error, per, rounded};
use crate::config::Config;
use crate::domain::{Key, RoleName};
use crate::gate::Gate;
use crate::gate::filter::{Filter, Shape};
use crate::gate::redis::{self, RedisGate, Standing};
use crate::ops::gates;
use crate::ops::progress::Progress;
use crate::ops::table::{Table, grouped};
use crate::worker::Processor;
use crate::worker::inventory::InventoryRole;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Deliveries of each run.
    pub deliveries: u32,
    /// Runs of each cell.
    pub rounds: u32,
    /// Shares of duplicates, from 0 to 1.
    pub duplicates: Vec<f64>,
    /// What the streams follow from.
    pub seed: u64,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The database, password masked.
    pub database: String,
    /// Redis, password masked; `None` if it was left out.
    pub redis: Option<String>,
    /// Keys that the filter is made for.
    pub filter_keys: u64,
    /// Deliveries of each run.
    pub deliveries: u32,
    /// Runs of each cell.
    pub rounds: u32,
    /// Most deliveries in a batch.
    pub batch_max: usize,
    /// Batches that are at work at the same time.
    pub workers: usize,
    /// What the streams follow from.
    pub seed: u64,
    /// One for each share of duplicates and each choice of layers.
    pub cells: Vec<Cell>,
    /// Seconds that everything took.
    pub seconds: f64,
}

/// The best run with a share of duplicates and a choice of layers.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// The share of the deliveries that are copies of earlier ones.
    pub duplicates_share: f64,
    /// Whether the filter was in front.
    pub filter: bool,
    /// Whether Redis was.
    pub redis: bool,
    /// Deliveries that took effect: as many as there are keys.
    pub applied: u64,
    /// Copies, by the layer that saw them.
    pub duplicates: ByLayer,
    /// Deliveries handled in a second.
    pub deliveries_per_second: f64,
    /// The same of every run, in their order.
    pub deliveries_per_second_by_round: Vec<f64>,
    /// By how much the slowest run was slower than the fastest.
    pub spread_percent: f64,
    /// Statements sent to the database.
    pub statements_per_delivery: f64,
    /// Busy time of this process.
    pub cpu_process_microseconds_per_delivery: f64,
    /// Busy time of all processes and the kernel, if the system tells.
    pub cpu_machine_microseconds_per_delivery: Option<f64>,
    /// Commands sent to Redis, if it was in front.
    pub redis_commands_per_delivery: Option<f64>,
    /// Runs in which Redis was gone round for a time.
    pub rounds_without_redis: u32,
}

/// Copies by the layer that saw them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ByLayer {
    /// Within one batch.
    pub batch: u64,
    /// By Redis.
    pub gate: u64,
    /// By the claim in the database.
    pub claim: u64,
    /// By a flow table.
    pub flow: u64,
}

/// How long Redis remembers the keys of a run that did not come to forgetting them.
const TTL: Duration = Duration::from_secs(3_600);

/// How long is waited for a Redis that was gone round, before a run begins without it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keys that Redis is made to forget at a time.
const FORGOTTEN: usize = 1_000;

/// A choice of layers in front of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Front {
    filter: bool,
    redis: bool,
}

impl Front {
    const ALL: [Self; 4] = [
        Self::of(false, false),
        Self::of(true, false),
        Self::of(false, true),
        Self::of(true, true),
    ];

    const fn of(filter: bool, redis: bool) -> Self {
        Self { filter, redis }
    }

    fn name(self) -> &'static str {
        match (self.filter, self.redis) {
            (false, false) => "database only",
            (true, false) => "+ filter",
            (false, true) => "+ Redis",
            (true, true) => "+ filter + Redis",
        }
    }
}

/// Runs every cell in every round, and checks after each run that what it did is what it had to do.
/// Every other round goes the other way round, since the tables grow meanwhile.
///
/// # Errors
/// [`Error`].
pub async fn measure(
    config: &Config,
    options: &Options,
    progress: &dyn Progress,
    stop: &CancellationToken,
) -> Result<Report, Error> {
    let started = Instant::now();
    let redis = Redis::open(config).await?;
    let bench = Bench {
        ground: Ground::open(config).await?,
        redis,
        shape: shape(config),
        options,
        stop,
    };
    let runs = bench.measure(progress).await;
    let reconciled = match &runs {
        Ok(_) => bench.reconcile(progress).await,
        Err(_) => Ok(()),
    };
    bench.ground.store().close().await;
    let runs = runs?;
    reconciled?;
    Ok(Report {
        database: config.store.url.to_string(),
        redis: bench.redis.map(|redis| redis.at),
        filter_keys: bench.shape.expected,
        deliveries: options.deliveries,
        rounds: options.rounds,
        batch_max: config.batch.max,
        workers: config.batch.workers,
        seed: options.seed,
        cells: runs.iter().filter_map(Runs::cell).collect(),
        seconds: rounded(started.elapsed().as_secs_f64(), 3),
    })
}

/// The filter that is configured; if none is, one for more keys than most runs have.
fn shape(config: &Config) -> Shape {
    const KEYS: u64 = 1_000_000;
    match gates::shape(config) {
        Shape { expected: 0, .. } => Shape::of(KEYS, gates::false_positives(config)),
        shape => shape,
    }
}

struct Bench<'a> {
    ground: Ground,
    redis: Option<Redis>,
    shape: Shape,
    options: &'a Options,
    stop: &'a CancellationToken,
}

/// The runs of a cell, in the order of the rounds.
struct Runs {
    duplicates: f64,
    front: Front,
    runs: Vec<Run>,
}

struct Run {
    cost: Cost,
    /// Sent to Redis.
    commands: u64,
    bypassed: bool,
}

impl Bench<'_> {
    async fn measure(&self, progress: &dyn Progress) -> Result<Vec<Runs>, Error> {
        let mut cells: Vec<_> = self.cells().collect();
        let count = u64::try_from(cells.len()).unwrap_or(u64::MAX);
        let total = count.saturating_mul(self.options.rounds.into());
        progress.stage("measuring", Some(total));
        let mut done = 0;
        let mut claims = self.ground.claims().await?;
        for round in 0..self.options.rounds {
            let mut order: Vec<usize> = (0..cells.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let cell = &mut cells[place];
                let run = self.run(cell, done).await?;
                cell.runs.push(run);
                done += 1;
                progress.at(done.into());
            }
            // Not after each run: looking at all rows changes what the next one finds in memory.
            claims += cells.iter().map(Runs::last_keys).sum::<u64>();
            let found = self.ground.claims().await?;
            if found != claims {
                return Err(Error::Wrong {
                    what: format!("round {}", round + 1),
                    unit: "claims",
                    expected: claims.into(),
                    found: found.into(),
                });
            }
        }
        Ok(cells)
    }

    fn cells(&self) -> impl Iterator<Item = Runs> {
        let fronts = Front::ALL.into_iter();
        let fronts = fronts.filter(|front| !front.redis || self.redis.is_some());
        let duplicates = self.options.duplicates.iter();
        duplicates.flat_map(move |&duplicates| {
            let cell = move |front| Runs {
                duplicates,
                front,
                runs: Vec::new(),
            };
            fronts.clone().map(cell)
        })
    }

    /// The run of this number, by which its orders are told from those of others.
    async fn run(&self, cell: &Runs, number: u32) -> Result<Run, Error> {
        let options = self.options;
        let deliveries = usize::try_from(options.deliveries).unwrap_or(usize::MAX);
        let lines = &self.ground.lines;
        let stream = Stream::of(lines, deliveries, cell.duplicates, options.seed, number);
        let (keys, units) = (stream.keys, stream.units);
        let feed = Feed::new(stream.deliveries);
        let redis = self.redis.as_ref().filter(|_| cell.front.redis);
        if let Some(redis) = redis {
            redis.wait().await;
        }
        let held = self.ground.held().await?;
        let looked = redis.map(Redis::look);
        let deployment = &self.ground.deployment;
        let store = Arc::clone(&deployment.store);
        let processor = Processor::new(InventoryRole, store, deployment.settings());
        let plan = run::Plan {
            processor: Arc::new(processor.with_gates(self.gates(cell.front))),
            store: self.ground.store().as_ref(),
            batch_max: deployment.config.batch.max,
            workers: deployment.config.batch.workers,
            stop: self.stop,
        };
        let cost = run::run(&plan, &feed).await;
        let (mut commands, mut bypassed) = (0, false);
        if let (Some(redis), Some(before)) = (redis, looked) {
            let after = redis.look();
            commands = after.commands.saturating_sub(before.commands);
            bypassed = after.standing.down.is_some() || after.standing != before.standing;
            redis.forget(&keys).await;
        }
        let cost = cost?;
        Check {
            what: format!("{}, {}", percent(cell.duplicates), cell.front.name()),
            deliveries: options.deliveries.into(),
            keys: u64::try_from(keys.len()).unwrap_or(u64::MAX),
            units,
        }
        .outcomes(cost.outcomes)?
        .effects(held, self.ground.held().await?)?;
        Ok(Run {
            cost,
            commands,
            bypassed,
        })
    }

    /// The layers of one run, the filter empty.
    fn gates(&self, front: Front) -> Vec<Arc<dyn Gate>> {
        let shape = front.filter.then_some(self.shape);
        let filter = shape.map(|shape| {
            let seed = self.options.seed.into();
            Arc::new(Filter::new(shape, seed, &[RoleName::INVENTORY])) as Arc<dyn Gate>
        });
        let redis = self.redis.as_ref().filter(|_| front.redis);
        let redis = redis.map(|redis| Arc::clone(&redis.gate) as Arc<dyn Gate>);
        filter.into_iter().chain(redis).collect()
    }

    /// Stock and its versions, by which the runs were checked, must agree with all flows.
    async fn reconcile(&self, progress: &dyn Progress) -> Result<(), Error> {
        progress.stage("reconciling", None);
        for check in ["stock_available", "stock_versions"] {
            let found = self.ground.store().check(check, Duration::ZERO, 1).await?;
            if let Some(difference) = found.into_iter().next() {
                return Err(Error::Different(difference));
            }
        }
        Ok(())
    }
}

/// A Redis that was usable at the start.
struct Redis {
    gate: Arc<RedisGate>,
    at: String,
}

/// How Redis was at one moment.
struct Look {
    commands: u64,
    standing: Standing,
}

impl Redis {
    /// Connects to the one of the configuration, if there is one, with keys of its own.
    async fn open(config: &Config) -> Result<Option<Self>, Error> {
        if config.gate.redis_url.as_str().is_empty() {
            return Ok(None);
        }
        let at = config.gate.redis_url.to_string();
        let unusable = |problem| Error::Redis {
            at: at.clone(),
            problem,
        };
        let options = redis::Options {
            namespace: format!("{}.bench{:016x}", config.gate.namespace, fastrand::u64(..)),
            ttl: TTL,
            ..gates::options(config)
        };
        redis::check(&options).await.map_err(unusable)?;
        let gate = RedisGate::new(options).map_err(unusable)?;
        let gate = Arc::new(gate);
        let redis = Self {
            gate,
            at: at.clone(),
        };
        redis.wait().await;
        match redis.gate.standing().down {
            None => Ok(Some(redis)),
            Some(problem) => Err(unusable(problem)),
        }
    }

    /// Waits until it is used, and not for ever.
    async fn wait(&self) {
        let asked = Instant::now();
        while self.gate.standing().down.is_some() && asked.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn look(&self) -> Look {
        Look {
            commands: self.gate.commands(),
            standing: self.gate.standing(),
        }
    }

    async fn forget(&self, keys: &[Key]) {
        for keys in keys.chunks(FORGOTTEN) {
            self.gate.forget(&RoleName::INVENTORY, keys).await;
        }
    }
}

impl Runs {
    /// Keys of the last run.
    fn last_keys(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.cost.outcomes.applied)
    }

    /// The fastest run; of those in which Redis was used all the time, if there are any.
    fn best(&self) -> Option<&Run> {
        let slowness = |run: &&Run| (run.bypassed, run.cost.elapsed);
        self.runs.iter().min_by_key(slowness)
    }

    fn cell(&self) -> Option<Cell> {
        let Run { cost, commands, .. } = self.best()?;
        let speeds: Vec<f64> = self.runs.iter().map(|run| run.cost.speed()).collect();
        let fastest = speeds.iter().copied().fold(0.0, f64::max);
        let slowest = speeds.iter().copied().fold(fastest, f64::min);
        let bypassed = self.runs.iter().filter(|run| run.bypassed).count();
        let microseconds = |busy: Duration| rounded(cost.microseconds(busy), 3);
        let commands = per(*commands, cost.deliveries);
        Some(Cell {
            duplicates_share: self.duplicates,
            filter: self.front.filter,
            redis: self.front.redis,
            applied: cost.outcomes.applied,
            duplicates: ByLayer {
                batch: cost.outcomes.by_batch,
                gate: cost.outcomes.by_gate,
                claim: cost.outcomes.by_claim,
                flow: cost.outcomes.by_flow,
            },
            deliveries_per_second: rounded(cost.speed(), 1),
            deliveries_per_second_by_round: speeds.iter().map(|&s| rounded(s, 1)).collect(),
            spread_percent: rounded((fastest - slowest) / fastest * 100.0, 1),
            statements_per_delivery: rounded(per(cost.statements, cost.deliveries), 4),
            cpu_process_microseconds_per_delivery: microseconds(cost.cpu.process),
            cpu_machine_microseconds_per_delivery: cost.cpu.machine.map(microseconds),
            redis_commands_per_delivery: self.front.redis.then(|| rounded(commands, 4)),
            rounds_without_redis: u32::try_from(bypassed).unwrap_or(u32::MAX),
        })
    }
}

/// A line for each cell, and what the figures are.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.table())?;
        let (rounds, deliveries) = (self.rounds, grouped(self.deliveries));
        let (batch_max, workers) = (self.batch_max, self.workers);
        writeln!(
            f,
            "{deliveries} deliveries a run, batch.max {batch_max}, batch.workers {workers}, --seed {}; the best of \
             {rounds} runs,\nspread: by how much the slowest was slower. For each delivery: statements to the database, \
             microseconds of CPU of\nthis process and of the whole machine, commands to Redis. By gate: copies that \
             never reached the database.",
            self.seed
        )?;
        writeln!(f, "database: {}", self.database)?;
        match &self.redis {
            Some(at) => writeln!(f, "Redis: {at}")?,
            None => writeln!(
                f,
                "Redis: left out; ORDERONCE__GATE__REDIS_URL=redis://... or gate.redis_url in the configuration names one"
            )?,
        }
        let seconds = self.seconds;
        writeln!(
            f,
            "every run took each order once, by its outcomes, claims, flows and stock ({seconds:.1} s)"
        )
    }
}

impl Report {
    fn table(&self) -> Table {
        let numbers = &[
            "duplicates",
            "deliveries/s",
            "spread",
            "statements",
            "CPU us",
            "machine us",
            "Redis",
            "by gate",
        ];
        let header = &[
            "duplicates",
            "layers",
            "deliveries/s",
            "spread",
            "statements",
            "CPU us",
            "machine us",
            "Redis",
            "by gate",
            "",
        ];
        let mut table = Table::new(header, numbers);
        let known = |figure: Option<f64>, decimals| {
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.decimals$}"))
        };
        for cell in &self.cells {
            let front = Front::of(cell.filter, cell.redis);
            let bypassed = cell.rounds_without_redis;
            table.row([
                percent(cell.duplicates_share),
                front.name().to_owned(),
                grouped(format!("{:.0}", cell.deliveries_per_second)),
                format!("{:.0}%", cell.spread_percent),
                format!("{:.3}", cell.statements_per_delivery),
                format!("{:.1}", cell.cpu_process_microseconds_per_delivery),
                known(cell.cpu_machine_microseconds_per_delivery, 1),
                known(cell.redis_commands_per_delivery, 3),
                grouped(cell.duplicates.gate),
                match bypassed {
                    0 => String::new(),
                    _ => format!("Redis was gone round in {bypassed} of {} runs", self.rounds),
                },
            ]);
        }
        table
    }
}

/// A share as people write it.
fn percent(share: f64) -> String {
    format!("{}%", rounded(share * 100.0, 4))
}

#[cfg(test)]
mod tests {
    use super::super::cpu::Cpu;
    use super::super::run::Tally;
    use super::*;

    fn run(milliseconds: u64, bypassed: bool) -> Run {
        Run {
            cost: Cost {
                deliveries: 1_000,
                elapsed: Duration::from_millis(milliseconds),
                cpu: Cpu {
                    process: Duration::from_millis(30),
                    machine: None,
                },
                statements: 40,
                outcomes: Tally {
                    applied: 500,
                    by_gate: 500,
                    ..Tally::default()
                },
            },
            commands: 1_500,
            bypassed,
        }
    }

    fn report(runs: Vec<Run>) -> Report {
        let runs = Runs {
            duplicates: 0.015,
            front: Front::of(false, true),
            runs,
        };
        Report {
            database: "sqlite://x.db".into(),
            redis: None,
            filter_keys: 1_000,
            deliveries: 1_000,
            rounds: 3,
            batch_max: 256,
            workers: 1,
            seed: 7,
            cells: runs.cell().into_iter().collect(),
            seconds: 1.0,
        }
    }

    #[test]
    fn the_best_run_counts_and_the_spread_is_told() {
        let report = report(vec![run(125, false), run(100, false), run(200, false)]);
        let cell = &report.cells[0];
        assert_eq!(cell.deliveries_per_second, 10_000.0);
        assert_eq!(
            cell.deliveries_per_second_by_round,
            [8_000.0, 10_000.0, 5_000.0]
        );
        assert_eq!(cell.spread_percent, 50.0);
        assert_eq!(cell.statements_per_delivery, 0.04);
        assert_eq!(cell.cpu_process_microseconds_per_delivery, 30.0);
        assert_eq!(cell.cpu_machine_microseconds_per_delivery, None);
        assert_eq!(cell.redis_commands_per_delivery, Some(1.5));
        let text = report.to_string();
        let row = text.lines().find(|line| line.contains("+ Redis")).unwrap();
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "1.5%", "+", "Redis", "10,000", "50%", "0.040", "30.0", "-", "1.500", "500"
            ]
        );
    }

    #[test]
    fn a_row_says_that_redis_was_gone_round_and_does_not_count_that_run() {
        let report = report(vec![run(50, true), run(100, false), run(200, false)]);
        let cell = &report.cells[0];
        assert_eq!(cell.deliveries_per_second, 10_000.0);
        assert_eq!(cell.rounds_without_redis, 1);
        let text = report.to_string();
        assert!(
            text.contains("Redis was gone round in 1 of 3 runs"),
            "{text}"
        );
    }

    #[test]
    fn what_was_left_out_is_said_with_what_to_do() {
        let text = report(vec![run(100, false)]).to_string();
        assert!(
            text.contains("Redis: left out; ORDERONCE__GATE__REDIS_URL=redis://..."),
            "{text}"
        );
    }
}
