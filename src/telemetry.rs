//! What a process tells about itself: the log on standard error here, metrics, and traces.

pub mod metrics;
mod process;
pub mod trace;
pub mod traceparent;

use std::io::{IsTerminal, stderr};

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Kind, Log, LogFormat};

/// Why the log could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `log.filter` is not made of directives of [`EnvFilter`].
    #[error("log.filter is `{filter}`, expected {}", Kind::Filter)]
    Filter {
        /// The filter as configured.
        filter: String,
        /// What the parser said.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The process has a log already.
    #[error("the log was already started")]
    AlreadyStarted(#[from] TryInitError),
}

/// Starts the process's log on standard error.
///
/// `pretty` is text, coloured if standard error is a terminal and `NO_COLOR` is unset or empty.
/// `json` is one object per line, with the event's fields at its top level. Times are in UTC, as
/// RFC 3339 has them.
///
/// # Errors
///
/// If the filter is invalid, or if the process has a log already.
pub fn init(log: &Log) -> Result<(), Error> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = stderr().is_terminal() && !no_color;
    Ok(subscriber(log, stderr, colours)?.try_init()?)
}

/// The log as [`init`] starts it, for a place of one's own.
///
/// # Errors
///
/// If the filter is invalid.
pub fn subscriber<W>(
    log: &Log,
    writer: W,
    colours: bool,
) -> Result<Box<dyn Subscriber + Send + Sync>, Error>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(directives(&log.filter)).map_err(|source| Error::Filter {
        filter: log.filter.clone(),
        source,
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // It would tell standard error that standard error cannot be written, and panic.
        .log_internal_errors(false)
        .with_writer(writer);
    Ok(match log.format {
        LogFormat::Pretty => Box::new(builder.compact().with_ansi(colours).finish()),
        LogFormat::Json => Box::new(
            builder
                .json()
                .flatten_event(true)
                .with_span_list(false)
                .finish(),
        ),
    })
}

/// Libraries that are silent unless the filter names them. What the one for AMQP calls an error is told
/// by our own code where it is one: that a queue is not there yet, or that a connection is lost. The
/// one for databases shows the text of each statement that takes a second, as a reconciliation's may. The one
/// for traces would tell of each batch of spans that a collector does not take.
const SILENT: [&str; 3] = ["lapin", "sqlx", "opentelemetry"];

fn directives(filter: &str) -> String {
    let silent = SILENT.iter().filter(|library| !filter.contains(**library));
    silent.fold(filter.to_owned(), |filter, library| {
        format!("{filter},{library}=off")
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn libraries_are_silent_unless_they_are_named() {
        assert_eq!(
            directives("info"),
            "info,lapin=off,sqlx=off,opentelemetry=off"
        );
        assert_eq!(
            directives("info,lapin=warn"),
            "info,lapin=warn,sqlx=off,opentelemetry=off"
        );
        assert_eq!(
            directives("info,sqlx::query=warn"),
            "info,sqlx::query=warn,lapin=off,opentelemetry=off"
        );
    }

    /// What two events leave in the log, one of them below the level `info`.
    fn logged(format: LogFormat) -> String {
        let log = Log {
            format,
            filter: "info".into(),
        };
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(&log, move || writer.clone(), false).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(
                message_id = "m1",
                outcome = "applied",
                attempt = 2,
                "settled\nonce"
            );
            tracing::debug!("too small to matter");
        });
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_is_one_flat_object_per_line_with_utc_time() {
        let text = logged(LogFormat::Json);
        assert_eq!(text.lines().count(), 1, "{text}");
        let event: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(event["message"], "settled\nonce");
        assert_eq!(event["message_id"], "m1");
        assert_eq!(event["attempt"], 2);
        assert_eq!(event["level"], "INFO");
        let time = event["timestamp"].as_str().unwrap();
        let format = &time::format_description::well_known::Rfc3339;
        assert!(
            time::OffsetDateTime::parse(time, format)
                .unwrap()
                .offset()
                .is_utc()
        );
    }

    #[test]
    fn pretty_has_the_fields_and_no_colours_off_a_terminal() {
        let text = logged(LogFormat::Pretty);
        assert!(text.contains("INFO"), "{text}");
        assert!(
            text.contains("message_id=\"m1\" outcome=\"applied\" attempt=2"),
            "{text}"
        );
        assert!(!text.contains('\x1b'), "{text}");
        assert!(!text.contains("too small"), "{text}");
    }

    #[test]
    fn a_second_start_is_an_error_and_no_panic() {
        let log = Log {
            format: LogFormat::Json,
            filter: "off".into(),
        };
        init(&log).unwrap();
        assert!(matches!(init(&log), Err(Error::AlreadyStarted(_))));
    }

    #[test]
    fn an_invalid_filter_is_named() {
        let log = Log {
            format: LogFormat::Json,
            filter: "orderonce=loud".into(),
        };
        let error = init(&log).unwrap_err().to_string();
        assert!(
            error.starts_with("log.filter is `orderonce=loud`, expected "),
            "{error}"
        );
    }
}
