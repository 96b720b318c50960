//! What an exit code means.

use crate::ops::{
    bench, callbacks, dead, demo, deployment, explain, health, import, online_retail, repair, send,
    serve,
};
use crate::{broker, config, http, store, telemetry, worker};
use std::error::Error;

/// Something is wrong with the data.
pub(super) const DATA: u8 = 1;
/// Wrong usage or configuration.
pub(super) const USAGE: u8 = 2;
/// A server is unreachable.
pub(super) const UNREACHABLE: u8 = 3;

/// Stopped by SIGINT, as shells say it.
const INTERRUPTED: u8 = 130;

/// A mistake in the arguments that shows only once they are used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Usage(pub(super) String);

/// The exit code for an error: 1 something is wrong with the data, 2 wrong usage or configuration, 3
/// a server is unreachable or not ready to be used.
///
/// The outermost error of this crate decides. What is none, such as a standard output that cannot be
/// written, says nothing about the data, so it counts as wrong usage.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(of_cause).unwrap_or(USAGE)
}

/// The code of one error of a chain, if it is of this crate. An error that is passed on as another's
/// only content is not in the chain of its own: each function below looks into those of its type.
fn of_cause(cause: &(dyn Error + 'static)) -> Option<u8> {
    fn of<E: Error + 'static>(
        cause: &(dyn Error + 'static),
        code: impl FnOnce(&E) -> u8,
    ) -> Option<u8> {
        cause.downcast_ref().map(code)
    }
    of(cause, of_store)
        .or_else(|| of(cause, of_setup))
        .or_else(|| of(cause, of_broker))
        .or_else(|| of(cause, of_worker))
        .or_else(|| of(cause, of_deployment))
        .or_else(|| of(cause, of_health))
        .or_else(|| of(cause, of_serve))
        .or_else(|| of(cause, |_: &telemetry::trace::Error| USAGE))
        .or_else(|| of(cause, |_: &http::Error| USAGE))
        .or_else(|| of(cause, |_: &http::auth::Error| USAGE))
        .or_else(|| of(cause, |_: &http::callbacks::Error| USAGE))
        .or_else(|| of(cause, of_send))
        .or_else(|| of(cause, of_import))
        .or_else(|| of(cause, of_online_retail))
        .or_else(|| of(cause, of_dead))
        .or_else(|| of(cause, of_callbacks))
        .or_else(|| of(cause, of_explain))
        .or_else(|| of(cause, of_repair))
        .or_else(|| of(cause, of_demo))
        .or_else(|| of(cause, of_bench))
        .or_else(|| of(cause, |_: &config::Errors| USAGE))
        .or_else(|| of(cause, |_: &telemetry::Error| USAGE))
        .or_else(|| of(cause, |_: &Usage| USAGE))
}

fn of_store(error: &store::Error) -> u8 {
    match error {
        store::Error::Setup(setup) => of_setup(setup),
        store::Error::Unavailable(_) | store::Error::Conflict(_) => UNREACHABLE,
        store::Error::Refused(_) | store::Error::Corrupt { .. } => DATA,
    }
}

fn of_setup(setup: &store::Setup) -> u8 {
    match setup {
        store::Setup::Damaged(_) => DATA,
        store::Setup::Unreachable { .. }
        | store::Setup::Login { .. }
        | store::Setup::NoDatabase { .. }
        | store::Setup::Permission { .. }
        | store::Setup::ServerTooOld { .. }
        | store::Setup::OlderSchema { .. }
        | store::Setup::NewerSchema { .. }
        | store::Setup::ChangedMigration { .. }
        | store::Setup::InterruptedMigration { .. }
        | store::Setup::Tls { .. } => UNREACHABLE,
        store::Setup::Missing(_)
        | store::Setup::Directory(_)
        | store::Setup::NoDirectory(_)
        | store::Setup::NotADatabase(_)
        | store::Setup::ReadOnly(_)
        | store::Setup::Url { .. } => USAGE,
    }
}

fn of_broker(error: &broker::Error) -> u8 {
    match error {
        broker::Error::Unavailable(_) => UNREACHABLE,
        broker::Error::UnknownQueue(_) => USAGE,
        broker::Error::Setup(setup) => of_broker_setup(setup),
    }
}

fn of_broker_setup(setup: &broker::Setup) -> u8 {
    match setup {
        broker::Setup::Unreachable { .. }
        | broker::Setup::NotABroker { .. }
        | broker::Setup::Tls { .. }
        | broker::Setup::Login { .. }
        | broker::Setup::VirtualHost { .. }
        | broker::Setup::Permission { .. }
        | broker::Setup::Missing { .. }
        | broker::Setup::ServerTooOld { .. } => UNREACHABLE,
        broker::Setup::Url { .. }
        | broker::Setup::CaFile { .. }
        | broker::Setup::Mismatch { .. }
        | broker::Setup::NoDeadLetters { .. }
        | broker::Setup::SameName { .. }
        | broker::Setup::Refused { .. } => USAGE,
    }
}

fn of_worker(error: &worker::Error) -> u8 {
    match error {
        worker::Error::Store(error) => of_store(error),
        worker::Error::Broker(error) => of_broker(error),
        worker::Error::Stopped(_) => USAGE,
    }
}

fn of_deployment(error: &deployment::Error) -> u8 {
    match error {
        deployment::Error::Store(error) => of_store(error),
        deployment::Error::Broker(error) => of_broker(error),
    }
}

fn of_health(error: &health::Error) -> u8 {
    match error {
        health::Error::Listen { .. } | health::Error::NoAddress => USAGE,
        health::Error::NoAnswer { .. } => UNREACHABLE,
    }
}

fn of_serve(error: &serve::Error) -> u8 {
    match error {
        serve::Error::Health(error) => of_health(error),
        serve::Error::Gates(_) => USAGE,
        serve::Error::Worker(error) => of_worker(error),
    }
}

fn of_send(error: &send::Error) -> u8 {
    match error {
        send::Error::Read(_) => DATA,
        send::Error::Broker(error) => of_broker(error),
    }
}

fn of_import(error: &import::Error) -> u8 {
    match error {
        import::Error::File(error) => of_online_retail(error),
        import::Error::Broker(error) => of_broker(error),
        import::Error::Refused { .. } => DATA,
    }
}

fn of_online_retail(error: &online_retail::Error) -> u8 {
    match error {
        online_retail::Error::Read { .. }
        | online_retail::Error::Empty
        | online_retail::Error::MissingColumns { .. } => DATA,
    }
}

fn of_dead(error: &dead::Error) -> u8 {
    match error {
        dead::Error::NotFound(_)
        | dead::Error::NotDead { .. }
        | dead::Error::ForeignRole { .. }
        | dead::Error::NotRejected { .. }
        | dead::Error::NoBody { .. } => DATA,
        dead::Error::Store(error) => of_store(error),
        dead::Error::Worker(error) => of_worker(error),
    }
}

fn of_callbacks(error: &callbacks::Error) -> u8 {
    match error {
        callbacks::Error::NotFound(_) => DATA,
        callbacks::Error::Store(error) => of_store(error),
    }
}

fn of_explain(error: &explain::Error) -> u8 {
    match error {
        explain::Error::NotFound(_) => DATA,
        explain::Error::Store(error) => of_store(error),
    }
}

fn of_repair(error: &repair::Error) -> u8 {
    match error {
        repair::Error::Store(error) => of_store(error),
        repair::Error::Broker(error) => of_broker(error),
    }
}

fn of_demo(error: &demo::Error) -> u8 {
    match error {
        demo::Error::Io { .. } | demo::Error::Config(_) | demo::Error::NotEmpty { .. } => USAGE,
        demo::Error::Deployment(error) => of_deployment(error),
        demo::Error::Data(error) => of_online_retail(error),
        demo::Error::Store(error) => of_store(error),
        demo::Error::Broker(error) => of_broker(error),
        demo::Error::Worker(error) => of_worker(error),
        demo::Error::Ended { .. } | demo::Error::Unsettled { .. } => DATA,
    }
}

fn of_bench(error: &bench::Error) -> u8 {
    match error {
        bench::Error::NotEmpty { .. } => USAGE,
        bench::Error::Redis { .. } => UNREACHABLE,
        bench::Error::Data(error) => of_online_retail(error),
        bench::Error::Store(error) => of_store(error),
        bench::Error::Worker(error) => of_worker(error),
        bench::Error::Wrong { .. } | bench::Error::Different(_) => DATA,
        bench::Error::Interrupted => INTERRUPTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::domain::RoleName;
    use std::io;

    fn away() -> store::Error {
        store::Error::Unavailable("locked".into())
    }

    fn missing() -> store::Error {
        store::Setup::Missing("x.db".into()).into()
    }

    fn corrupt() -> store::Error {
        store::Error::Corrupt {
            table: "orders",
            problem: "O1".into(),
        }
    }

    fn gone() -> broker::Error {
        broker::Error::Unavailable("away".into())
    }

    fn no_queue() -> broker::Error {
        broker::Error::UnknownQueue(RoleName::new("audit"))
    }

    fn config_errors() -> config::Errors {
        Config::load(None, [("ORDERONCE__BATCH__MAX", "0")], &[]).unwrap_err()
    }

    fn io_error() -> io::Error {
        io::Error::other("broken")
    }

    fn code(error: impl Into<anyhow::Error>) -> u8 {
        exit_code(&error.into())
    }

    #[test]
    fn a_database_that_is_away_is_unreachable_by_whatever_path_it_is_told() {
        assert_eq!(code(away()), UNREACHABLE);
        assert_eq!(code(store::Error::Conflict("a lock".into())), UNREACHABLE);
        assert_eq!(code(worker::Error::from(away())), UNREACHABLE);
        assert_eq!(code(dead::Error::from(away())), UNREACHABLE);
        let nested = dead::Error::from(worker::Error::from(away()));
        assert_eq!(code(nested), UNREACHABLE);
        assert_eq!(code(explain::Error::from(away())), UNREACHABLE);
        assert_eq!(code(repair::Error::from(away())), UNREACHABLE);
        assert_eq!(code(demo::Error::from(away())), UNREACHABLE);
        let nested = demo::Error::from(worker::Error::from(away()));
        assert_eq!(code(nested), UNREACHABLE);
    }

    #[test]
    fn a_broker_that_is_away_is_unreachable_by_whatever_path_it_is_told() {
        assert_eq!(code(gone()), UNREACHABLE);
        assert_eq!(code(worker::Error::from(gone())), UNREACHABLE);
        assert_eq!(code(send::Error::from(gone())), UNREACHABLE);
        assert_eq!(code(import::Error::from(gone())), UNREACHABLE);
        assert_eq!(code(demo::Error::from(gone())), UNREACHABLE);
        assert_eq!(code(worker::Error::from(no_queue())), USAGE);
    }

    #[test]
    fn a_store_that_cannot_be_used_is_wrong_usage_by_whatever_path_it_is_told() {
        assert_eq!(code(missing()), USAGE);
        assert_eq!(code(store::Setup::Missing("x.db".into())), USAGE);
        assert_eq!(code(worker::Error::from(missing())), USAGE);
        assert_eq!(code(dead::Error::from(missing())), USAGE);
        assert_eq!(code(explain::Error::from(missing())), USAGE);
        assert_eq!(code(demo::Error::from(missing())), USAGE);
        assert_eq!(code(store::Setup::Damaged("x.db".into())), DATA);
    }

    #[test]
    fn a_wrong_configuration_is_wrong_usage_by_whatever_path_it_is_told() {
        assert_eq!(code(config_errors()), USAGE);
        assert_eq!(code(demo::Error::from(config_errors())), USAGE);
        let filter = crate::config::Log {
            format: crate::config::LogFormat::Json,
            filter: "orderonce=loud".into(),
        };
        if let Err(error) = telemetry::init(&filter) {
            assert_eq!(code(error), USAGE);
        }
        assert_eq!(code(Usage("--rejected".into())), USAGE);
        let reading = demo::Error::Io {
            what: "reading day.csv".into(),
            error: io_error(),
        };
        assert_eq!(code(reading), USAGE);
    }

    #[test]
    fn what_the_data_says_is_a_matter_of_the_data() {
        assert_eq!(code(corrupt()), DATA);
        assert_eq!(code(store::Error::Refused("CHECK".into())), DATA);
        assert_eq!(
            code(demo::Error::from(worker::Error::from(corrupt()))),
            DATA
        );
        assert_eq!(code(dead::Error::NotFound(7)), DATA);
        assert_eq!(code(explain::Error::NotFound("O1".into())), DATA);
        assert_eq!(code(send::Error::from(io_error())), DATA);
        assert_eq!(code(online_retail::Error::Empty), DATA);
        assert_eq!(code(import::Error::from(online_retail::Error::Empty)), DATA);
        assert_eq!(code(demo::Error::from(online_retail::Error::Empty)), DATA);
        let refused = import::Error::Refused {
            message_id: "m-1".into(),
            problem: "too large".into(),
        };
        assert_eq!(code(refused), DATA);
        let unsettled = demo::Error::Unsettled {
            seconds: 60,
            queued: 1,
            outbox: 0,
            parked: 0,
        };
        assert_eq!(code(unsettled), DATA);
    }

    #[test]
    fn a_measurement_that_went_wrong_says_whose_matter_it_is() {
        assert_eq!(code(bench::Error::from(away())), UNREACHABLE);
        assert_eq!(
            code(bench::Error::from(worker::Error::from(corrupt()))),
            DATA
        );
        let redis = bench::Error::Redis {
            at: "redis://cache".into(),
            problem: "refused".into(),
        };
        assert_eq!(code(redis), UNREACHABLE);
        let at = "postgres://db/shop".into();
        assert_eq!(code(bench::Error::NotEmpty { at }), USAGE);
        let wrong = bench::Error::Wrong {
            what: "0%, database only".into(),
            unit: "claims",
            expected: 5,
            found: 6,
        };
        assert_eq!(code(wrong), DATA);
        assert_eq!(code(bench::Error::Interrupted), INTERRUPTED);
    }

    #[test]
    fn what_was_said_around_an_error_changes_nothing() {
        let error = anyhow::Error::from(demo::Error::from(away()));
        assert_eq!(
            code(error.context("everything is left in /tmp/x")),
            UNREACHABLE
        );
        let read = online_retail::Error::Read {
            line: 7,
            source: io_error(),
        };
        assert_eq!(code(anyhow::Error::from(read).context("importing")), DATA);
    }

    #[test]
    fn what_is_no_error_of_this_crate_says_nothing_about_the_data() {
        assert_eq!(code(io_error()), USAGE);
        assert_eq!(code(anyhow::anyhow!("something")), USAGE);
    }
}
