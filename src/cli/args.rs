//! Everything about commands and flags in one place.

use crate::domain::{DeadReason, RoleName};
use crate::http::auth::Right;
use crate::store::{CallbackVerdict, DeadStatus};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::error::Error;
use std::marker;
use std::path::PathBuf;
use std::str::FromStr;
use strum::VariantNames;

/// An order processor for message queues that deliver at least once: every effect happens once.
///
/// Start with `orderonce demo`: it runs a real shop's day through all four roles, with duplicates,
/// overtaking and kills, and proves that every effect happened once.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 fine, 1 something is wrong with the data, 2 wrong usage or \
                  configuration, 3 a server is unreachable."
)]
pub struct Cli {
    /// The configuration file [default: orderonce.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE", env = "ORDERONCE_CONFIG")]
    pub config: Option<PathBuf>,

    /// The database, such as sqlite:///var/lib/shop/orderonce.db; goes before store.url
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,

    /// The broker, such as amqp://shop:secret@rabbit/shop; goes before broker.url
    #[arg(long, global = true, value_name = "URL")]
    pub broker: Option<String>,

    /// How reports are printed on standard output
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    pub report: Format,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// How a report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a real shop's day with duplicates, overtaking and kills, and prove that every effect
    /// happened once
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce demo\n\
                  \x20 orderonce demo --duplicates 0.9 --kills 20 --seed 42\n\
                  \x20 orderonce demo --keep day\n\
                  \x20 orderonce --store sqlite://day/orderonce.db explain 536365\n\
                  \x20 orderonce demo --store postgres://shop:secret@db/empty --broker amqp://shop:secret@rabbit/%2f\n\
                  \n\
                  Nothing outside a temporary directory, or that of --keep, is touched. On servers, the day stays in\n\
                  the database, which must hold no claims before; the demo's queues have names of their own, and go.")]
    Demo(Demo),
    /// Run roles, relay and janitor until told to stop (SIGTERM or SIGINT; a second one aborts)
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce migrate && orderonce serve\n\
                  \x20 orderonce serve --role payment --no-relay --no-janitor\n\
                  \x20 orderonce serve --role relay\n\
                  \n\
                  The database must be there: `orderonce migrate` creates it. The log goes to standard error.")]
    Serve(Serve),
    /// Create the database, or bring its schema up to date
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce migrate\n\
                  \x20 orderonce --store sqlite:///var/lib/shop/orderonce.db migrate\n\
                  \n\
                  A second run changes nothing.")]
    Migrate,
    /// Say whether database and broker can be used; exits with 3 if one cannot
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce health\n\
                  \x20 orderonce --report json health\n\
                  \x20 orderonce health --running\n\
                  \n\
                  `serve` answers /live and /ready at health.listen; --running asks there, for example from a\n\
                  container's health check.")]
    Health(Health),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Publish the events of another system's file
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce import --format online-retail day.csv --opening-stock 1000\n\
                  \x20 xz -dc online-retail.csv.xz | orderonce import --format online-retail -\n\
                  \n\
                  The file needs the columns InvoiceNo, StockCode, Quantity, InvoiceDate, UnitPrice and CustomerID.\n\
                  A second import of the same file publishes duplicates, which have no effect. Lines that cannot be\n\
                  used are listed with their reason, the rest is published, and the exit code is 1.")]
    Import(Import),
    /// Publish messages from a file, one CloudEvents envelope in JSON a line
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce send messages.jsonl\n\
                  \x20 generate-messages | orderonce send -\n\
                  \n\
                  A line is a message, such as\n\
                  \x20 {\"specversion\":\"1.0\",\"id\":\"m-1\",\"source\":\"shop\",\"type\":\"order.cancel\",\n\
                  \x20 \"subject\":\"O1\",\"data\":{\"order_id\":\"O1\"}}\n\
                  in one line. A line that is none, or whose type no role consumes, is listed with its reason,\n\
                  the rest is sent, and the exit code is 1.")]
    Send(Send),
    /// Measure what this program does on this machine and these servers
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Recompute everything from the flows and compare; exits with 1 if anything differs
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce reconcile\n\
                  \x20 orderonce --report json reconcile --limit 10\n\
                  \x20 orderonce reconcile --repair --dry-run\n\
                  \x20 orderonce reconcile --repair --actor ann\n\
                  \n\
                  Nothing is changed without --repair, and workers may run meanwhile. Every difference is listed with\n\
                  both figures and with where to look.\n\
                  \n\
                  --repair changes what needs no judgement, and nothing else: it wakes an event that is still parked\n\
                  though what it awaits is true, lets an outbox row that waits after a failure be tried at once,\n\
                  and ends a lease that lasts longer than any can, as after a clock that jumped. Each repair is kept\n\
                  with who made it in the table repair, and `explain` shows it. The exit code tells of what remains.")]
    Reconcile(Reconcile),
    /// Tell the whole life of an order or a key
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce explain 536365\n\
                  \x20 orderonce explain order:536365/order.create\n\
                  \x20 orderonce explain 536365/order.create\n\
                  \n\
                  Everything that is known is listed with its time: outcomes, transitions, payments, refunds, flows,\n\
                  callbacks, parked events, dead letters, and what waits to be published.")]
    Explain(Explain),
    /// Look at, replay or discard messages that could not be processed
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Look at events that wait for what makes them possible
    #[command(subcommand)]
    Parked(ParkedCommand),
    /// Look at what payment providers said, as it came
    #[command(subcommand)]
    Callbacks(CallbacksCommand),
    /// Look at how long claims are kept
    #[command(subcommand)]
    Retention(RetentionCommand),
    /// Make keys for callers of the HTTP API
    #[command(subcommand)]
    Keys(KeysCommand),
}

/// `demo`
#[derive(Debug, Args)]
pub struct Demo {
    /// An Online Retail CSV file [default: the data set's first day, which is built in]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// The probability with which each message is delivered once more, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.3, value_parser = probability)]
    pub duplicates: f64,
    /// Whether messages overtake each other
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub shuffle: bool,
    /// How often the workers are killed with SIGKILL
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub kills: u32,
    /// The number that duplicates, order and kills follow from [default: a random one, printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Leave everything in this directory; the database is orderonce.db in it
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// `serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// A role to run: order, payment, inventory, account or api; or relay or janitor, which then are
    /// all that runs beside the roles that are named; may be given several times [default: everything,
    /// the api if http.listen is set]
    #[arg(long, value_name = "ROLE", value_parser = served)]
    pub role: Vec<Served>,
    /// Do not run the relay, which publishes the outbox
    #[arg(long)]
    pub no_relay: bool,
    /// Do not run the janitor, which closes unpaid orders and looks after parked events
    #[arg(long)]
    pub no_janitor: bool,
}

/// What `serve` may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Served {
    /// A role.
    Role(RoleName),
    /// The HTTP API.
    Api,
    /// The relay.
    Relay,
    /// The janitor.
    Janitor,
}

/// `health`
#[derive(Debug, Args)]
pub struct Health {
    /// Ask the `serve` that answers at health.listen, instead of looking at database and broker
    #[arg(long)]
    pub running: bool,
}

/// `config`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration and list all that is wrong with it
    Check,
    /// Show every value with where it comes from; secrets are masked
    Show,
    /// Print a commented configuration file with every key at its default
    Example,
}

/// The format of another system's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// The UCI Online Retail data set, CSV.
    OnlineRetail,
}

/// `import`
#[derive(Debug, Args)]
pub struct Import {
    /// The format of the file
    #[arg(long, value_enum)]
    pub format: ImportFormat,
    /// Units of each SKU that there are before its first sale
    #[arg(long, value_name = "N")]
    pub opening_stock: Option<u32>,
    /// The file, or - for standard input
    pub file: PathBuf,
}

/// `send`
#[derive(Debug, Args)]
pub struct Send {
    /// How often each message is sent
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Send everything in an order that follows from this number
    #[arg(long, value_name = "SEED")]
    pub shuffle: Option<u64>,
    /// The file, or - for standard input
    pub file: PathBuf,
}

/// `bench`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure what each layer in front of the database is worth, at several shares of duplicates
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce bench layers\n\
                  \x20 export ORDERONCE__GATE__REDIS_URL=redis://:secret@cache\n\
                  \x20 orderonce --store postgres://shop:secret@db/empty bench layers\n\
                  \x20 ORDERONCE__BATCH__MAX=1 orderonce bench layers --deliveries 1000 --duplicates 0,0.5\n\
                  \n\
                  The inventory role handles orders of one line over the catalogue of a real shop: with the database\n\
                  alone, with the filter in front of it, with Redis, and with both. Each run is checked: every order\n\
                  took effect once, in the outcomes and in the tables. Deliveries come from memory, and nothing is\n\
                  published: the cost of the broker, the same for all, is left out, and so is that of the log.\n\
                  \n\
                  The database is store.url, which must hold no claims before, and keeps the orders; if nothing\n\
                  names one, it is a temporary file. Redis is gate.redis_url; without it, what needs it is left out.\n\
                  Keys there have a beginning of their own, and go. batch.max, batch.workers and gate.filter_*\n\
                  count as for `serve`; if gate.filter_keys is 0, a filter for a million keys is measured. The\n\
                  broker is not used.\n\
                  \n\
                  CPU us is the busy time of this process, machine us that of all processes and the kernel, servers\n\
                  included (from /proc/stat, in steps of 10 ms): it means something only when database and Redis are\n\
                  on this machine and nothing else runs. The runs of all cells take turns, and the best of each\n\
                  counts.")]
    Layers(BenchLayers),
}

/// `bench layers`
#[derive(Debug, Args)]
pub struct BenchLayers {
    /// Deliveries of each run
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub deliveries: u32,
    /// Runs of each cell of the table, of which the best counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Shares of the deliveries that are copies of earlier ones, from 0 to 1
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "0,0.01,0.1,0.5,0.9", value_parser = probability)]
    pub duplicates: Vec<f64>,
    /// The number that the streams follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// `reconcile`
#[derive(Debug, Args)]
pub struct Reconcile {
    /// Put right what needs no judgement before comparing
    #[arg(long)]
    pub repair: bool,
    /// Only say what --repair would do
    #[arg(long, requires = "repair")]
    pub dry_run: bool,
    /// Who repairs [default: the user]
    #[arg(long, value_name = "NAME", requires = "repair")]
    pub actor: Option<String>,
    /// Seconds after which what is on its way counts as stuck
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub stuck_after: u64,
    /// Differences of each check that are listed
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// `explain`
#[derive(Debug, Args)]
pub struct Explain {
    /// An order, such as 536365, or a key, such as order:536365/order.create
    #[arg(value_name = "ORDER|KEY")]
    pub what: String,
}

/// `dead`
#[derive(Debug, Subcommand)]
pub enum DeadCommand {
    /// List dead letters, oldest first
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce dead list\n\
                  \x20 orderonce dead list --status dead --role order --reason conflict")]
    List(DeadList),
    /// Show one dead letter with its bytes and headers
    Show {
        /// Its number
        id: i64,
    },
    /// Hand dead letters back to their roles
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce dead replay 7 --dry-run\n\
                  \x20 orderonce dead replay 7 8 9 --reason 'the catalogue was mended'\n\
                  \x20 orderonce dead replay 7 --as-new --actor ann --reason 'the second message was right'\n\
                  \x20 orderonce dead replay --rejected inventory:J1/adjust --as-new --actor ann --reason 'counted again'\n\
                  \n\
                  A replayed message goes back to its role, so `orderonce serve` must run for it to be decided.")]
    Replay(DeadReplay),
    /// Close dead letters that do not matter
    #[command(after_long_help = "Example:\n\
                  \x20 orderonce dead discard 7 --reason 'a test message'\n\
                  \n\
                  The dead letter stays on record, with who discarded it and why.")]
    Discard(DeadDiscard),
}

/// `dead list`
#[derive(Debug, Args)]
pub struct DeadList {
    /// Only those of this role
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// Only those with this status
    #[arg(long, value_name = "STATUS", ignore_case = true, value_parser = one_of::<DeadStatus>(&["dead", "replayed", "discarded"]))]
    pub status: Option<DeadStatus>,
    /// Only those with this reason
    #[arg(long, value_name = "REASON", value_parser = PossibleValuesParser::new(DeadReason::VARIANTS))]
    pub reason: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: u32,
}

/// `dead replay`
#[derive(Debug, Args)]
pub struct DeadReplay {
    /// Numbers of dead letters
    #[arg(required_unless_present = "rejected", conflicts_with = "rejected")]
    pub ids: Vec<i64>,
    /// Instead of a dead letter, an event that was rejected, as ROLE:KEY; needs --as-new
    #[arg(long, value_name = "ROLE:KEY", requires = "as_new")]
    pub rejected: Option<String>,
    /// Only say what would become of each message
    #[arg(long)]
    pub dry_run: bool,
    /// Decide anew, whatever was decided of the key before; flows and statuses still stop what has
    /// been applied. Needs --actor and --reason
    #[arg(long, requires = "actor", requires = "reason")]
    pub as_new: bool,
    /// Who does this [default: the user]
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// `dead discard`
#[derive(Debug, Args)]
pub struct DeadDiscard {
    /// Numbers of dead letters
    #[arg(required = true)]
    pub ids: Vec<i64>,
    /// Who does this [default: the user]
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// `keys`
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key for a caller of the HTTP API, and its entry for http.keys_file
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce keys new shop --right orders.read --right orders.write >> keys.toml\n\
                  \n\
                  The key goes to standard error, once: nobody can read it from the entry. An entry with the\n\
                  name of another is a second key of the same caller, so that the first can be replaced.")]
    New {
        /// The caller's name: 1 to 64 ASCII letters, digits, underscores, hyphens or dots
        name: String,
        /// What it may do; may be given several times
        #[arg(long = "right", value_name = "RIGHT", required = true, value_parser = right)]
        rights: Vec<Right>,
    },
}

/// `parked`
#[derive(Debug, Subcommand)]
pub enum ParkedCommand {
    /// List parked events, the one with the nearest deadline first
    List {
        /// Only those about this order, user or SKU
        #[arg(long, value_name = "SUBJECT")]
        about: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
}

/// `callbacks`
#[derive(Debug, Subcommand)]
pub enum CallbacksCommand {
    /// List callbacks, youngest first
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce callbacks list --about 536365\n\
                  \x20 orderonce callbacks list --verdict refused\n\
                  \n\
                  The same callback is kept once, however often it comes, for callbacks.keep_seconds.")]
    List {
        /// Only those about this order
        #[arg(long, value_name = "ORDER")]
        about: Option<String>,
        /// Only those with this verdict
        #[arg(long, value_name = "VERDICT", ignore_case = true, value_parser = one_of::<CallbackVerdict>(&["accepted", "ignored", "refused"]))]
        verdict: Option<CallbackVerdict>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Show one callback with its body and headers
    Show {
        /// Its number
        id: i64,
    },
}

/// `retention`
#[derive(Debug, Subcommand)]
pub enum RetentionCommand {
    /// Count the claims in use, expired and removed, and say what becomes of them next
    #[command(after_long_help = "Examples:\n\
                  \x20 orderonce retention status\n\
                  \n\
                  The janitor marks claims as expired after retention.life_seconds and removes them\n\
                  retention.archive_seconds later. All claims are counted, which takes a while where there are many.")]
    Status,
}

/// One of these names of a type's values.
fn one_of<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + marker::Send + Sync + 'static> + Clone + marker::Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

fn right(text: &str) -> Result<Right, String> {
    let expected = |_| format!("expected {}", Right::VARIANTS.join(", "));
    text.parse().map_err(expected)
}

fn served(text: &str) -> Result<Served, String> {
    let mut roles = RoleName::BUILT_IN.into_iter();
    match text {
        "api" => Ok(Served::Api),
        "relay" => Ok(Served::Relay),
        "janitor" => Ok(Served::Janitor),
        _ => roles
            .find(|role| role.as_str() == text)
            .map(Served::Role)
            .ok_or_else(|| {
                "expected order, payment, inventory, account, api, relay or janitor".to_owned()
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn as_new_needs_a_name_and_a_reason() {
        let parse = |args: &str| Cli::try_parse_from(args.split(' '));
        assert!(parse("orderonce dead replay 1").is_ok());
        assert!(parse("orderonce dead replay 1 --as-new").is_err());
        assert!(parse("orderonce dead replay 1 --as-new --actor me").is_err());
        assert!(parse("orderonce dead replay 1 --as-new --actor me --reason why").is_ok());
        assert!(parse("orderonce dead replay --rejected order:O1/x").is_err());
        assert!(parse("orderonce dead replay").is_err());
    }

    #[test]
    fn a_dry_run_and_an_actor_are_those_of_a_repair() {
        let parse = |args: &str| Cli::try_parse_from(args.split(' '));
        assert!(parse("orderonce reconcile --repair --dry-run --actor me").is_ok());
        for alone in ["--dry-run", "--actor me"] {
            let error = parse(&format!("orderonce reconcile {alone}")).unwrap_err();
            assert!(error.to_string().contains("--repair"), "{error}");
        }
    }

    #[test]
    fn the_demo_shuffles_unless_told_otherwise() {
        let shuffle = |args: &str| {
            let cli = Cli::try_parse_from(args.split(' ')).unwrap();
            let Command::Demo(demo) = cli.command else {
                panic!("{args} is read as {cli:?}");
            };
            demo.shuffle
        };
        assert!(shuffle("orderonce demo"));
        assert!(shuffle("orderonce demo --shuffle"));
        assert!(!shuffle("orderonce demo --shuffle=false"));
    }
}
