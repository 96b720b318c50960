//! What is counted and measured, and how Prometheus gets it.
//!
//! [`METRICS`] is a contract: names, labels and meanings stay. `metrics.md` beside this file is made of it.

use super::process::Process;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use strum::Display;

/// Something that is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it is a number of.
    pub unit: &'static str,
    /// The labels that every one of its series has.
    pub labels: &'static [&'static str],
    /// Where it is told.
    pub part: Part,
    /// What it means.
    pub meaning: &'static str,
}

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Display)]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by these upper limits.
    Histogram(&'static [f64]),
}

/// The part of a process that tells a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum Part {
    /// Every `serve`.
    #[strum(serialize = "every process")]
    Process,
    /// A role.
    #[strum(serialize = "roles")]
    Role,
    /// The relay.
    #[strum(serialize = "relay")]
    Relay,
    /// The janitor.
    #[strum(serialize = "janitor")]
    Janitor,
    /// The HTTP API.
    #[strum(serialize = "HTTP API")]
    Http,
    /// Connections to RabbitMQ.
    #[strum(serialize = "RabbitMQ")]
    RabbitMq,
    /// Connections to a database server.
    #[strum(serialize = "database servers")]
    Server,
    /// Redis in front of the database.
    #[strum(serialize = "Redis")]
    Redis,
    /// The filter in front of the database.
    #[strum(serialize = "filter")]
    Filter,
    /// Traces.
    #[strum(serialize = "traces")]
    Traces,
}

/// From half a millisecond, which a step in memory takes, to the half minute after which a statement is ended.
const STEPS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// From a millisecond to an hour: a message may wait for a retry, or for a consumer that was away.
const LATENCIES: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 3600.0,
];

/// As far as `batch.max` goes.
const BATCHES: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0,
];

/// All there are, in the order of the docs.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "orderonce_outcomes_total",
        kind: Kind::Counter,
        unit: "events",
        labels: &["role", "outcome", "layer"],
        part: Part::Role,
        meaning: "What became of events, however they came: by queue, by request or by the clock. `layer` is where a duplicate was seen, and empty for every other outcome.",
    },
    Metric {
        name: "orderonce_batch_deliveries",
        kind: Kind::Histogram(BATCHES),
        unit: "deliveries",
        labels: &["role"],
        part: Part::Role,
        meaning: "Deliveries that shared a transaction. Always near `batch.max`: the role is busy all the time.",
    },
    Metric {
        name: "orderonce_commit_latency_seconds",
        kind: Kind::Histogram(LATENCIES),
        unit: "seconds",
        labels: &["role"],
        part: Part::Role,
        meaning: "From the `time` that a message states to the commit of its effects; of those that state one and were applied. The producer's clock counts: one that is ahead gives 0.",
    },
    Metric {
        name: "orderonce_step_seconds",
        kind: Kind::Histogram(STEPS),
        unit: "seconds",
        labels: &["role", "step"],
        part: Part::Role,
        meaning: "How long each step of a batch took: decode, key, ask, claim, load, decide, write, commit, settle. A batch that is decided again has steps 3 to 8 again.",
    },
    Metric {
        name: "orderonce_decided_again_total",
        kind: Kind::Counter,
        unit: "attempts",
        labels: &["role"],
        part: Part::Role,
        meaning: "Attempts that met a row that another transaction had changed, so that they were decided again from fresh rows.",
    },
    Metric {
        name: "orderonce_expired_duplicates_total",
        kind: Kind::Counter,
        unit: "events",
        labels: &["role"],
        part: Part::Role,
        meaning: "Duplicates that were stopped by a claim that had expired already: `retention.life_seconds` is too short for what comes back.",
    },
    Metric {
        name: "orderonce_queue_messages",
        kind: Kind::Gauge,
        unit: "messages",
        labels: &["role", "state"],
        part: Part::Role,
        meaning: "What the role's queue holds: `ready` waits to be delivered, `delayed` waits for its next attempt, `crashed` seems to kill its consumer. On RabbitMQ all roles share what is delayed.",
    },
    Metric {
        name: "orderonce_relay_messages_total",
        kind: Kind::Counter,
        unit: "messages",
        labels: &["result"],
        part: Part::Relay,
        meaning: "Rows of the outbox that were `published` and left it, or `refused` by the broker and stay.",
    },
    Metric {
        name: "orderonce_janitor_handled_total",
        kind: Kind::Counter,
        unit: "things",
        labels: &["what"],
        part: Part::Janitor,
        meaning: "What the clock made due: orders `closed` unpaid, orders of which somebody was `reminded`, parked events given up as `overdue`, messages kept because they `crashed` their consumer.",
    },
    Metric {
        name: "orderonce_claims_expired_total",
        kind: Kind::Counter,
        unit: "claims",
        labels: &[],
        part: Part::Janitor,
        meaning: "Claims that were marked as expired.",
    },
    Metric {
        name: "orderonce_claims_removed_total",
        kind: Kind::Counter,
        unit: "claims",
        labels: &[],
        part: Part::Janitor,
        meaning: "Expired claims that were removed.",
    },
    Metric {
        name: "orderonce_outbox_rows",
        kind: Kind::Gauge,
        unit: "rows",
        labels: &[],
        part: Part::Process,
        meaning: "What is to be published, counted up to 10,000. All processes on one database tell the same: take the maximum, not the sum.",
    },
    Metric {
        name: "orderonce_outbox_oldest_age_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[],
        part: Part::Process,
        meaning: "How long the first row of the outbox has waited; 0 if there is none.",
    },
    Metric {
        name: "orderonce_parked_rows",
        kind: Kind::Gauge,
        unit: "rows",
        labels: &[],
        part: Part::Process,
        meaning: "Events that came too early and wait, counted up to 10,000.",
    },
    Metric {
        name: "orderonce_parked_oldest_age_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[],
        part: Part::Process,
        meaning: "How long the parked event whose deadline is first has waited; 0 if there is none.",
    },
    Metric {
        name: "orderonce_dead_letters_open",
        kind: Kind::Gauge,
        unit: "messages",
        labels: &[],
        part: Part::Process,
        meaning: "Dead letters that wait for a person, counted up to 10,000.",
    },
    Metric {
        name: "orderonce_store_sampled_time_seconds",
        kind: Kind::Gauge,
        unit: "seconds since 1970",
        labels: &[],
        part: Part::Process,
        meaning: "When outbox, parked events and dead letters were looked at last. While the database is away they keep their last values.",
    },
    Metric {
        name: "orderonce_store_connected",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        part: Part::Process,
        meaning: "Whether the database answered when it was asked last.",
    },
    Metric {
        name: "orderonce_store_statements_total",
        kind: Kind::Counter,
        unit: "statements",
        labels: &[],
        part: Part::Process,
        meaning: "Statements sent to the database, begin and commit included.",
    },
    Metric {
        name: "orderonce_store_connections",
        kind: Kind::Gauge,
        unit: "connections",
        labels: &["state"],
        part: Part::Process,
        meaning: "Connections to the database that are `in_use` or `idle`.",
    },
    Metric {
        name: "orderonce_store_waiting",
        kind: Kind::Gauge,
        unit: "callers",
        labels: &[],
        part: Part::Server,
        meaning: "Who waits for a connection to the database server. Above 0 again and again: `store.connections` is too small.",
    },
    Metric {
        name: "orderonce_broker_connected",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &["connection"],
        part: Part::RabbitMq,
        meaning: "Whether a connection to RabbitMQ is up.",
    },
    Metric {
        name: "orderonce_broker_blocked",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &["connection"],
        part: Part::RabbitMq,
        meaning: "Whether RabbitMQ takes nothing over a connection, because of an alarm.",
    },
    Metric {
        name: "orderonce_redis_used",
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        part: Part::Redis,
        meaning: "Whether Redis is used, and not gone round.",
    },
    Metric {
        name: "orderonce_redis_round_trips_total",
        kind: Kind::Counter,
        unit: "round trips",
        labels: &[],
        part: Part::Redis,
        meaning: "Commands and pipelines whose answer was waited for.",
    },
    Metric {
        name: "orderonce_redis_failures_total",
        kind: Kind::Counter,
        unit: "round trips",
        labels: &[],
        part: Part::Redis,
        meaning: "Those of them that had no answer in time, or an error.",
    },
    Metric {
        name: "orderonce_filter_asked_total",
        kind: Kind::Counter,
        unit: "keys",
        labels: &["role"],
        part: Part::Filter,
        meaning: "Keys that the filter was asked for.",
    },
    Metric {
        name: "orderonce_filter_absent_total",
        kind: Kind::Counter,
        unit: "keys",
        labels: &["role"],
        part: Part::Filter,
        meaning: "Those of them that it had not been told of, so that Redis was not asked.",
    },
    Metric {
        name: "orderonce_filter_first_total",
        kind: Kind::Counter,
        unit: "keys",
        labels: &["role"],
        part: Part::Filter,
        meaning: "Keys that were settled for the first time.",
    },
    Metric {
        name: "orderonce_filter_mistaken_total",
        kind: Kind::Counter,
        unit: "keys",
        labels: &["role"],
        part: Part::Filter,
        meaning: "Those of them that the filter took for known.",
    },
    Metric {
        name: "orderonce_filter_false_positive_rate",
        kind: Kind::Gauge,
        unit: "0 to 1",
        labels: &[],
        part: Part::Filter,
        meaning: "The share of mistaken keys among first ones since the start.",
    },
    Metric {
        name: "orderonce_http_requests_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &["method", "route", "status"],
        part: Part::Http,
        meaning: "Requests that were answered. `route` is the pattern that matched, or `none`.",
    },
    Metric {
        name: "orderonce_http_request_seconds",
        kind: Kind::Histogram(STEPS),
        unit: "seconds",
        labels: &["method", "route"],
        part: Part::Http,
        meaning: "How long the answers took.",
    },
    Metric {
        name: "orderonce_callbacks_total",
        kind: Kind::Counter,
        unit: "callbacks",
        labels: &["provider", "verdict", "reason"],
        part: Part::Http,
        meaning: "Callbacks of payment providers: `accepted` and `ignored` ones with the reason `first` or `again`, \
                  `refused` ones with why, and those that were `not_kept` because the database was `unavailable` or the request `slow`.",
    },
    Metric {
        name: "orderonce_trace_spans_total",
        kind: Kind::Counter,
        unit: "spans",
        labels: &["result"],
        part: Part::Traces,
        meaning: "Spans that were `sent` to the collector, or `lost` because it did not take them.",
    },
    Metric {
        name: "orderonce_process_resident_memory_bytes",
        kind: Kind::Gauge,
        unit: "bytes",
        labels: &[],
        part: Part::Process,
        meaning: "Memory of the process that is in use. This and the next three are told on Linux.",
    },
    Metric {
        name: "orderonce_process_cpu_seconds",
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[],
        part: Part::Process,
        meaning: "CPU time that the process has used; it only grows, so rate() gives CPUs.",
    },
    Metric {
        name: "orderonce_process_open_files",
        kind: Kind::Gauge,
        unit: "files",
        labels: &[],
        part: Part::Process,
        meaning: "Open files and sockets.",
    },
    Metric {
        name: "orderonce_process_start_time_seconds",
        kind: Kind::Gauge,
        unit: "seconds since 1970",
        labels: &[],
        part: Part::Process,
        meaning: "When the process started.",
    },
    Metric {
        name: "orderonce_build_info",
        kind: Kind::Gauge,
        unit: "1",
        labels: &["version"],
        part: Part::Process,
        meaning: "The version of the program.",
    },
];

/// Why nothing can be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A histogram without limits.
    #[error("a metric cannot be described: {0}")]
    Description(#[from] BuildError),
    /// The process counts for somebody else already.
    #[error("the process has another recorder of metrics already, so /metrics tells nothing")]
    OtherRecorder,
}

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// Begins to count and measure, for the whole process. What was counted before is lost. Doing it twice does no
/// harm.
///
/// # Errors
/// [`Error`].
pub fn install() -> Result<(), Error> {
    if HANDLE.get().is_some() {
        return Ok(());
    }
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS {
        if let Kind::Histogram(limits) = metric.kind {
            let name = Matcher::Full(metric.name.to_owned());
            builder = builder.set_buckets_for_metric(name, limits)?;
        }
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| Error::OtherRecorder)?;
    for Metric {
        name,
        kind,
        meaning,
        ..
    } in METRICS
    {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *meaning),
            Kind::Gauge => metrics::describe_gauge!(*name, *meaning),
            Kind::Histogram(_) => metrics::describe_histogram!(*name, *meaning),
        }
    }
    metrics::gauge!("orderonce_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    HANDLE.get_or_init(|| handle);
    Ok(())
}

/// All there is to tell, as Prometheus reads it; `None` unless it is [`install`]ed. Asks neither database nor
/// broker.
#[must_use]
pub fn render() -> Option<String> {
    let handle = HANDLE.get()?;
    tell_process();
    Some(handle.render())
}

/// Puts measured values into their histograms. To be called every few seconds, also if nobody asks.
pub fn keep_up() {
    if let Some(handle) = HANDLE.get() {
        handle.run_upkeep();
    }
}

/// As a gauge takes it; exact up to 2^53.
pub(crate) fn gauged(number: u64) -> f64 {
    let half = |bits: u64| f64::from(u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX));
    half(number >> 32) * 4_294_967_296.0 + half(number)
}

fn tell_process() {
    let process = Process::read();
    if let Some(bytes) = process.resident_bytes {
        metrics::gauge!("orderonce_process_resident_memory_bytes").set(bytes);
    }
    if let Some(seconds) = process.cpu_seconds {
        metrics::gauge!("orderonce_process_cpu_seconds").set(seconds);
    }
    if let Some(files) = process.open_files {
        metrics::gauge!("orderonce_process_open_files").set(files);
    }
    if let Some(seconds) = process.start_seconds {
        metrics::gauge!("orderonce_process_start_time_seconds").set(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;
    use std::path::{Path, PathBuf};

    const PAGE: &str = "src/telemetry/metrics.md";

    fn at(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }

    fn page() -> String {
        let mut text = "# Metrics\n\n\
            What `serve` tells at `/metrics` of `health.listen`. This page is made of the table in \
            [metrics.rs](metrics.rs) by `ORDERONCE_BLESS=1 cargo test --lib metrics`.\n\n\
            | name | kind | unit | labels | told by | meaning |\n\
            | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
        for metric in METRICS {
            let Metric {
                name,
                kind,
                unit,
                labels,
                part,
                meaning,
            } = metric;
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            let labels = labels.join(", ");
            writeln!(
                text,
                "| `{name}` | {kind} | {unit} | {labels} | {part} | {meaning} |"
            )
            .unwrap();
        }
        text
    }

    #[test]
    fn the_page_in_the_docs_is_that_of_the_table() {
        if std::env::var_os("ORDERONCE_BLESS").is_some() {
            std::fs::write(at(PAGE), page()).unwrap();
        }
        let found = std::fs::read_to_string(at(PAGE)).unwrap();
        assert!(
            found == page(),
            "{PAGE} is out of date: ORDERONCE_BLESS=1 cargo test --lib metrics"
        );
    }

    /// Names of metrics within a text, such as `orderonce_outbox_rows`.
    fn names(text: &str) -> BTreeSet<String> {
        let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let words = text.split(|c: char| !is_of_name(c));
        let names = words.filter(|word| word.starts_with("orderonce_"));
        names.map(str::to_owned).collect()
    }

    fn table() -> BTreeSet<String> {
        METRICS
            .iter()
            .map(|metric| metric.name.to_owned())
            .collect()
    }

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn all_that_the_code_tells_is_in_the_table_and_the_other_way_round() {
        let mut files = Vec::new();
        sources(&at("src"), &mut files);
        let this = at(file!());
        let mut told = BTreeSet::new();
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            // Of this file only what comes after the table and before the tests.
            let text = match file == this {
                true => text
                    .split("static HANDLE")
                    .nth(1)
                    .unwrap()
                    .split("#[cfg(test)]")
                    .next()
                    .unwrap(),
                false => &text,
            };
            let literals = text.split("\"orderonce_").skip(1);
            let literals = literals.filter_map(|rest| rest.split_once('"'));
            let literals = literals.map(|(rest, _)| format!("orderonce_{rest}"));
            told.extend(literals.filter(|text| names(text).contains(text)));
        }
        assert_eq!(told, table());
    }

    #[test]
    fn names_say_their_unit_and_kind() {
        assert_eq!(table().len(), METRICS.len(), "no name is used twice");
        for metric in METRICS {
            let name = metric.name;
            let counts = metric.kind == Kind::Counter;
            assert_eq!(counts, name.ends_with("_total"), "{name}");
            if metric.unit.starts_with("seconds") {
                assert!(name.ends_with("_seconds"), "{name}");
            }
            if metric.unit == "bytes" {
                assert!(name.ends_with("_bytes"), "{name}");
            }
            if let Kind::Histogram(limits) = metric.kind {
                assert!(limits.is_sorted(), "{name}");
            }
            assert!(metric.meaning.ends_with('.'), "{name}");
        }
    }

    #[test]
    fn the_dashboard_and_the_docs_ask_for_what_is_told() {
        let ends = ["_bucket", "_sum", "_count"];
        for page in ["docker/grafana/orderonce.json", "README.md"] {
            let text = std::fs::read_to_string(at(page)).unwrap();
            let asked = names(&text);
            assert!(asked.len() > 2, "{page} asks for {asked:?}");
            for name in asked {
                let whole = ends.iter().find_map(|end| name.strip_suffix(end));
                let known = |name: &str| METRICS.iter().find(|metric| metric.name == name);
                let is_known = match whole.and_then(known) {
                    Some(metric) => matches!(metric.kind, Kind::Histogram(_)),
                    None => known(&name).is_some(),
                };
                assert!(is_known, "{page} asks for {name}, which nothing tells");
            }
        }
    }

    #[test]
    fn the_dashboard_is_json_and_each_of_its_panels_asks_for_something() {
        let text = std::fs::read_to_string(at("docker/grafana/orderonce.json")).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        assert!(panels.len() > 5);
        for panel in panels {
            for target in panel["targets"].as_array().unwrap() {
                let asked = names(target["expr"].as_str().unwrap());
                assert!(!asked.is_empty(), "{panel}");
            }
        }
    }

    #[test]
    fn a_number_is_gauged_as_it_is() {
        for number in [0, 1, 4_294_967_295, 4_294_967_296, 10_000_000_000] {
            assert_eq!(format!("{:.0}", gauged(number)), number.to_string());
        }
    }
}
