//! Configuration: defaults, then a TOML file, then environment variables, then command-line flags.
//!
//! A key is declared once, in `sections!` below: its type, default, limits and documentation.
//! The declaration makes the typed [`Config`], the table [`KEYS`] and the [`example`] file.
//! Unknown keys are refused, and all problems are reported at once.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use ::config::{FileFormat, Source, Value, ValueKind};
use serde::Serialize;
use strum::VariantNames;

use crate::domain::id::AccountKind;
use crate::domain::retry::LEVELS;
use crate::domain::{RetryPolicy, WaysBack};
use kind::{FromText, seconds};

pub use kind::{Kind, LogFormat, Url};
pub use problem::{Errors, Origin, Problem};

mod kind;
mod problem;

/// The file that is read from the working directory, if it exists and no other is named.
pub const FILE: &str = "orderonce.toml";

/// The environment variable that names another file.
pub const FILE_VARIABLE: &str = "ORDERONCE_CONFIG";

/// Pairs of keys of which the first must be the longer time.
///
/// A lease must last longer than the pause between two looks at the queue, or it runs out unused; so must the janitor's.
/// A parked event may have to wait until its order is paid or expires.
const LONGER_THAN: &[(&str, &str)] = &[
    ("broker.lease_seconds", "broker.poll_seconds"),
    ("relay.lease_seconds", "relay.poll_seconds"),
    ("janitor.lease_seconds", "janitor.interval_seconds"),
    ("parking.deadline_seconds", "order.pay_timeout_seconds"),
    ("order.pay_timeout_seconds", "order.remind_before_seconds"),
];

const VARIABLE_PREFIX: &str = "ORDERONCE__";
const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_mins(1);
const DAY: Duration = Duration::from_hours(24);
const YEAR: Duration = Duration::from_hours(24 * 365);
const CENTURY: Duration = Duration::from_hours(24 * 36_525);

/// Makes the section structs, [`Config`], [`SECTIONS`] and [`KEYS`] out of one declaration:
/// `field: Type = "name of the key", "default", kind;` under the documentation of the key.
macro_rules! sections {
    ($(
        $(#[doc = $section_doc:literal])+
        $section:ident: $Section:ident {$(
            $(#[doc = $doc:literal])+
            $field:ident: $Type:ty = $name:literal, $default:literal, $kind:expr;
        )+}
    )+) => {
        /// All settings, checked.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Config {$(
            $(#[doc = $section_doc])+
            pub $section: $Section,
        )+}

        $(
            $(#[doc = $section_doc])+
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $Section {$(
                $(#[doc = $doc])+
                #[doc = concat!(
                    "\n\nKey `", stringify!($section), ".", $name, "`, by default `", $default, "`."
                )]
                pub $field: $Type,
            )+}
        )+

        /// The sections and what each is about, in the order of the example file.
        pub const SECTIONS: &[(&str, &str)] = &[$(
            (stringify!($section), concat!($($section_doc),+).trim_ascii()),
        )+];

        /// Every key there is, in the order of the example file.
        pub const KEYS: &[KeySpec] = &[$($(
            KeySpec {
                key: concat!(stringify!($section), ".", $name),
                default: $default,
                kind: $kind,
                doc: concat!($($doc),+).trim_ascii(),
            },
        )+)+];

        impl Layers {
            fn build(&self) -> Result<Config, Problem> {
                Ok(Config {$(
                    $section: $Section {$(
                        $field: self.typed(concat!(stringify!($section), ".", $name))?,
                    )+},
                )+})
            }
        }
    };
}

sections! {
    /// The database.
    store: Store {
        /// Where the database is.
        url: Url = "url", "sqlite://orderonce.db", Kind::Url(&[
            "sqlite://PATH",
            "postgres://USER:PASSWORD@HOST/DATABASE",
            "postgresql://USER:PASSWORD@HOST/DATABASE",
            "mysql://USER:PASSWORD@HOST/DATABASE",
            "mariadb://USER:PASSWORD@HOST/DATABASE",
        ]);
        /// How long a statement waits for a lock that another connection holds.
        busy_timeout: Duration = "busy_timeout_seconds", "5", Kind::Seconds(MILLISECOND..=MINUTE);
        /// How long a server works on one statement before it gives up; a file has no such limit.
        statement_timeout: Duration = "statement_timeout_seconds", "30", Kind::Seconds(MILLISECOND..=DAY);
        /// Connections to a server, at most.
        connections: u32 = "connections", "16", Kind::Integer(2..=1_024);
        /// Connections to a file that only read.
        reader_connections: u32 = "reader_connections", "4", Kind::Integer(1..=256);
    }

    /// The queues that deliveries come from.
    broker: Broker {
        /// Where the broker is: `embedded:` is a table in the SQLite file of `store.url`; several RabbitMQ hosts are tried in turn, with commas between their URLs.
        url: Url = "url", "embedded:", Kind::Url(&[
            "embedded:",
            "amqp://USER:PASSWORD@HOST/VHOST",
            "amqps://USER:PASSWORD@HOST/VHOST",
        ]);
        /// The exchange that events are published to, and the beginning of its queues' names.
        prefix: String = "prefix", "orderonce", Kind::Name;
        /// A file with the certificates that a RabbitMQ host's certificate is checked by; empty: the system's.
        ca_file: String = "ca_file", "", Kind::Text;
        /// How long a delivery from the embedded queue belongs to its consumer before it is delivered again.
        lease: Duration = "lease_seconds", "30", Kind::Seconds(MILLISECOND..=DAY);
        /// Unsettled deliveries after which a message is taken for one that kills the process. Below 6, what
        /// another role of that process had in hand may be taken for one too.
        delivery_limit: u32 = "delivery_limit", "20", Kind::Integer(1..=1_000);
        /// Pause before an empty embedded queue is looked at again.
        poll: Duration = "poll_seconds", "0.05", Kind::Seconds(MILLISECOND..=MINUTE);
        /// Whether acknowledged messages stay in the embedded queue's table, for inspection.
        keep_acked: bool = "keep_acked", "false", Kind::Bool;
    }

    /// Deliveries that share one transaction.
    batch: Batch {
        /// Most deliveries in one batch.
        max: usize = "max", "256", Kind::Integer(1..=4_096);
        /// Batches of one role that are at work at the same time in one process.
        workers: usize = "workers", "1", Kind::Integer(1..=256);
    }

    /// Limits on a message; one beyond them is dead-lettered.
    message: Message {
        /// Longest message, in bytes.
        max_bytes: usize = "max_bytes", "1048576", Kind::Integer(1_024..=67_108_864);
        /// Deepest nesting of JSON objects and arrays.
        max_depth: usize = "max_depth", "32", Kind::Integer(4..=128);
    }

    /// Deduplication records.
    claims: Claims {
        /// Whether a claim keeps the message's body, to compare a conflicting message with.
        keep_body: bool = "keep_body", "true", Kind::Bool;
    }

    /// How long deduplication records are kept. A claim lives longer than all ways together in which a copy can come: `config show` adds them up.
    retention: Retention {
        /// How long after its conclusion a claim is marked as expired. It still stops copies; its message is gone.
        life: Duration = "life_seconds", "2592000", Kind::Seconds(MILLISECOND..=CENTURY);
        /// How long an expired claim stays before it is removed. What comes back after that meets flows and states.
        archive: Duration = "archive_seconds", "2592000", Kind::Seconds(Duration::ZERO..=CENTURY);
        /// How long a delivery may be in a worker's hands; RabbitMQ takes it back after 30 minutes (`consumer_timeout`).
        processing: Duration = "processing_seconds", "1800", Kind::Seconds(Duration::ZERO..=YEAR);
        /// How old a dead letter of a broker or of another system may be when it is replayed. Those in the table `dead_letter` keep their claims.
        dead_letters: Duration = "dead_letter_seconds", "1209600", Kind::Seconds(Duration::ZERO..=CENTURY);
        /// How long a producer's message may wait for its broker.
        outbox: Duration = "outbox_seconds", "259200", Kind::Seconds(Duration::ZERO..=CENTURY);
        /// How far back a producer or an operator may play messages again.
        replay: Duration = "replay_seconds", "604800", Kind::Seconds(Duration::ZERO..=CENTURY);
        /// Added for what nobody has thought of.
        slack: Duration = "slack_seconds", "86400", Kind::Seconds(Duration::ZERO..=YEAR);
        /// Claims that are marked or removed in one transaction, at most.
        batch: u32 = "batch", "500", Kind::Integer(1..=10_000);
        /// Pause after such a transaction, at least; four times as long as that took, if this is longer.
        pause: Duration = "pause_seconds", "0.02", Kind::Seconds(Duration::ZERO..=MINUTE);
        /// How long nobody looks again once nothing is left.
        interval: Duration = "interval_seconds", "60", Kind::Seconds(MILLISECOND..=DAY);
    }

    /// Layers in front of the database, which save work and decide nothing.
    gate: Gate {
        /// Where Redis is, which remembers for all processes which keys are settled; empty: no such layer.
        redis_url: Url = "redis_url", "", Kind::Url(&["redis://USER:PASSWORD@HOST", ""]);
        /// The beginning of each key in Redis. Deployments with databases of their own need names of their own.
        namespace: String = "namespace", "orderonce", Kind::Name;
        /// How long Redis remembers a settled key; longer than all retries of a message take together.
        ttl: Duration = "ttl_seconds", "86400", Kind::Seconds(Duration::from_secs(30)..=YEAR);
        /// How long an answer of Redis is waited for before it is gone round.
        timeout: Duration = "timeout_seconds", "0.05", Kind::Seconds(MILLISECOND..=MINUTE);
        /// Whether a worker marks in Redis which keys it has in hand, so that other workers let copies of them wait. Pays where handlers are slow; the filter is not used then.
        marks: bool = "marks", "false", Kind::Bool;
        /// The name of this process in its marks, the same after a restart and no other process's; empty: the machine's name.
        process: String = "process", "", Kind::Text;
        /// Settled keys of each role that a process remembers at least, so that Redis is asked of these alone; 0: it is asked of all. Pays where Redis is far and batches are small.
        filter_keys: u64 = "filter_keys", "0", Kind::Integer(0..=1_000_000_000);
        /// One in so many other keys is taken for one of them, when there are as many as expected.
        filter_mistakes: u32 = "filter_mistakes_one_in", "100", Kind::Integer(2..=1_000_000);
        /// Where the remembered keys are kept while the process is stopped; empty: they are forgotten.
        filter_file: String = "filter_file", "", Kind::Text;
    }

    /// Deliveries that failed and are tried again.
    retry: Retry {
        /// Retries of a message after its first delivery failed, before it is dead-lettered.
        attempts: u32 = "attempts", "16", Kind::Integer(1..=18);
        /// Delay before the first retry; each later one takes the next level, the last repeats.
        first_delay: Duration = "first_delay_seconds", "10", Kind::SecondsOneOf(&LEVELS);
        /// How often a batch that lost a race is decided again at once.
        redecide: u32 = "redecide", "5", Kind::Integer(0..=100);
    }

    /// Events that came too early.
    parking: Parking {
        /// How long an event waits for what makes it possible before it is dead-lettered.
        deadline: Duration = "deadline_seconds", "86400", Kind::Seconds(MILLISECOND..=YEAR);
    }

    /// Orders.
    order: Order {
        /// How long an order may stay unpaid before it expires.
        pay_timeout: Duration = "pay_timeout_seconds", "1800", Kind::Seconds(MILLISECOND..=YEAR);
        /// How long before an unpaid order expires `payment.query_requested` is published, so that somebody asks its provider; 0: never.
        remind_before: Duration = "remind_before_seconds", "0", Kind::Seconds(Duration::ZERO..=YEAR);
    }

    /// What a completed order credits to its user's account.
    account: Account {
        /// The kind of account that points are credited to.
        points_kind: AccountKind = "points_kind", "POINTS", Kind::Name;
        /// Points for each whole major unit paid and not refunded; 0 credits none.
        points_per_major_unit: u32 = "points_per_major_unit", "1", Kind::Integer(0..=1_000_000);
    }

    /// Publishing from the outbox.
    relay: Relay {
        /// Most messages published and not yet confirmed.
        window: usize = "window", "256", Kind::Integer(1..=65_536);
        /// How long one relay owns the outbox before another may take over.
        lease: Duration = "lease_seconds", "10", Kind::Seconds(MILLISECOND..=DAY);
        /// Pause before an empty outbox is looked at again.
        poll: Duration = "poll_seconds", "0.05", Kind::Seconds(MILLISECOND..=MINUTE);
    }

    /// What runs by the clock: order timeouts and parked deadlines; for claims see `retention`.
    janitor: Janitor {
        /// Pause between two runs.
        interval: Duration = "interval_seconds", "1", Kind::Seconds(MILLISECOND..=DAY);
        /// How long one janitor owns what is due before another may take over.
        lease: Duration = "lease_seconds", "10", Kind::Seconds(MILLISECOND..=DAY);
        /// Most rows handled in one transaction.
        batch: u32 = "batch", "256", Kind::Integer(1..=65_536);
    }

    /// Stopping the process.
    shutdown: Shutdown {
        /// How long work in progress may take to finish once a stop is asked for.
        deadline: Duration = "deadline_seconds", "20", Kind::Seconds(Duration::ZERO..=DAY);
    }

    /// Saying how the process is.
    health: Health {
        /// Address and port at which `serve` answers `/live`, `/ready` and `/metrics`, such as 127.0.0.1:8080; empty: nowhere.
        listen: String = "listen", "", Kind::Listen;
        /// Pause between two looks at each dependency.
        interval: Duration = "interval_seconds", "1", Kind::Seconds(MILLISECOND..=DAY);
    }

    /// The HTTP API. TLS is the business of a proxy in front of it.
    http: Http {
        /// Address and port at which `serve` answers /v1, such as 127.0.0.1:8000; empty: nowhere.
        listen: String = "listen", "", Kind::Listen;
        /// A file with what callers' keys are known by; `orderonce keys new NAME` makes an entry for it.
        keys_file: String = "keys_file", "", Kind::Text;
        /// Longest body of a request, in bytes.
        body_max: usize = "body_max_bytes", "262144", Kind::Integer(1_024..=16_777_216);
        /// How long an answer may take; a request that takes longer goes on, and has its answer when it is asked again.
        timeout: Duration = "timeout_seconds", "10", Kind::Seconds(MILLISECOND..=MINUTE);
        /// Requests of one caller in a second, on average, unless its entry says otherwise.
        rate: u32 = "rate_per_second", "100", Kind::Integer(1..=1_000_000);
        /// Requests of one caller at once, unless its entry says otherwise.
        burst: u32 = "rate_burst", "200", Kind::Integer(1..=1_000_000);
        /// Requests that may wait for the database, at most.
        room: usize = "waiting", "1024", Kind::Integer(1..=1_000_000);
    }

    /// What payment providers say by HTTP, at `http.listen` under /v1/callbacks.
    callbacks: Callbacks {
        /// A file with the providers and what their signatures are checked with; empty: there are none.
        file: String = "file", "", Kind::Text;
        /// How long a provider waits for its answer, at most; then it is told to come again, and what it said goes on.
        answer_within: Duration = "answer_within_seconds", "4", Kind::Seconds(MILLISECOND..=MINUTE);
        /// How long callbacks are kept as they came.
        keep: Duration = "keep_seconds", "7776000", Kind::Seconds(MINUTE..=YEAR);
        /// Callbacks that are not believed and are kept all the same, in a minute; the rest is only counted.
        refusals_kept: u32 = "refusals_kept_per_minute", "60", Kind::Integer(1..=1_000_000);
    }

    /// Traces, sent to a collector.
    trace: Trace {
        /// Where a collector takes OTLP over HTTP, such as http://collector:4318; empty: no traces.
        endpoint: Url = "endpoint", "", Kind::Url(&["http://HOST:PORT", ""]);
        /// The name of this service in its traces.
        service: String = "service", "orderonce", Kind::Name;
        /// One in so many of the traces that begin here is kept; whoever has begun a trace has decided about it.
        sample_one_in: u32 = "sample_one_in", "1", Kind::Integer(1..=1_000_000);
    }

    /// The log, written to standard error.
    log: Log {
        /// `pretty` for people, or `json` for machines: one object per line.
        format: LogFormat = "format", "pretty", Kind::OneOf(LogFormat::VARIANTS);
        /// Which events are logged.
        filter: String = "filter", "info", Kind::Filter;
    }
}

/// What is known about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpec {
    /// Section and name, such as `batch.max`.
    pub key: &'static str,
    /// The value if nothing sets it, as text.
    pub default: &'static str,
    /// Which values are accepted.
    pub kind: Kind,
    /// What it means, in one sentence.
    pub doc: &'static str,
}

/// A setting given on the command line.
#[derive(Debug, Clone, Copy)]
pub struct Flag<'a> {
    /// The flag as the user typed it, such as `--store`; the origin of the value.
    pub name: &'a str,
    /// The key that it sets.
    pub key: &'a str,
    /// The value as text.
    pub value: &'a str,
}

/// A checked configuration, and where each of its values came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// One entry per key, in the order of [`KEYS`].
    pub entries: Vec<Entry>,
}

/// A key's value and origin, for people to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The key.
    pub key: &'static str,
    /// The value as it was given, with secrets masked.
    pub value: String,
    /// Where the value came from.
    pub origin: Origin,
    /// What the key means.
    pub doc: &'static str,
}

impl Config {
    /// Reads the configuration: defaults, then the file, then `env`, then `flags`.
    ///
    /// The file is `file`, else the one that the variable [`FILE_VARIABLE`] names, else [`FILE`] if
    /// it exists. `env` is usually [`std::env::vars_os`]; of it, only names that start with
    /// `ORDERONCE__` matter, so that what a container platform injects is not taken for a typo.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, in the file, the environment and the flags together.
    pub fn load<K, V>(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (K, V)>,
        flags: &[Flag<'_>],
    ) -> Result<Loaded, Errors>
    where
        K: Into<OsString>,
        V: Into<OsString>,
    {
        let env: BTreeMap<OsString, OsString> = env
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let named = || env.get(OsStr::new(FILE_VARIABLE));
        let path = file
            .or_else(|| named().filter(|path| !path.is_empty()).map(Path::new))
            .or_else(|| Some(Path::new(FILE)).filter(|path| path.exists()));

        let mut layers = Layers::default();
        if let Some(path) = path {
            layers.add_file(path);
        }
        layers.add_env(&env);
        for flag in flags {
            let origin = Origin::Flag(flag.name.to_owned());
            layers.set(flag.key, Ok(flag.value.to_owned()), origin);
        }
        layers.finish()
    }
}

impl Config {
    /// How failed deliveries are tried again.
    #[must_use]
    pub fn retry_policy(&self) -> RetryPolicy {
        // The configuration admits the delay levels only.
        RetryPolicy::new(self.retry.attempts, self.retry.first_delay).unwrap_or_default()
    }

    /// The ways in which a message can come back.
    #[must_use]
    pub fn ways_back(&self) -> WaysBack {
        let retention = &self.retention;
        WaysBack {
            retries: self.retry_policy().horizon(),
            processing: retention.processing,
            dead_letters: retention.dead_letters,
            outbox: retention.outbox,
            replay: retention.replay,
            slack: retention.slack,
        }
    }
}

impl Default for Config {
    #[expect(
        clippy::expect_used,
        reason = "a test checks the defaults, which are constants"
    )]
    fn default() -> Self {
        Layers::default().build().expect("the defaults are valid")
    }
}

/// A file that sets every key to its default, with the documentation as comments.
pub fn example() -> String {
    let mut text = format!(
        "# Configuration of orderonce, with every key at its default.\n\
         # Read from --config PATH, else ${FILE_VARIABLE}, else {FILE} in the working directory.\n\
         # An environment variable such as {} goes before this file.\n\
         # A URL may also be read from the file that {}_FILE names.\n",
        variable("section.key"),
        variable("store.url"),
    );
    for (section, doc) in SECTIONS {
        text += &format!("\n# {doc}\n[{section}]\n");
        for spec in KEYS {
            if let Some((_, name)) = spec.key.split_once('.').filter(|(of, _)| of == section) {
                let KeySpec {
                    default, kind, doc, ..
                } = spec;
                let quote = if kind.is_text() { "\"" } else { "" };
                text +=
                    &format!("\n# {doc}\n# Expected: {kind}\n{name} = {quote}{default}{quote}\n");
            }
        }
    }
    text
}

/// What the layers gave so far, a later one in place of an earlier one.
#[derive(Default)]
struct Layers {
    given: BTreeMap<&'static str, Given>,
    problems: Vec<Problem>,
}

/// A value as text and its origin. `Err` holds what to show for a value that is not text.
struct Given {
    text: Result<String, String>,
    origin: Origin,
}

impl Layers {
    fn add_file(&mut self, path: &Path) {
        let origin = Origin::File(path.to_owned());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                let reason = error.to_string();
                return self.problems.push(Problem::Unreadable { origin, reason });
            }
        };
        match ::config::File::from_str(&text, FileFormat::Toml).collect() {
            Ok(table) => self.add_table("", table, &origin),
            Err(error) => self
                .problems
                .push(Problem::syntax(&error.to_string(), origin)),
        }
    }

    fn add_table(&mut self, parent: &str, table: ::config::Map<String, Value>, origin: &Origin) {
        let sorted: BTreeMap<_, _> = table.into_iter().collect();
        for (name, value) in sorted {
            let key = if parent.is_empty() {
                name
            } else {
                format!("{parent}.{name}")
            };
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "all others have a value as text"
            )]
            match value.kind {
                ValueKind::Table(table) => self.add_table(&key, table, origin),
                ValueKind::Array(_) => self.set(&key, Err("[...]".to_owned()), origin.clone()),
                scalar => self.set(&key, Ok(scalar.to_string()), origin.clone()),
            }
        }
    }

    fn add_env(&mut self, env: &BTreeMap<OsString, OsString>) {
        for (name, value) in env {
            let name = name.to_string_lossy();
            if let Some(key) = name.strip_prefix(VARIABLE_PREFIX) {
                let key = key.to_ascii_lowercase().replace("__", ".");
                let text = value.to_str().map(str::to_owned);
                let text = text.ok_or_else(|| value.to_string_lossy().into_owned());
                let origin = Origin::Variable(name.into_owned());
                match secret_in_file(&key) {
                    Some(key) => self.set_from_file(key, text, origin),
                    None => self.set(&key, text, origin),
                }
            }
        }
    }

    /// What container platforms hand over as a file instead of a variable.
    fn set_from_file(&mut self, key: &str, path: Result<String, String>, origin: Origin) {
        let path = path.unwrap_or_else(|path| path);
        match std::fs::read_to_string(&path) {
            Ok(text) => self.set(key, Ok(text.trim_end().to_owned()), origin),
            Err(error) => {
                let reason = format!("{path}: {error}");
                self.problems.push(Problem::Unreadable { origin, reason });
            }
        }
    }

    fn set(&mut self, key: &str, text: Result<String, String>, origin: Origin) {
        match find(key, &origin) {
            Ok(spec) => drop(self.given.insert(spec.key, Given { text, origin })),
            Err(problem) => self.problems.push(problem),
        }
    }

    fn finish(mut self) -> Result<Loaded, Errors> {
        let wrong_values = KEYS.iter().filter_map(|spec| self.checked(spec).err());
        let too_short = LONGER_THAN
            .iter()
            .filter_map(|pair| self.check_longer(*pair).err());
        let homeless = self.check_embedded().err();
        let forgetful = self.check_ttl().err();
        let mortal = self.build().ok();
        let mortal = mortal.and_then(|config| self.check_life(&config).err());
        let more = wrong_values
            .chain(too_short)
            .chain(homeless)
            .chain(forgetful)
            .chain(mortal);
        let more: Vec<_> = more.collect();
        self.problems.extend(more);
        if !self.problems.is_empty() {
            return Err(Errors::new(self.problems));
        }
        let config = self.build().map_err(|problem| Errors::new(vec![problem]))?;
        let entries = KEYS.iter().map(|spec| self.entry(spec)).collect();
        Ok(Loaded { config, entries })
    }

    /// The text that counts, if the key accepts it.
    fn checked(&self, spec: &KeySpec) -> Result<&str, Problem> {
        let text = self.given.get(spec.key).map_or(Ok(spec.default), |given| {
            given.text.as_deref().map_err(String::as_str)
        });
        match text {
            Ok(text) if spec.kind.accepts(text) => Ok(text),
            Ok(shown) | Err(shown) => Err(self.wrong_value(spec, shown, spec.kind.to_string())),
        }
    }

    fn check_longer(&self, (longer, shorter): (&str, &str)) -> Result<(), Problem> {
        let longer = find(longer, &Origin::Default)?;
        let shorter = find(shorter, &Origin::Default)?;
        match (self.checked(longer), self.checked(shorter)) {
            (Ok(long), Ok(short)) if seconds(long) <= seconds(short) => {
                let origin = self.origin(shorter);
                let expected = format!("more than {} = {short} ({origin})", shorter.key);
                Err(self.wrong_value(longer, long, expected))
            }
            _ => Ok(()),
        }
    }

    /// The embedded queue is a table in a SQLite file.
    fn check_embedded(&self) -> Result<(), Problem> {
        let store = find("store.url", &Origin::Default)?;
        let broker = find("broker.url", &Origin::Default)?;
        match (self.checked(store), self.checked(broker)) {
            (Ok(url), Ok("embedded:")) if !url.starts_with("sqlite:") => {
                let store = format!(
                    "{} = {} ({})",
                    store.key,
                    store.kind.mask(url),
                    self.origin(store)
                );
                let expected = format!("an amqp:// or amqps:// URL with {store}");
                Err(self.wrong_value(broker, "embedded:", expected))
            }
            _ => Ok(()),
        }
    }

    /// A claim must outlive every way in which a copy can come.
    fn check_life(&self, config: &Config) -> Result<(), Problem> {
        let life = find("retention.life_seconds", &Origin::Default)?;
        let ways_back = config.ways_back();
        if config.retention.life >= ways_back.longest() {
            return Ok(());
        }
        let expected = format!(
            "at least {ways_back} (retry.attempts, retry.first_delay_seconds, retention.*_seconds)"
        );
        Err(self.wrong_value(life, self.checked(life)?, expected))
    }

    /// What a retry brings back must still be known.
    fn check_ttl(&self) -> Result<(), Problem> {
        let url = find("gate.redis_url", &Origin::Default)?;
        let ttl = find("gate.ttl_seconds", &Origin::Default)?;
        let attempts = self.typed("retry.attempts").unwrap_or_default();
        let first_delay = self.typed("retry.first_delay_seconds").unwrap_or_default();
        let Some(retry) = RetryPolicy::new(attempts, first_delay) else {
            return Ok(()); // said of those keys themselves
        };
        let horizon = retry.horizon();
        match (self.checked(url), self.checked(ttl)) {
            (Ok(url), Ok(text)) if !url.is_empty() && seconds(text) <= Some(horizon) => {
                let horizon = horizon.as_secs();
                let expected = format!(
                    "more than the {horizon} s that all {attempts} retries of a message take (retry.attempts, retry.first_delay_seconds)"
                );
                Err(self.wrong_value(ttl, text, expected))
            }
            _ => Ok(()),
        }
    }

    fn typed<T: FromText>(&self, key: &str) -> Result<T, Problem> {
        let spec = find(key, &Origin::Default)?;
        let text = self.checked(spec)?;
        T::from_text(text).ok_or_else(|| self.wrong_value(spec, text, spec.kind.to_string()))
    }

    fn entry(&self, spec: &KeySpec) -> Entry {
        let text = self.checked(spec).unwrap_or_default();
        Entry {
            key: spec.key,
            value: spec.kind.mask(text),
            origin: self.origin(spec),
            doc: spec.doc,
        }
    }

    fn origin(&self, spec: &KeySpec) -> Origin {
        self.given
            .get(spec.key)
            .map_or(Origin::Default, |given| given.origin.clone())
    }

    fn wrong_value(&self, spec: &KeySpec, text: &str, expected: String) -> Problem {
        Problem::WrongValue {
            key: spec.key,
            value: spec.kind.mask(text),
            expected,
            origin: self.origin(spec),
        }
    }
}

/// The key that `key` names the file of, such as `store.url` for `store.url_file`: those that may
/// hold a password have such a variable.
fn secret_in_file(key: &str) -> Option<&str> {
    let key = key.strip_suffix("_file")?;
    let mut secrets = KEYS.iter().filter(|spec| matches!(spec.kind, Kind::Url(_)));
    secrets.any(|spec| spec.key == key).then_some(key)
}

fn variable(key: &str) -> String {
    format!(
        "{VARIABLE_PREFIX}{}",
        key.replace('.', "__").to_ascii_uppercase()
    )
}

fn find(key: &str, origin: &Origin) -> Result<&'static KeySpec, Problem> {
    KEYS.iter().find(|spec| spec.key == key).ok_or_else(|| {
        let suggestion = nearest(key).map(|near| match origin {
            Origin::Variable(_) => variable(near),
            Origin::Default | Origin::File(_) | Origin::Flag(_) | Origin::Computed => {
                near.to_owned()
            }
        });
        Problem::UnknownKey {
            key: key.to_owned(),
            suggestion,
            origin: origin.clone(),
        }
    })
}

/// The key that was probably meant: one that starts the same, or differs in at most a third.
fn nearest(key: &str) -> Option<&'static str> {
    let keys = || KEYS.iter().map(|spec| spec.key);
    let close = || {
        let (distance, near) = keys().map(|near| (edit_distance(key, near), near)).min()?;
        (distance <= key.len() / 3).then_some(near)
    };
    keys().find(|near| near.starts_with(key)).or_else(close)
}

/// Levenshtein distance: insertions, deletions and substitutions that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.chars().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/orderonce.example.toml");
    const NO_ENV: [(&str, &str); 0] = [];

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn load(text: &str, env: &[(&str, &str)]) -> Result<Loaded, Errors> {
        Config::load(Some(file(text).path()), env.iter().copied(), &[])
    }

    /// What is said about a configuration, with `FILE` in place of the file's path.
    fn problems(text: &str, env: &[(&str, &str)]) -> String {
        let file = file(text);
        let errors = Config::load(Some(file.path()), env.iter().copied(), &[]).unwrap_err();
        errors
            .to_string()
            .replace(file.path().to_str().unwrap(), "FILE")
    }

    fn entry<'a>(loaded: &'a Loaded, key: &str) -> &'a Entry {
        loaded
            .entries
            .iter()
            .find(|entry| entry.key == key)
            .unwrap()
    }

    /// `UPDATE_EXAMPLES=1 cargo test` writes the file anew.
    #[test]
    fn example_file_is_what_the_table_says() {
        if std::env::var_os("UPDATE_EXAMPLES").is_some() {
            std::fs::write(EXAMPLE, example()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(EXAMPLE).unwrap(), example());
    }

    #[test]
    fn example_file_sets_every_key_to_its_default() {
        let loaded = Config::load(Some(Path::new(EXAMPLE)), NO_ENV, &[]).unwrap();
        assert_eq!(loaded.config, Config::default());
        assert!(
            loaded
                .entries
                .iter()
                .all(|entry| entry.origin == Origin::File(EXAMPLE.into()))
        );
    }

    #[test]
    fn defaults_are_valid_and_typed() {
        let loaded = load("", &[]).unwrap();
        assert_eq!(loaded.config, Config::default());
        assert!(
            loaded
                .entries
                .iter()
                .all(|entry| entry.origin == Origin::Default)
        );
        assert_eq!(loaded.config.broker.poll, Duration::from_millis(50));
        assert_eq!(loaded.config.batch.max, 256);
        assert_eq!(loaded.config.log.format, LogFormat::Pretty);
    }

    #[test]
    fn flags_go_before_variables_before_the_file_before_defaults() {
        let file = file("batch.max = 1\n[relay]\nwindow = 1\npoll_seconds = 0.5\n");
        let env = [
            ("ORDERONCE__RELAY__WINDOW", "2"),
            ("ORDERONCE__BATCH__MAX", "2"),
        ];
        let flag = Flag {
            name: "--batch",
            key: "batch.max",
            value: "3",
        };
        let loaded = Config::load(Some(file.path()), env, &[flag]).unwrap();

        let got = |key| {
            (
                entry(&loaded, key).value.as_str(),
                entry(&loaded, key).origin.to_string(),
            )
        };
        assert_eq!(got("batch.max"), ("3", "--batch".into()));
        assert_eq!(
            got("relay.window"),
            ("2", "ORDERONCE__RELAY__WINDOW".into())
        );
        assert_eq!(
            got("relay.poll_seconds"),
            ("0.5", file.path().display().to_string())
        );
        assert_eq!(got("relay.lease_seconds"), ("10", "default".into()));
        assert_eq!(loaded.config.batch.max, 3);
        assert_eq!(loaded.config.relay.poll, Duration::from_millis(500));
    }

    #[test]
    fn the_file_may_be_named_by_a_variable() {
        let file = file("batch.max = 7");
        let env = [(FILE_VARIABLE, file.path().to_str().unwrap())];
        assert_eq!(Config::load(None, env, &[]).unwrap().config.batch.max, 7);
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let file_text = "[batch]\nmax = 0\n[stoer]\nurl = 'x'\n";
        let env = [
            ("ORDERONCE__LOG__FORMAT", "xml"),
            ("ORDERONCE__JANITOR__LEASE_SECONDS", "1"),
            ("ORDERONCE__RELAY__LEASE_SECONDS", "0.05"),
        ];
        assert_eq!(
            problems(file_text, &env),
            "FILE: unknown key stoer.url, did you mean store.url?\n\
             FILE: batch.max is `0`, expected an integer from 1 to 4096\n\
             ORDERONCE__LOG__FORMAT: log.format is `xml`, expected pretty or json\n\
             ORDERONCE__RELAY__LEASE_SECONDS: relay.lease_seconds is `0.05`, \
             expected more than relay.poll_seconds = 0.05 (default)\n\
             ORDERONCE__JANITOR__LEASE_SECONDS: janitor.lease_seconds is `1`, \
             expected more than janitor.interval_seconds = 1 (default)"
        );
    }

    #[test]
    fn a_value_of_the_wrong_kind_is_refused() {
        let wrong = [
            ("broker.keep_acked", &["1", "'yes'"][..]),
            ("batch.max", &["4097", "-1", "1.5", "'many'", "[1]", "true"]),
            (
                "broker.poll_seconds",
                &["0", "61", "nan", "inf", "-1", "'1s'"],
            ),
            ("retry.first_delay_seconds", &["2", "10.5"]),
            (
                "store.url",
                &[
                    "'orderonce.db'",
                    "'sqlite://'",
                    "'sqlite:a.db'",
                    "'oracle://h/d'",
                    "'postgres://'",
                ],
            ),
            ("broker.url", &["'kafka://localhost'", "'embedded:x'"]),
            (
                "health.listen",
                &["8080", "'localhost:8080'", "'127.0.0.1'"],
            ),
            ("account.points_kind", &["''", "'two words'"]),
            ("log.format", &["'JSON'"]),
            (
                "log.filter",
                &["''", "'inof'", "'orderonce=loud'", "'info,'", "['info']"],
            ),
        ];
        for (key, values) in wrong {
            for value in values {
                let errors = load(&format!("{key} = {value}"), &[]).unwrap_err();
                let [Problem::WrongValue { key: named, .. }] = errors.problems() else {
                    panic!("{key} = {value}: {errors}");
                };
                assert_eq!(*named, key);
            }
        }
    }

    #[test]
    fn a_claim_lives_as_long_as_all_ways_back_together_at_least() {
        let sum = "2178940 s = retries 17140 + processing 1800 + dead letters 1209600 + outbox 259200 \
                   + replay 604800 + slack 86400";
        assert_eq!(
            problems("retention.life_seconds = 2178939.9", &[]),
            format!(
                "FILE: retention.life_seconds is `2178939.9`, expected at least {sum} \
                 (retry.attempts, retry.first_delay_seconds, retention.*_seconds)"
            )
        );
        assert!(load("retention.life_seconds = 2178940", &[]).is_ok());
        let longer = [
            "retry.attempts = 18",
            "retry.first_delay_seconds = 7200",
            "retention.processing_seconds = 1801",
            "retention.dead_letter_seconds = 1209601",
            "retention.outbox_seconds = 259201",
            "retention.replay_seconds = 604801",
            "retention.slack_seconds = 86401",
        ];
        for longer in longer {
            let said = problems(&format!("retention.life_seconds = 2178940\n{longer}"), &[]);
            assert!(
                said.starts_with("FILE: retention.life_seconds is `2178940`"),
                "{said}"
            );
        }
    }

    #[test]
    fn redis_remembers_longer_than_all_retries_take() {
        let redis = "gate.redis_url = 'redis://cache'\n";
        assert_eq!(
            problems(&format!("{redis}gate.ttl_seconds = 17140"), &[]),
            "FILE: gate.ttl_seconds is `17140`, expected more than the 17140 s that all 16 retries of a \
             message take (retry.attempts, retry.first_delay_seconds)"
        );
        assert!(load(&format!("{redis}gate.ttl_seconds = 17141"), &[]).is_ok());
        assert!(
            load("gate.ttl_seconds = 30", &[]).is_ok(),
            "there is no Redis"
        );
    }

    #[test]
    fn a_value_at_its_limit_is_accepted() {
        let right = [
            ("broker.keep_acked", &["true"][..]),
            ("batch.max", &["1", "4096"]),
            ("broker.poll_seconds", &["0.001", "29.5", "3e0"]),
            ("retry.first_delay_seconds", &["1", "7200", "10.0"]),
            ("store.url", &["'sqlite:///var/lib/orderonce.db'"]),
            (
                "log.filter",
                &[
                    "'off'",
                    "'warn,orderonce=debug'",
                    "'orderonce[batch]=trace'",
                ],
            ),
        ];
        for (key, values) in right {
            for value in values {
                load(&format!("{key} = {value}"), &[]).unwrap();
            }
        }
    }

    #[test]
    fn an_unknown_key_gets_a_suggestion_in_its_own_notation() {
        let file_text =
            "batch = 1\n[relay]\nlease = 1\n[janitor.batch]\nsize = 1\n[amqp]\nheartbeat = 1";
        let env = [
            ("ORDERONCE__BATCH_MAX", "1"),
            ("ORDERONCE_PORT", "tcp://10.0.0.1"),
        ];
        assert_eq!(
            problems(file_text, &env),
            "FILE: unknown key amqp.heartbeat\n\
             FILE: unknown key batch, did you mean batch.max?\n\
             FILE: unknown key janitor.batch.size, did you mean janitor.batch?\n\
             FILE: unknown key relay.lease, did you mean relay.lease_seconds?\n\
             ORDERONCE__BATCH_MAX: unknown key batch_max, did you mean ORDERONCE__BATCH__MAX?"
        );
    }

    #[test]
    fn a_file_that_does_not_parse_is_reported_with_its_line_and_the_rest() {
        let env = [("ORDERONCE__BATCH__MAX", "0")];
        let said = problems("[store]\nurl = \"secret\n", &env);
        assert!(
            said.starts_with("FILE, line 2: invalid basic string"),
            "{said}"
        );
        assert!(
            said.ends_with("batch.max is `0`, expected an integer from 1 to 4096"),
            "{said}"
        );
        assert!(!said.contains("secret"), "{said}");
    }

    #[test]
    fn a_named_file_must_exist() {
        let errors = Config::load(Some(Path::new("no/such.toml")), NO_ENV, &[]).unwrap_err();
        assert!(
            errors
                .to_string()
                .starts_with("no/such.toml: cannot be read: "),
            "{errors}"
        );
    }

    #[test]
    fn passwords_in_urls_are_masked_in_problems_and_entries() {
        let said = problems("store.url = 'oracle://app:hunter2@db'", &[]);
        let beginning =
            "FILE: store.url is `oracle://app:***@db`, expected a URL of the form sqlite://PATH";
        assert!(said.starts_with(beginning), "{said}");
        let loaded = load("store.url = 'sqlite://app:hunter2@file'", &[]).unwrap();
        assert_eq!(entry(&loaded, "store.url").value, "sqlite://app:***@file");
        assert_eq!(
            loaded.config.store.url.as_str(),
            "sqlite://app:hunter2@file"
        );
        assert!(!format!("{loaded:?}").contains("hunter2"));
    }

    #[test]
    fn the_embedded_queue_needs_a_file() {
        assert_eq!(
            problems("store.url = 'mysql://app:hunter2@db/shop'", &[]),
            "default: broker.url is `embedded:`, expected an amqp:// or amqps:// URL with \
             store.url = mysql://app:***@db/shop (FILE)"
        );
        let both = "[store]\nurl = 'postgres://db/shop'\n[broker]\nurl = 'amqp://mq/shop'\n";
        assert!(load(both, &[]).is_ok());
        assert!(load("broker.url = 'amqp://mq/shop'", &[]).is_ok());
    }

    #[test]
    fn a_url_may_come_from_a_file_that_a_variable_names() {
        let secret = file("postgres://app:hunter2@db/shop\n");
        let env = [
            (
                "ORDERONCE__STORE__URL_FILE",
                secret.path().to_str().unwrap(),
            ),
            ("ORDERONCE__BROKER__URL", "amqp://mq/shop"),
        ];
        let loaded = load("", &env).unwrap();
        assert_eq!(
            loaded.config.store.url.as_str(),
            "postgres://app:hunter2@db/shop"
        );
        let origin = &entry(&loaded, "store.url").origin;
        assert_eq!(origin.to_string(), "ORDERONCE__STORE__URL_FILE");

        let said = problems("", &[("ORDERONCE__STORE__URL_FILE", "no/such/file")]);
        let beginning = "ORDERONCE__STORE__URL_FILE: cannot be read: no/such/file: ";
        assert!(said.starts_with(beginning), "{said}");
        let said = problems("", &[("ORDERONCE__BATCH__MAX_FILE", "x")]);
        assert!(said.contains("unknown key batch.max_file"), "{said}");
    }

    #[test]
    fn problems_are_plain_json() {
        let errors = load("", &[("ORDERONCE__BATCH__MAX", "0")]).unwrap_err();
        assert_eq!(
            serde_json::to_value(errors).unwrap(),
            serde_json::json!([{
                "problem": "wrong_value",
                "key": "batch.max",
                "value": "0",
                "expected": "an integer from 1 to 4096",
                "origin": "ORDERONCE__BATCH__MAX",
            }])
        );
    }
}
