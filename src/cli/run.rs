//! One function per command: arguments to a call of `ops`, its report to standard output.

use super::args::{
    BenchCommand, BenchLayers, CallbacksCommand, Cli, Command, ConfigCommand, DeadCommand,
    DeadReplay, Demo, Explain, Format, Import, ImportFormat, KeysCommand, ParkedCommand, Reconcile,
    RetentionCommand, Send, Serve, Served,
};
use super::exit::{DATA, UNREACHABLE, Usage};
use super::output::{print, progress, tell};
use crate::broker::Topology;
use crate::config::{self, Config, Entry, Flag, Loaded, Origin};
use crate::domain::RoleName;
use crate::http::Server;
use crate::http::auth::new_key;
use crate::message::Limits;
use crate::ops::deployment::Deployment;
use crate::ops::table::Table;
use crate::ops::{
    bench, callbacks, dead, demo, explain, health, import, online_retail, parked, reconcile,
    repair, retention, send, serve, settings,
};
use crate::store::DeadFilter;
use crate::telemetry;
use crate::telemetry::trace::Traces;
use crate::worker::supervisor::Door;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Runs a command and returns its exit code.
///
/// # Errors
/// What went wrong; [`super::exit_code`] has its exit code.
pub async fn run(cli: Cli) -> anyhow::Result<u8> {
    let flag = |name, key, value| Flag { name, key, value };
    let store = cli.store.as_deref();
    let broker = cli.broker.as_deref();
    let flags: Vec<_> = [
        store.map(|url| flag("--store", "store.url", url)),
        broker.map(|url| flag("--broker", "broker.url", url)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let load = || Config::load(cli.config.as_deref(), std::env::vars_os(), &flags);
    let format = cli.report;
    match cli.command {
        Command::Config(ConfigCommand::Example) => {
            print(&Text(config::example()), Format::Text)?;
            Ok(0)
        }
        Command::Config(ConfigCommand::Check) => check_config(load(), format),
        Command::Config(ConfigCommand::Show) => {
            let Loaded {
                config,
                mut entries,
            } = load()?;
            entries.extend(settings::computed(&config));
            print(&Shown { entries }, format)?;
            Ok(0)
        }
        Command::Keys(KeysCommand::New { name, rights }) => {
            let (key, entry) = new_key(&name, &rights)?;
            print(&Text(entry), Format::Text)?;
            tell(&format!("the key of {name}, which is not kept: {key}"));
            Ok(0)
        }
        Command::Demo(args) => {
            let servers = demo_servers(cli.store, cli.broker)?;
            run_demo(args, servers, format).await
        }
        Command::Bench(BenchCommand::Layers(args)) => {
            // No broker is used, so that none must be there, and the embedded queue needs no file.
            let broker = flag("orderonce bench", "broker.url", "amqp://unused");
            let flags = [&flags[..], &[broker]].concat();
            let loaded = Config::load(cli.config.as_deref(), std::env::vars_os(), &flags)?;
            run_bench_layers(args, loaded, format).await
        }
        command @ (Command::Serve(_)
        | Command::Migrate
        | Command::Health(_)
        | Command::Import(_)
        | Command::Send(_)
        | Command::Reconcile(_)
        | Command::Explain(_)
        | Command::Dead(_)
        | Command::Parked(_)
        | Command::Callbacks(_)
        | Command::Retention(_)) => {
            let config = load()?.config;
            telemetry::init(&config.log)?;
            if matches!(command, Command::Serve(_)) && !config.health.listen.is_empty() {
                telemetry::metrics::install()?;
            }
            with_config(command, &config, format).await
        }
    }
}

async fn with_config(command: Command, config: &Config, format: Format) -> anyhow::Result<u8> {
    match command {
        Command::Demo(_) | Command::Bench(_) | Command::Config(_) | Command::Keys(_) => Ok(0),
        Command::Migrate => {
            let (deployment, migrated) = Deployment::migrate(config, Topology::default()).await?;
            deployment.store.close().await;
            print(&migrated, format)?;
            Ok(0)
        }
        Command::Health(args) => {
            let health = if args.running {
                health::ask(config).await?
            } else {
                health::check(config).await
            };
            print(&health, format)?;
            Ok(if health.is_ready() { 0 } else { UNREACHABLE })
        }
        Command::Serve(args) => run_serve(args, &Deployment::open(config).await?).await,
        Command::Import(args) => run_import(args, &Deployment::open(config).await?, format).await,
        Command::Send(args) => run_send(args, &Deployment::open(config).await?, format).await,
        Command::Reconcile(args) => {
            run_reconcile(args, &Deployment::open(config).await?, format).await
        }
        Command::Explain(Explain { what }) => {
            let deployment = Deployment::open(config).await?;
            print(
                &explain::explain(deployment.store.as_ref(), &what).await?,
                format,
            )?;
            Ok(0)
        }
        Command::Dead(command) => run_dead(command, &Deployment::open(config).await?, format).await,
        Command::Parked(ParkedCommand::List { about, limit }) => {
            let deployment = Deployment::open(config).await?;
            let store = deployment.store.as_ref();
            print(&parked::list(store, about.as_deref(), limit).await?, format)?;
            Ok(0)
        }
        Command::Callbacks(command) => {
            run_callbacks(command, &Deployment::open(config).await?, format).await
        }
        Command::Retention(RetentionCommand::Status) => {
            let deployment = Deployment::open(config).await?;
            let store = deployment.store.as_ref();
            print(&retention::status(store, config).await?, format)?;
            Ok(0)
        }
    }
}

fn check_config(loaded: Result<Loaded, config::Errors>, format: Format) -> anyhow::Result<u8> {
    #[derive(Serialize)]
    struct Checked {
        keys: usize,
    }
    impl fmt::Display for Checked {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            writeln!(f, "the configuration is valid ({} keys)", self.keys)
        }
    }
    match loaded {
        Ok(loaded) => {
            let keys = loaded.entries.len();
            print(&Checked { keys }, format)?;
            Ok(0)
        }
        Err(errors) => {
            if format == Format::Json {
                print(&AsJson(&errors), format)?;
            }
            Err(errors.into())
        }
    }
}

/// The servers for the demo, if both are named; a file is always its own.
fn demo_servers(
    store: Option<String>,
    broker: Option<String>,
) -> Result<Option<demo::Servers>, Usage> {
    let is_server = |url: &String| !url.starts_with("sqlite:") && url != "embedded:";
    match (store, broker) {
        (None, None) => Ok(None),
        (Some(store), Some(broker)) if is_server(&store) && is_server(&broker) => {
            Ok(Some(demo::Servers {
                store: config::Url::new(store),
                broker: config::Url::new(broker),
            }))
        }
        _ => Err(Usage(
            "the demo makes a file and an embedded queue of its own, or runs on servers with both \
             --store postgres://... (or mysql://...) and --broker amqp://..."
                .to_owned(),
        )),
    }
}

async fn run_demo(
    args: Demo,
    servers: Option<demo::Servers>,
    format: Format,
) -> anyhow::Result<u8> {
    let scratch = tempfile::Builder::new()
        .prefix("orderonce-demo-")
        .tempdir()?;
    let dir = args
        .keep
        .clone()
        .unwrap_or_else(|| scratch.path().to_owned());
    if dir.join(demo::DATABASE).exists() {
        let dir = dir.display();
        return Err(Usage(format!(
            "{dir} holds a database already, --keep needs a new directory"
        ))
        .into());
    }
    let options = demo::Options {
        data: args.data,
        duplicates: args.duplicates,
        shuffle: args.shuffle,
        kills: args.kills,
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
        dir,
        program: std::env::current_exe()?,
        servers,
    };
    let progress = progress();
    progress.stage(&format!("demo with --seed {}", options.seed), None);
    let demonstrated = demo::demo(&options, progress.as_ref()).await;
    drop(progress);
    let report = match demonstrated {
        // Something did not work as promised: leave the evidence.
        Err(error) if error.has_evidence() => {
            let dir = args.keep.unwrap_or_else(|| scratch.keep());
            let left = format!(
                "the demo did not finish, everything is left in {}",
                dir.display()
            );
            return Err(anyhow::Error::from(error).context(left));
        }
        other => other?,
    };
    print(&report, format)?;
    let database = options.servers.map_or_else(
        || {
            let dir = args.keep.as_ref()?;
            Some(dir.join(demo::DATABASE).display().to_string())
        },
        |servers| Some(servers.store.to_string()),
    );
    if let Some(database) = database
        && format == Format::Text
    {
        print(&Text(format!("the database is {database}\n")), format)?;
    }
    Ok(if report.differences == 0 { 0 } else { DATA })
}

/// A measurement on the database that somebody has named, or else on a file that goes.
async fn run_bench_layers(args: BenchLayers, loaded: Loaded, format: Format) -> anyhow::Result<u8> {
    let Loaded {
        mut config,
        entries,
    } = loaded;
    telemetry::init(&config::Log {
        filter: "warn".to_owned(),
        ..config.log.clone()
    })?;
    let scratch = tempfile::Builder::new()
        .prefix("orderonce-bench-")
        .tempdir()?;
    let is_named = |entry: &Entry| entry.key == "store.url" && entry.origin != Origin::Default;
    if !entries.iter().any(is_named) {
        let file = scratch.path().join(demo::DATABASE);
        config.store.url = config::Url::new(format!("sqlite://{}", file.display()));
    }
    let options = bench::layers::Options {
        deliveries: args.deliveries,
        rounds: args.rounds,
        duplicates: args.duplicates,
        seed: args.seed,
    };
    let stop = CancellationToken::new();
    stop_on_signal(stop.clone());
    let progress = progress();
    let measured = bench::layers::measure(&config, &options, progress.as_ref(), &stop).await;
    drop(progress);
    print(&measured?, format)?;
    Ok(0)
}

async fn run_serve(args: Serve, deployment: &Deployment) -> anyhow::Result<u8> {
    let mut plan = deployment.plan(RoleName::BUILT_IN.to_vec(), true);
    let has_address = !deployment.config.http.listen.is_empty();
    let api = args.role.contains(&Served::Api) || args.role.is_empty() && has_address;
    if !args.role.is_empty() {
        let names = |served: &Served| *served != Served::Relay && *served != Served::Janitor;
        let only_roles = args.role.iter().all(names);
        plan.relay = only_roles || args.role.contains(&Served::Relay);
        plan.janitor = only_roles || args.role.contains(&Served::Janitor);
        let roles = RoleName::BUILT_IN.into_iter();
        let named = roles.filter(|role| args.role.contains(&Served::Role(role.clone())));
        plan.roles = named.collect();
    }
    plan.relay &= !args.no_relay;
    plan.janitor &= !args.no_janitor;
    plan.traces = Traces::start(&deployment.config.trace)?;
    let traces = plan.traces.clone();
    #[cfg(feature = "testkit")]
    let plan = crate::testkit::kill::arm(plan, |name| std::env::var(name).ok())
        .map_err(|error| Usage(error.to_string()))?;
    let stop = CancellationToken::new();
    stop_on_signal(stop.clone());
    let mut doors: Vec<Box<dyn Door>> = Vec::new();
    if api {
        doors.push(Box::new(Server::bind(deployment, &plan).await?));
    }
    let broker = deployment.broker(Topology::default()).await?;
    let served = serve::serve(deployment, broker, plan, doors, stop).await;
    traces.finish().await;
    served?;
    Ok(0)
}

/// The first signal asks for a stop, the second does not wait for it. Signals are caught from the
/// moment that this returns.
fn stop_on_signal(stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};

    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::warn!("signals cannot be handled, a stop will be a kill");
        return;
    };
    tokio::spawn(async move {
        let mut signals = 0;
        loop {
            let code = tokio::select! {
                _ = terminate.recv() => 143,
                _ = interrupt.recv() => 130,
            };
            signals += 1;
            if signals > 1 {
                tracing::warn!("aborted; what was in hand is delivered again");
                std::process::exit(code);
            }
            tracing::info!("stopping once the work in hand is done, a second signal aborts");
            stop.cancel();
        }
    });
}

/// Opens a file, or standard input for `-`.
fn open(path: &Path) -> Result<Box<dyn Read + std::marker::Send>, Usage> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let unusable =
        |problem: &dyn fmt::Display| Usage(format!("{} cannot be read: {problem}", path.display()));
    if path.is_dir() {
        return Err(unusable(&"it is a directory"));
    }
    match File::open(path) {
        Ok(file) => Ok(Box::new(file)),
        Err(error) => Err(unusable(&error)),
    }
}

async fn run_import(args: Import, deployment: &Deployment, format: Format) -> anyhow::Result<u8> {
    let ImportFormat::OnlineRetail = args.format;
    let input = BufReader::new(open(&args.file)?);
    let opening = args.opening_stock;
    let options = online_retail::Options {
        opening: opening.map_or(
            online_retail::Opening::Untouched,
            online_retail::Opening::Each,
        ),
    };
    let progress = progress();
    let broker = deployment.broker(Topology::default()).await?;
    let broker = broker.as_ref();
    let report = import::online_retail(input, options, broker, progress.as_ref()).await?;
    drop(progress);
    print(&report, format)?;
    Ok(if report.skipped.is_empty() { 0 } else { DATA })
}

async fn run_send(args: Send, deployment: &Deployment, format: Format) -> anyhow::Result<u8> {
    let input = BufReader::new(open(&args.file)?);
    let options = send::Options {
        repeat: args.repeat,
        shuffle: args.shuffle,
    };
    let limits: Limits = deployment.settings().limits;
    let progress = progress();
    let broker = deployment.broker(Topology::default()).await?;
    let broker = broker.as_ref();
    let report = send::send(input, &options, &limits, broker, progress.as_ref()).await?;
    drop(progress);
    print(&report, format)?;
    Ok(if report.refused.is_empty() { 0 } else { DATA })
}

async fn run_reconcile(
    args: Reconcile,
    deployment: &Deployment,
    format: Format,
) -> anyhow::Result<u8> {
    let options = reconcile::Options {
        stuck_after: Duration::from_secs(args.stuck_after),
        limit: args.limit,
    };
    let progress = progress();
    let store = deployment.store.as_ref();
    if args.repair {
        progress.stage("repairing and reconciling", None);
        let options = repair::Options {
            reconcile: options,
            dry_run: args.dry_run,
            actor: args.actor.unwrap_or_else(user),
            leases: deployment.leases(),
        };
        let report = repair::repair(store, deployment.queue().as_ref(), &options).await?;
        drop(progress);
        print(&report, format)?;
        return Ok(if report.is_clean() { 0 } else { DATA });
    }
    progress.stage("reconciling", None);
    let report = reconcile::reconcile(store, &options, |_| {}).await?;
    drop(progress);
    print(&report, format)?;
    Ok(if report.is_clean() { 0 } else { DATA })
}

async fn run_dead(
    command: DeadCommand,
    deployment: &Deployment,
    format: Format,
) -> anyhow::Result<u8> {
    let store = deployment.store.as_ref();
    match command {
        DeadCommand::List(args) => {
            let filter = DeadFilter {
                role: args.role.map(RoleName::new),
                status: args.status,
                reason: args.reason,
                key: None,
            };
            print(&dead::list(store, &filter, args.limit).await?, format)?;
        }
        DeadCommand::Show { id } => print(&dead::show(store, id).await?, format)?,
        DeadCommand::Replay(args) => print(&run_replay(args, deployment).await?, format)?,
        DeadCommand::Discard(args) => {
            let act = act(args.actor, Some(args.reason));
            print(&dead::discard(store, &args.ids, &act).await?, format)?;
        }
    }
    Ok(0)
}

async fn run_callbacks(
    command: CallbacksCommand,
    deployment: &Deployment,
    format: Format,
) -> anyhow::Result<u8> {
    let store = deployment.store.as_ref();
    match command {
        CallbacksCommand::List {
            about,
            verdict,
            limit,
        } => {
            let filter = callbacks::Filter { about, verdict };
            print(&callbacks::list(store, &filter, limit).await?, format)?;
        }
        CallbacksCommand::Show { id } => print(&callbacks::show(store, id).await?, format)?,
    }
    Ok(0)
}

async fn run_replay(args: DeadReplay, deployment: &Deployment) -> anyhow::Result<dead::Acted> {
    let act = act(args.actor, args.reason);
    let Some(rejected) = args.rejected else {
        let how = dead::Replay {
            dry_run: args.dry_run,
            as_new: args.as_new,
        };
        return Ok(dead::replay(deployment, &args.ids, &how, &act).await?);
    };
    let Some((role, key)) = rejected.split_once(':') else {
        return Err(Usage(format!("--rejected is {rejected:?}, expected ROLE:KEY")).into());
    };
    let role = RoleName::new(role.to_owned());
    Ok(dead::replay_rejected(deployment, &role, key, args.dry_run, &act).await?)
}

/// The name of the user, for who does not give one.
fn user() -> String {
    std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned())
}

fn act(actor: Option<String>, reason: Option<String>) -> dead::Act {
    dead::Act {
        actor: actor.unwrap_or_else(user),
        reason: reason.unwrap_or_else(|| "replayed".to_owned()),
    }
}

/// Text that is a report.
#[derive(Serialize)]
struct Text(String);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Errors that are a report.
struct AsJson<'a>(&'a config::Errors);

impl Serialize for AsJson<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl fmt::Display for AsJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `config show`.
#[derive(Serialize)]
#[serde(transparent)]
struct Shown {
    entries: Vec<Entry>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["key", "value", "from", "meaning"], &[]);
        for entry in &self.entries {
            let origin = entry.origin.to_string();
            table.row([entry.key, &entry.value, &origin, entry.doc].map(str::to_owned));
        }
        write!(f, "{table}")
    }
}
