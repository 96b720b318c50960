//! Reconciliation and explanations against rows that were written by hand, so that no code of the
//! workers can hide its own errors from them.
//!
//! [`WORLD`] is consistent: no check finds a difference in it. Each break changes it in one way and
//! says which difference its check must find, with both figures.

use crate::store::fixture::{self, Fresh};
use orderonce::ops::explain::{self, explain};
use orderonce::ops::reconcile::{Options, reconcile};
use orderonce::store::{CHECKS, Connection, Difference, Store, Subject};
use sqlx::AssertSqlSafe;
use std::time::Duration;

const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Orders in every state, with stock, payments, refunds and points. `@old` is an hour ago, `@now`
/// now. Ids hold characters that keys escape.
const WORLD: &str = "
    INSERT INTO orders (order_id, user_id, status, version, currency, total_minor, paid_minor,
        refunded_minor, pay_deadline, fingerprint, created_at, updated_at)
    VALUES
        ('O1', 'U1', 'COMPLETED', 7, 'GBP', 2899, 2899, 899, @old, zeroblob(32), @old, @old),
        ('O/2', 'guest:50%~', 'CLOSED', 4, 'GBP', 300, 300, 0, @old, zeroblob(32), @old, @old),
        ('O3', 'U3', 'CLOSED', 4, 'GBP', 900, 0, 0, @old, zeroblob(32), @old, @old),
        ('O4', 'U4', 'REFUNDED', 6, 'GBP', 1050, 1050, 1050, @old, zeroblob(32), @old, @old),
        ('O5', 'U5', 'WAIT_PAY', 2, 'GBP', 700, 0, 0, @now + 86400000, zeroblob(32), @old, @old),
        ('O6', 'U6', 'CLOSED', 2, 'GBP', 100, 0, 0, @old, zeroblob(32), @old, @old),
        ('O7', 'U7', 'PAID', 1, 'JPY', 0, 0, 0, @old, zeroblob(32), @old, @old);
    INSERT INTO order_line (order_id, line_no, sku_id, qty, unit_price_minor, amount_minor, charge)
    VALUES
        ('O1', 1, 'A', 1, 1000, 1000, 0), ('O1', 2, 'B', 1, 500, 500, 0),
        ('O1', 3, 'A', 1, 1000, 1000, 0), ('O1', 4, 'POST', 1, 399, 399, 1),
        ('O/2', 1, 'A', 3, 100, 300, 0), ('O3', 1, 'A', 900, 1, 900, 0),
        ('O4', 1, 'B', 1, 1050, 1050, 0), ('O5', 1, 'B', 2, 350, 700, 0),
        ('O6', 1, 'A', 1, 100, 100, 0), ('O7', 1, 'GIFT', 1, 0, 0, 1);
    INSERT INTO order_transition (order_id, version, from_status, to_status, key, at)
    VALUES
        ('O1', 1, NULL, 'WAIT_PAY', 'O1/order.create', @old),
        ('O1', 2, 'WAIT_PAY', 'WAIT_PAY', 'O1/stock.deducted', @old + 5),
        ('O1', 3, 'WAIT_PAY', 'PAID', 'ali/O1/SUCCEEDED/T1', @old + 123),
        ('O1', 4, 'PAID', 'SHIPPED', 'O1/order.ship', @old + 200),
        ('O1', 5, 'SHIPPED', 'COMPLETED', 'O1/order.complete', @old + 300),
        ('O1', 6, 'COMPLETED', 'COMPLETED', 'ali/O1/R1/SUCCEEDED', @old + 400),
        ('O1', 7, 'COMPLETED', 'COMPLETED', 'ali/O1/SUCCEEDED/T9', @old + 500),
        ('O/2', 1, NULL, 'WAIT_PAY', 'O%2F2/order.create', @old),
        ('O/2', 2, 'WAIT_PAY', 'WAIT_PAY', 'O%2F2/stock.deducted', @old),
        ('O/2', 3, 'WAIT_PAY', 'PAID', 'ali/O%2F2/SUCCEEDED/T2', @old),
        ('O/2', 4, 'PAID', 'CLOSED', 'O%2F2/order.cancel/~anew-1', @old),
        ('O3', 1, NULL, 'WAIT_PAY', 'O3/order.create', @old),
        ('O3', 2, 'WAIT_PAY', 'CLOSED', 'O3/stock.rejected', @old),
        ('O3', 3, 'CLOSED', 'CLOSED', 'ali/O3/SUCCEEDED/T3', @old),
        ('O3', 4, 'CLOSED', 'CLOSED', 'ali/O3/RF3/SUCCEEDED', @old),
        ('O4', 1, NULL, 'WAIT_PAY', 'O4/order.create', @old),
        ('O4', 2, 'WAIT_PAY', 'WAIT_PAY', 'O4/stock.deducted', @old),
        ('O4', 3, 'WAIT_PAY', 'PAID', 'ali/O4/SUCCEEDED/T4', @old),
        ('O4', 4, 'PAID', 'SHIPPED', 'O4/order.ship', @old),
        ('O4', 5, 'SHIPPED', 'COMPLETED', 'O4/order.complete', @old),
        ('O4', 6, 'COMPLETED', 'REFUNDED', 'ali/O4/R4/SUCCEEDED', @old),
        ('O5', 1, NULL, 'WAIT_PAY', 'O5/order.create', @old),
        ('O5', 2, 'WAIT_PAY', 'WAIT_PAY', 'O5/stock.deducted', @old),
        ('O6', 1, NULL, 'WAIT_PAY', 'O6/order.create', @old),
        ('O6', 2, 'WAIT_PAY', 'CLOSED', 'O6/order.expire/clock', @old),
        ('O7', 1, NULL, 'PAID', 'O7/order.create', @old);
    INSERT INTO payment (provider, trade_no, order_id, status, trade_status, amount_minor, currency,
        created_at)
    VALUES
        ('ali', 'T1', 'O1', 'ACCEPTED', 'TRADE_SUCCESS', 2899, 'GBP', @old + 123),
        ('ali', 'T9', 'O1', 'SURPLUS', NULL, 2899, 'GBP', @old + 500),
        ('ali', 'T2', 'O/2', 'ACCEPTED', NULL, 300, 'GBP', @old),
        ('ali', 'T3', 'O3', 'LATE', NULL, 900, 'GBP', @old),
        ('ali', 'T4', 'O4', 'ACCEPTED', NULL, 1050, 'GBP', @old);
    INSERT INTO refund (provider, refund_no, order_id, trade_no, status, amount_minor, currency,
        created_at, updated_at)
    VALUES
        ('ali', 'R1', 'O1', 'T1', 'SUCCEEDED', 899, 'GBP', @old + 400, @old + 400),
        ('ali', 'RF9', 'O1', 'T9', 'REQUESTED', 2899, 'GBP', @old + 500, @old + 500),
        ('ali', 'R8', 'O1', NULL, 'FAILED', 0, 'GBP', @old + 500, @old + 500),
        ('ali', 'RF2', 'O/2', 'T2', 'REQUESTED', 300, 'GBP', @old, @old),
        ('ali', 'RF3', 'O3', 'T3', 'SUCCEEDED', 900, 'GBP', @old, @old),
        ('ali', 'R4', 'O4', 'T4', 'SUCCEEDED', 1050, 'GBP', @old, @old);
    INSERT INTO stock (sku_id, opening, available, version, updated_at)
    VALUES ('A', 0, 99, 5, @old), ('B', 50, 46, 3, @old), ('idle', 7, 7, 0, @old);
    INSERT INTO reservation (order_id, status, version, created_at, updated_at)
    VALUES
        ('O1', 'DEDUCTED', 1, @old + 2, @old + 2), ('O/2', 'RELEASED', 2, @old, @old),
        ('O3', 'REJECTED', 1, @old, @old), ('O4', 'DEDUCTED', 1, @old, @old),
        ('O5', 'DEDUCTED', 1, @old, @old), ('O6', 'RELEASED', 1, @old, @old),
        ('O7', 'DEDUCTED', 1, @old, @old), ('X/1', 'DEDUCTED', 1, @old, @old);
    INSERT INTO deduction_flow (flow_id, order_id, sku_id, action, qty, available_after, at)
    VALUES
        ('J1/A/adjust', NULL, 'A', 'adjust', 100, 100, @old),
        ('O1/A/deduct', 'O1', 'A', 'deduct', -2, 98, @old + 2),
        ('O1/B/deduct', 'O1', 'B', 'deduct', -1, 49, @old + 2),
        ('O%2F2/A/deduct', 'O/2', 'A', 'deduct', -3, 95, @old),
        ('O%2F2/A/release', 'O/2', 'A', 'release', 3, 98, @old),
        ('O1/A/X1/return', 'O1', 'A', 'return', 1, 99, @old + 600),
        ('O4/B/deduct', 'O4', 'B', 'deduct', -1, 48, @old),
        ('O5/B/deduct', 'O5', 'B', 'deduct', -2, 46, @old);
    INSERT INTO account (user_id, kind, balance, version, updated_at)
    VALUES
        ('U1', 'POINTS', 20, 2, @old), ('U1', 'BALANCE', 300, 2, @old),
        ('U4', 'POINTS', 0, 2, @old);
    INSERT INTO account_flow (user_id, kind, source_type, source_id, reverses_source_type,
        reverses_source_id, amount, balance_after, at)
    VALUES
        ('U1', 'POINTS', 'ORDER', 'O1', NULL, NULL, 28, 28, @old + 310),
        ('U1', 'POINTS', 'REFUND', 'O1/ali/R1', 'ORDER', 'O1', -8, 20, @old + 410),
        ('U1', 'BALANCE', 'CREDIT_NOTE', 'C1', NULL, NULL, 500, 500, @old),
        ('U1', 'BALANCE', 'VOUCHER', 'D/1', NULL, NULL, -200, 300, @old),
        ('U4', 'POINTS', 'ORDER', 'O4', NULL, NULL, 10, 10, @old),
        ('U4', 'POINTS', 'REFUND', 'O4/ali/R4', 'ORDER', 'O4', -10, 0, @old);
    INSERT INTO idempotent_record (role, key, subject, fingerprint, message_id, outcome, detail,
        created_at, concluded_at)
    SELECT 'order', key, order_id, zeroblob(32), 'm-' || key, 'applied', NULL, at, at
    FROM order_transition WHERE key NOT LIKE 'ali/%'
    UNION ALL
    SELECT 'payment', key, order_id, zeroblob(32), 'm-' || key, 'applied', NULL, at, at
    FROM order_transition WHERE key LIKE 'ali/%';
    INSERT INTO idempotent_record (role, key, subject, fingerprint, message_id, outcome, detail,
        created_at, concluded_at)
    VALUES
        ('order', 'O%2F2/order.cancel', 'O/2', zeroblob(32), 'm1', 'rejected', 'not_due', @old, @old),
        ('order', 'O1/order.cancel', 'O1', zeroblob(32), 'm2', 'rejected', 'already_shipped',
            @old + 250, @old + 250),
        ('inventory', 'O1/deduct', 'O1', zeroblob(32), 'm3', 'applied', NULL, @old + 2, @old + 2),
        ('inventory', 'O%2F2/deduct', 'O/2', zeroblob(32), 'm4', 'applied', NULL, @old, @old),
        ('inventory', 'O%2F2/release', 'O/2', zeroblob(32), 'm5', 'applied', NULL, @old, @old),
        ('inventory', 'O3/deduct', 'O3', zeroblob(32), 'm6', 'applied', NULL, @old, @old),
        ('inventory', 'O3/release', 'O3', zeroblob(32), 'm7', 'stale', NULL, @old, @old),
        ('inventory', 'O4/deduct', 'O4', zeroblob(32), 'm8', 'applied', NULL, @old, @old),
        ('inventory', 'O5/deduct', 'O5', zeroblob(32), 'm9', 'applied', NULL, @old, @old),
        ('inventory', 'O6/release', 'O6', zeroblob(32), 'm10', 'applied', NULL, @old, @old),
        ('inventory', 'O6/deduct', 'O6', zeroblob(32), 'm11', 'stale', NULL, @old, @old),
        ('inventory', 'O7/deduct', 'O7', zeroblob(32), 'm12', 'applied', NULL, @old, @old),
        ('inventory', 'X%2F1/deduct', 'X/1', zeroblob(32), 'm13', 'duplicate', NULL, @old, @old),
        ('inventory', 'X1/return', 'O1', zeroblob(32), 'm14', 'rejected', NULL,
            @old + 550, @old + 550),
        ('inventory', 'X1/return/~anew-1', 'O1', zeroblob(32), 'm15', 'applied', NULL,
            @old + 600, @old + 600),
        ('inventory', 'J1/adjust', 'A', zeroblob(32), 'm16', 'applied', NULL, @old, @old),
        ('account', 'U1/POINTS/ORDER/O1/credit', 'O1', zeroblob(32), 'm17', 'applied', NULL,
            @old + 310, @old + 310),
        ('account', 'U1/POINTS/REFUND/O1%2Fali%2FR1/reverse', 'O1', zeroblob(32), 'm18', 'applied',
            NULL, @old + 305, @old + 410),
        ('account', 'U1/BALANCE/CREDIT_NOTE/C1/credit', 'U1', zeroblob(32), 'm19', 'applied', NULL,
            @old, @old),
        ('account', 'U1/BALANCE/VOUCHER/D%2F1/debit', 'U1', zeroblob(32), 'm20', 'applied', NULL,
            @old, @old),
        ('account', 'U4/POINTS/ORDER/O4/credit', 'O4', zeroblob(32), 'm21', 'applied', NULL,
            @old, @old),
        ('account', 'U4/POINTS/REFUND/O4%2Fali%2FR4/reverse', 'O4', zeroblob(32), 'm22', 'applied',
            NULL, @old, @old),
        ('order', 'O5/order.ship', 'O5', zeroblob(32), 'm23', 'parked', NULL, @old, @old),
        ('payment', 'ali/O8/SUCCEEDED/T8', 'O8', zeroblob(32), 'm24', 'dead', 'parked_too_long',
            @old, @old);
    INSERT INTO parked_event (role, key, awaits, message_id, event_type, subject, message,
        parked_at, deadline)
    VALUES ('order', 'O5/order.ship', 'order:O5:PAID', 'm23', 'order.ship', 'O5', '{}', @old,
        @now + 86400000);
    INSERT INTO outbox (aggregate, event_type, message_id, message, created_at)
    VALUES ('U1', 'account.credited', 'm30', x'7b7d', @now);
    INSERT INTO dead_letter (digest, role, message_id, key, reason, detail, raw, headers,
        deliveries, died_at)
    VALUES
        (x'01', 'payment', 'm24', 'ali/O8/SUCCEEDED/T8', 'parked_too_long', 'awaited order:O8:WAIT_PAY',
            x'7b7d', '{}', 1, @old),
        (x'02', 'order', 'm31', 'O1/order.ship', 'conflict', 'other content', x'7b7d', '{\"a\":\"b\"}',
            2, @old + 900);
";

/// The databases that the same rows are written to.
#[derive(Clone, Copy)]
enum Engine {
    Sqlite,
    Postgres,
    MariaDb,
}

struct World {
    engine: Engine,
    fresh: Fresh,
    old: i64,
    now: i64,
}

impl World {
    async fn empty(engine: Engine) -> Self {
        let fresh = match engine {
            Engine::Sqlite => fixture::sqlite::fresh().await,
            Engine::Postgres => fixture::postgres::fresh().await,
            Engine::MariaDb => fixture::mariadb::fresh().await,
        };
        let now = fresh.begin().await.now().await.unwrap().0;
        Self {
            engine,
            fresh,
            old: now - 3_600_000,
            now,
        }
    }

    async fn new(engine: Engine) -> Self {
        let world = Self::empty(engine).await;
        world.run(WORLD).await;
        world
    }

    async fn finish(self) {
        self.fresh.finish().await;
    }

    fn store(&self) -> &dyn Store {
        &*self.fresh.store
    }

    /// Runs statements, and fails if the last one changed nothing.
    async fn run(&self, sql: &str) {
        let sql = sql.replace("@old", &self.old.to_string());
        let sql = sql.replace("@now", &self.now.to_string());
        let mut tx = self.fresh.begin().await;
        let written = match (self.engine, tx.connection()) {
            (Engine::Sqlite, Connection::Sqlite(connection)) => {
                let statements = sqlx::raw_sql(AssertSqlSafe(sql.clone()));
                let done = statements.execute(connection).await;
                done.unwrap().rows_affected()
            }
            (Engine::Postgres, Connection::Postgres(connection)) => {
                // Zero bytes and the notation of bytes are SQLite's.
                let bytes = sql.replace("zeroblob(32)", "decode(repeat('00', 32), 'hex')");
                let bytes = bytes.replace("(x'", r"('\x").replace(" x'", r" '\x");
                let statements = sqlx::raw_sql(AssertSqlSafe(bytes));
                let done = statements.execute(connection).await;
                done.unwrap().rows_affected()
            }
            (Engine::MariaDb, Connection::MySql(connection)) => {
                // A word of MySQL's own must be quoted.
                let quoted = sql.replace(" key", " `key`");
                let bytes = quoted.replace("zeroblob(32)", "UNHEX(REPEAT('00', 32))");
                let statements = sqlx::raw_sql(AssertSqlSafe(bytes));
                let done = statements.execute(connection).await;
                done.unwrap().rows_affected()
            }
            (_, other) => panic!("no way to run {sql} by {other:?}"),
        };
        assert!(written > 0, "nothing was changed by {sql}");
        tx.commit().await.unwrap();
    }

    async fn check(&self, name: &'static str) -> Vec<Difference> {
        self.store().check(name, STUCK_AFTER, 100).await.unwrap()
    }

    async fn differences(&self) -> Vec<Difference> {
        let options = Options {
            stuck_after: STUCK_AFTER,
            limit: 100,
        };
        let report = reconcile(self.store(), &options, |_| {}).await.unwrap();
        report
            .checks
            .into_iter()
            .flat_map(|check| check.differences)
            .collect()
    }
}

fn order(id: &str) -> Subject {
    Subject::Order(id.to_owned())
}

fn sku(id: &str) -> Subject {
    Subject::Sku(id.to_owned())
}

fn account(user: &str, kind: &str) -> Subject {
    Subject::Account(user.to_owned(), kind.to_owned())
}

fn claim(role: &str, key: &str) -> Subject {
    Subject::Claim(role.to_owned(), key.to_owned())
}

/// An age in seconds that grows while the test runs is compared up to the test's own time.
fn same_figure(found: &str, wanted: &str) -> bool {
    let seconds = |text: &str| text.strip_suffix(" s")?.parse::<u64>().ok();
    match (seconds(found), seconds(wanted)) {
        (Some(found), Some(wanted)) => (wanted..wanted + 60).contains(&found),
        _ => found == wanted,
    }
}

/// A change of the world, and the difference that the check must find then.
struct Break {
    sql: &'static str,
    subject: Subject,
    expected: &'static str,
    found: &'static str,
}

async fn finds(engine: Engine, check: &'static str, breaks: Vec<Break>) {
    for broken in breaks {
        let sql = broken.sql;
        let world = World::new(engine).await;
        assert_eq!(world.check(check).await, []);
        world.run(sql).await;
        let found = world.check(check).await;
        let [difference] = &found[..] else {
            panic!("{sql} found {found:#?}");
        };
        assert_eq!(difference.check, check);
        assert_eq!(difference.subject, broken.subject, "{sql}");
        assert_eq!(difference.expected, broken.expected, "{sql}");
        assert!(
            same_figure(&difference.found, broken.found),
            "{difference:?}"
        );
        assert!(difference.look.contains(&difference.subject.to_string()));
        world.finish().await;
    }
}

macro_rules! breaks {
    ($($name:ident: $($sql:literal => $subject:expr, $expected:literal, $found:literal;)+)*) => {
        /// The checks for which there is a break.
        const BROKEN: &[&str] = &[$(stringify!($name)),*];
        mod broken {
            use super::*;
            $(
                pub(super) async fn $name(engine: Engine) {
                    let breaks = vec![$(Break {
                        sql: $sql,
                        subject: $subject,
                        expected: $expected,
                        found: $found,
                    }),+];
                    finds(engine, stringify!($name), breaks).await;
                }
            )*

            mod sqlite {
                $(
                    #[tokio::test]
                    async fn $name() {
                        super::$name(super::Engine::Sqlite).await;
                    }
                )*
            }

            mod postgres {
                $(
                    #[tokio::test]
                    async fn $name() {
                        super::$name(super::Engine::Postgres).await;
                    }
                )*
            }

            mod mariadb {
                $(
                    #[tokio::test]
                    async fn $name() {
                        super::$name(super::Engine::MariaDb).await;
                    }
                )*
            }
        }
    };
}

breaks! {
    stock_available:
        "UPDATE stock SET available = 98 WHERE sku_id = 'A'" => sku("A"), "99", "98";
        "UPDATE stock SET opening = 51 WHERE sku_id = 'B'" => sku("B"), "47", "46";
        "DELETE FROM stock WHERE sku_id = 'A'" => sku("A"), "99", "none";
        "DELETE FROM deduction_flow WHERE flow_id = 'O5/B/deduct'" => sku("B"), "48", "46";
    stock_versions:
        "UPDATE stock SET version = 4 WHERE sku_id = 'A'" => sku("A"), "5", "4";
        "UPDATE stock SET version = 1 WHERE sku_id = 'idle'" => sku("idle"), "0", "1";
    stock_running:
        "UPDATE deduction_flow SET available_after = 97 WHERE flow_id = 'O1/A/deduct'"
            => sku("A"), "97", "98";
        "UPDATE stock SET available = 45 WHERE sku_id = 'B'" => sku("B"), "46", "45";
    stock_not_negative:
        "UPDATE deduction_flow SET available_after = -1 WHERE flow_id = 'O4/B/deduct'"
            => sku("B"), "at least 0", "-1";
    reservation_deducted:
        "UPDATE order_line SET qty = 7 WHERE order_id = 'O5'" => order("O5"), "7", "2";
        "UPDATE deduction_flow SET qty = -4 WHERE flow_id = 'O1/A/deduct'" => order("O1"), "2", "4";
        "UPDATE order_line SET qty = 4 WHERE order_id = 'O/2'" => order("O/2"), "4", "3";
        "UPDATE order_line SET charge = 1 WHERE order_id = 'O1' AND sku_id = 'B'"
            => order("O1"), "0", "1";
    reservation_released:
        "UPDATE deduction_flow SET qty = 2 WHERE flow_id = 'O%2F2/A/release'"
            => order("O/2"), "0", "-1";
    reservation_rejected:
        "UPDATE reservation SET status = 'REJECTED' WHERE order_id = 'O5'" => order("O5"), "0", "1";
    returns_within_deduction:
        "UPDATE deduction_flow SET qty = 3 WHERE flow_id = 'O1/A/X1/return'"
            => order("O1"), "at most 2", "3";
    flows_reserved:
        "DELETE FROM reservation WHERE order_id = 'O5'"
            => order("O5"), "1 reservation", "0 reservations";
    reservation_missing:
        "DELETE FROM deduction_flow WHERE order_id = 'O5';
         DELETE FROM reservation WHERE order_id = 'O5'"
            => order("O5"), "1 reservation", "0 reservations";
    closed_orders_released:
        "UPDATE reservation SET status = 'DEDUCTED' WHERE order_id = 'O/2'"
            => order("O/2"), "RELEASED or REJECTED", "DEDUCTED";
        "DELETE FROM reservation WHERE order_id = 'O6'"
            => order("O6"), "RELEASED or REJECTED", "none";
        "UPDATE order_transition SET to_status = 'PAID' WHERE order_id = 'O4' AND version = 4"
            => order("O4"), "RELEASED or REJECTED", "DEDUCTED";
    open_orders_reserved:
        "UPDATE reservation SET status = 'RELEASED' WHERE order_id = 'O1'"
            => order("O1"), "DEDUCTED or REJECTED", "RELEASED";
        "UPDATE reservation SET status = 'RELEASED' WHERE order_id = 'O4'"
            => order("O4"), "DEDUCTED or REJECTED", "RELEASED";
    rejected_orders_closed:
        "UPDATE reservation SET status = 'REJECTED' WHERE order_id = 'O5'"
            => order("O5"), "CLOSED", "WAIT_PAY";
    account_balance:
        "UPDATE account SET balance = 301 WHERE kind = 'BALANCE'"
            => account("U1", "BALANCE"), "300", "301";
        "DELETE FROM account WHERE user_id = 'U4'" => account("U4", "POINTS"), "0", "none";
        "DELETE FROM account_flow WHERE user_id = 'U1' AND kind = 'BALANCE'"
            => account("U1", "BALANCE"), "0", "300";
    account_versions:
        "UPDATE account SET version = 3 WHERE kind = 'BALANCE'"
            => account("U1", "BALANCE"), "2", "3";
    account_running:
        "UPDATE account_flow SET balance_after = 501 WHERE source_id = 'C1'"
            => account("U1", "BALANCE"), "0", "1";
    reversals_within_credit:
        "UPDATE account_flow SET amount = -29 WHERE source_id = 'O1/ali/R1'"
            => account("U1", "POINTS"), "at most 28", "29";
        "DELETE FROM account_flow WHERE source_type = 'ORDER' AND source_id = 'O4'"
            => account("U4", "POINTS"), "at most 0", "10";
    points:
        "DELETE FROM account_flow WHERE source_type = 'ORDER' AND source_id = 'O1'"
            => order("O1"), "1 credit", "0 credits";
        "DELETE FROM account_flow WHERE source_type = 'ORDER' AND source_id = 'O4'"
            => order("O4"), "1 credit", "0 credits";
    points_unearned:
        "UPDATE order_transition SET to_status = 'SHIPPED'
         WHERE order_id = 'O1' AND to_status = 'COMPLETED'"
            => order("O1"), "0", "28";
    points_taken_back:
        "UPDATE account_flow SET amount = -9 WHERE source_id = 'O4/ali/R4'"
            => order("O4"), "0", "1";
        "DELETE FROM account_flow WHERE source_id = 'O4/ali/R4'" => order("O4"), "0", "10";
    order_recorded:
        "UPDATE payment SET order_id = 'O99' WHERE trade_no = 'T9'"
            => order("O99"), "1 row", "0 rows";
        "UPDATE refund SET order_id = 'O99' WHERE refund_no = 'R8'"
            => order("O99"), "1 row", "0 rows";
        "UPDATE order_line SET order_id = 'O99' WHERE order_id = 'O7'"
            => order("O99"), "1 row", "0 rows";
        "UPDATE order_transition SET order_id = 'O99' WHERE order_id = 'O7'"
            => order("O99"), "1 row", "0 rows";
    order_totals:
        "UPDATE orders SET total_minor = 2898 WHERE order_id = 'O1'"
            => order("O1"), "28.99 GBP", "28.98 GBP";
        "UPDATE order_line SET amount_minor = 1 WHERE order_id = 'O7'"
            => order("O7"), "1 JPY", "0 JPY";
    order_versions:
        "DELETE FROM order_transition WHERE order_id = 'O1' AND version = 2"
            => order("O1"), "versions 1 to 7", "6 versions from 1 to 7";
        "DELETE FROM order_transition WHERE order_id = 'O7'"
            => order("O7"), "versions 1 to 1", "0 versions from 0 to 0";
        "UPDATE orders SET version = 3 WHERE order_id = 'O5'"
            => order("O5"), "versions 1 to 3", "2 versions from 1 to 2";
    order_history:
        "UPDATE order_transition SET from_status = 'PAID' WHERE order_id = 'O1' AND version = 3"
            => order("O1"), "WAIT_PAY", "PAID";
        "UPDATE order_transition SET from_status = 'PAID' WHERE order_id = 'O7'"
            => order("O7"), "none", "PAID";
    order_steps:
        "UPDATE order_transition SET to_status = 'SHIPPED' WHERE order_id = 'O3' AND version = 2"
            => order("O3"), "a step that orders may take", "WAIT_PAY to SHIPPED";
        "UPDATE order_transition SET to_status = 'CLOSED' WHERE order_id = 'O7'"
            => order("O7"), "a step that orders may take", "none to CLOSED";
    order_status:
        "UPDATE orders SET status = 'SHIPPED' WHERE order_id = 'O1'"
            => order("O1"), "COMPLETED", "SHIPPED";
    orders_overdue:
        "UPDATE orders SET pay_deadline = @old WHERE order_id = 'O5'"
            => order("O5"), "at most 60 s after the deadline", "3600 s";
    order_paid:
        "UPDATE payment SET amount_minor = 2898 WHERE trade_no = 'T1'"
            => order("O1"), "28.98 GBP", "28.99 GBP";
        "UPDATE payment SET status = 'SURPLUS' WHERE trade_no = 'T4'"
            => order("O4"), "0.00 GBP", "10.50 GBP";
    order_paid_total:
        "UPDATE orders SET paid_minor = 2800 WHERE order_id = 'O1'"
            => order("O1"), "28.99 GBP", "28.00 GBP";
        "UPDATE orders SET paid_minor = 700 WHERE order_id = 'O5'"
            => order("O5"), "0.00 GBP", "7.00 GBP";
        "UPDATE orders SET paid_minor = 1 WHERE order_id = 'O6'"
            => order("O6"), "1.00 GBP", "0.01 GBP";
    payment_currency:
        "UPDATE refund SET currency = 'EUR' WHERE refund_no = 'R1'" => order("O1"), "GBP", "EUR";
        "UPDATE refund SET currency = 'EUR' WHERE refund_no = 'R1';
         UPDATE payment SET currency = 'EUR' WHERE trade_no = 'T1'" => order("O1"), "GBP", "EUR";
    order_refunded:
        "UPDATE refund SET amount_minor = 898 WHERE refund_no = 'R1'"
            => order("O1"), "8.98 GBP", "8.99 GBP";
        "UPDATE refund SET status = 'REQUESTED' WHERE refund_no = 'R4'"
            => order("O4"), "0.00 GBP", "10.50 GBP";
        "UPDATE refund SET status = 'SUCCEEDED' WHERE refund_no = 'RF2'"
            => order("O/2"), "3.00 GBP", "0.00 GBP";
    order_refunded_status:
        "UPDATE orders SET status = 'REFUNDED' WHERE order_id = 'O1'"
            => order("O1"), "a status other than REFUNDED", "REFUNDED";
        "UPDATE orders SET status = 'COMPLETED' WHERE order_id = 'O4'"
            => order("O4"), "REFUNDED", "COMPLETED";
    refunds_within_payment:
        "UPDATE refund SET amount_minor = 4000 WHERE refund_no = 'R1'"
            => order("O1"), "28.99 GBP", "40.00 GBP";
        "UPDATE refund SET amount_minor = 901 WHERE refund_no = 'RF3'"
            => order("O3"), "9.00 GBP", "9.01 GBP";
    refunds_of_payments:
        "UPDATE refund SET trade_no = NULL WHERE refund_no = 'R1'"
            => order("O1"), "1 payment", "0 payments";
    surplus_and_late_refunded:
        "DELETE FROM refund WHERE refund_no = 'RF9'" => order("O1"), "28.99 GBP", "0.00 GBP";
        "DELETE FROM refund WHERE refund_no = 'RF3'" => order("O3"), "9.00 GBP", "0.00 GBP";
    closed_orders_refunded:
        "DELETE FROM refund WHERE refund_no = 'RF2'" => order("O/2"), "3.00 GBP", "0.00 GBP";
    claims_without_transition:
        "UPDATE order_transition SET key = 'other' WHERE order_id = 'O1' AND version = 4"
            => claim("order", "O1/order.ship"), "1 step", "0 steps";
        "DELETE FROM order_transition WHERE order_id = 'O7'"
            => claim("order", "O7/order.create"), "1 step", "0 steps";
        "DELETE FROM order_transition WHERE order_id = 'O3' AND version = 3"
            => claim("payment", "ali/O3/SUCCEEDED/T3"), "1 step", "0 steps";
    claims_without_reservation:
        "DELETE FROM reservation WHERE order_id = 'O5'"
            => claim("inventory", "O5/deduct"), "any status", "none";
        "UPDATE reservation SET status = 'DEDUCTED' WHERE order_id = 'O/2'"
            => claim("inventory", "O%2F2/release"), "RELEASED", "DEDUCTED";
    claims_without_stock_flow:
        "DELETE FROM deduction_flow WHERE action = 'return'"
            => claim("inventory", "X1/return/~anew-1"), "1 flow", "0 flows";
        "DELETE FROM deduction_flow WHERE action = 'adjust'"
            => claim("inventory", "J1/adjust"), "1 flow", "0 flows";
    claims_without_account_flow:
        "DELETE FROM account_flow WHERE source_id = 'D/1'"
            => claim("account", "U1/BALANCE/VOUCHER/D%2F1/debit"), "1 flow", "0 flows";
        "DELETE FROM account_flow WHERE source_type = 'ORDER' AND source_id = 'O1'"
            => claim("account", "U1/POINTS/ORDER/O1/credit"), "1 flow", "0 flows";
    transitions_without_claim:
        "DELETE FROM idempotent_record WHERE key = 'O1/order.ship'"
            => order("O1"), "1 claim", "0 claims";
        "UPDATE idempotent_record SET outcome = 'rejected' WHERE key = 'ali/O4/R4/SUCCEEDED'"
            => order("O4"), "1 claim", "0 claims";
    reservations_without_claim:
        "DELETE FROM idempotent_record WHERE key = 'O5/deduct'"
            => order("O5"), "1 claim", "0 claims";
        "DELETE FROM idempotent_record WHERE key = 'O%2F2/release'"
            => order("O/2"), "1 claim", "0 claims";
    stock_flows_without_claim:
        "DELETE FROM idempotent_record WHERE key = 'O5/deduct'" => sku("B"), "1 claim", "0 claims";
        "UPDATE deduction_flow SET order_id = NULL WHERE flow_id = 'O5/B/deduct'"
            => sku("B"), "1 claim", "0 claims";
        "DELETE FROM idempotent_record WHERE key = 'O%2F2/release'"
            => sku("A"), "1 claim", "0 claims";
        "DELETE FROM idempotent_record WHERE key = 'X1/return/~anew-1'"
            => sku("A"), "1 claim", "0 claims";
        "DELETE FROM idempotent_record WHERE key = 'J1/adjust'" => sku("A"), "1 claim", "0 claims";
    account_flows_without_claim:
        "DELETE FROM idempotent_record WHERE key = 'U1/BALANCE/VOUCHER/D%2F1/debit'"
            => account("U1", "BALANCE"), "1 claim", "0 claims";
    claims_parked:
        "DELETE FROM parked_event"
            => claim("order", "O5/order.ship"), "1 parked event", "0 parked events";
    parked_claims:
        "UPDATE idempotent_record SET outcome = 'applied' WHERE key = 'O5/order.ship'"
            => claim("order", "O5/order.ship"), "parked", "applied";
        "DELETE FROM idempotent_record WHERE key = 'O5/order.ship'"
            => claim("order", "O5/order.ship"), "parked", "none";
    claims_kept:
        "DELETE FROM dead_letter WHERE reason = 'parked_too_long'"
            => claim("payment", "ali/O8/SUCCEEDED/T8"), "1 dead letter", "0 dead letters";
    outbox_stuck:
        "UPDATE outbox SET created_at = @old" => Subject::Outbox(1), "at most 60 s", "3600 s";
    parked_and_possible:
        "UPDATE parked_event SET awaits = 'order:O5:WAIT_PAY'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE orders SET status = 'PAID' WHERE order_id = 'O5'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE orders SET status = 'CLOSED' WHERE order_id = 'O5'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE parked_event SET awaits = 'order:O1:SHIPPED'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE parked_event SET awaits = 'stock:X/1:DEDUCTED'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE parked_event SET awaits = 'stock:~hashed:DEDUCTED'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE parked_event SET awaits = 'flow:U1:BALANCE:VOUCHER:D/1'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE account_flow SET source_id = 'a:%3A~' WHERE source_type = 'VOUCHER';
         UPDATE parked_event SET awaits = 'flow:U1:BALANCE:VOUCHER:a%3A%253A%7E'"
            => claim("order", "O5/order.ship"), "woken", "parked";
        "UPDATE orders SET order_id = 'a:%3A~' WHERE order_id = 'O1';
         UPDATE parked_event SET awaits = 'order:a%3A%253A%7E:PAID'"
            => claim("order", "O5/order.ship"), "woken", "parked";
    parked_woken_stuck:
        "UPDATE parked_event SET woken_at = @old"
            => claim("order", "O5/order.ship"), "at most 60 s", "3600 s";
    parked_overdue:
        "UPDATE parked_event SET deadline = @old"
            => claim("order", "O5/order.ship"), "at most 60 s after the deadline", "3600 s";
}

macro_rules! on_every_store {
    ($($test:ident)*) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::Engine::Sqlite).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::Engine::Postgres).await;
                }
            )*
        }

        mod mariadb {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::Engine::MariaDb).await;
                }
            )*
        }
    };
}

on_every_store! {
    consistent_rows_have_no_difference
    an_empty_database_has_no_difference
    orders_without_the_tables_of_other_roles_have_no_difference
    stock_and_accounts_without_orders_have_no_difference
    what_may_be_on_its_way_is_no_difference
    what_may_wait_is_not_possible_yet
    a_rejected_credit_explains_missing_points
    flows_near_the_end_of_the_range_are_added_up
    keys_of_long_ids_are_not_mistaken
    a_report_lists_up_to_its_limit_and_says_that_there_is_more
    an_order_is_explained_from_its_claims_to_its_dead_letters
    a_key_of_an_order_is_marked_in_the_life_of_the_order
    a_key_of_an_account_is_explained_alone
    what_is_parked_or_dead_is_explained
    an_unknown_order_is_an_error_that_says_what_was_searched
    the_lists_of_history_are_filtered_and_ordered
}

#[test]
fn every_check_has_a_break() {
    let checks: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(BROKEN, checks);
}

async fn consistent_rows_have_no_difference(engine: Engine) {
    let world = World::new(engine).await;
    assert_eq!(world.differences().await, []);
    world.finish().await;
}

async fn an_empty_database_has_no_difference(engine: Engine) {
    let world = World::empty(engine).await;
    assert_eq!(world.differences().await, []);
    world.finish().await;
}

async fn orders_without_the_tables_of_other_roles_have_no_difference(engine: Engine) {
    let world = World::new(engine).await;
    world
        .run(
            "DELETE FROM stock; DELETE FROM reservation; DELETE FROM deduction_flow;
             DELETE FROM account; DELETE FROM account_flow;
             DELETE FROM idempotent_record WHERE role IN ('inventory', 'account')",
        )
        .await;
    assert_eq!(world.differences().await, []);
    world.finish().await;
}

async fn stock_and_accounts_without_orders_have_no_difference(engine: Engine) {
    let world = World::new(engine).await;
    world
        .run(
            "DELETE FROM orders; DELETE FROM order_line; DELETE FROM order_transition;
             DELETE FROM payment; DELETE FROM refund; DELETE FROM parked_event;
             DELETE FROM idempotent_record WHERE role IN ('order', 'payment')",
        )
        .await;
    assert_eq!(world.differences().await, []);
    world.finish().await;
}

async fn what_may_be_on_its_way_is_no_difference(engine: Engine) {
    let broken = [
        (
            "reservation_missing",
            "O5",
            "DELETE FROM reservation WHERE order_id = 'O5'",
        ),
        (
            "closed_orders_released",
            "O6",
            "DELETE FROM reservation WHERE order_id = 'O6'",
        ),
        (
            "rejected_orders_closed",
            "O5",
            "UPDATE reservation SET status = 'REJECTED' WHERE order_id = 'O5'",
        ),
        (
            "points",
            "O1",
            "DELETE FROM account_flow WHERE source_id = 'O1'",
        ),
        (
            "points_taken_back",
            "O4",
            "DELETE FROM account_flow WHERE source_id = 'O4/ali/R4'",
        ),
        (
            "orders_overdue",
            "O5",
            "UPDATE orders SET pay_deadline = @old WHERE order_id = 'O5'",
        ),
    ];
    for (check, order_id, sql) in broken {
        let world = World::new(engine).await;
        world.run(sql).await;
        assert_eq!(world.check(check).await.len(), 1, "{check}");
        let waiting = format!(
            "INSERT INTO outbox (aggregate, event_type, message_id, message, created_at)
             VALUES ('{order_id}', 'x', 'm99', x'00', @now)"
        );
        world.run(&waiting).await;
        assert_eq!(
            world.check(check).await,
            [],
            "{check} with a row in the outbox"
        );
        if check == "orders_overdue" {
            world.finish().await;
            continue;
        }
        world
            .run("DELETE FROM outbox WHERE message_id = 'm99'")
            .await;
        assert_eq!(world.check(check).await.len(), 1, "{check}");
        let young = format!(
            "UPDATE orders SET created_at = @now, updated_at = @now WHERE order_id = '{order_id}'"
        );
        world.run(&young).await;
        assert_eq!(
            world.check(check).await,
            [],
            "{check} of an order that just changed"
        );
        world.finish().await;
    }
}

async fn what_may_wait_is_not_possible_yet(engine: Engine) {
    let world = World::new(engine).await;
    for awaits in [
        "order:O5:SHIPPED",
        "order:O7:SHIPPED",
        "order:O404:WAIT_PAY",
        "stock:O404:DEDUCTED",
        "flow:U1:BALANCE:VOUCHER:D/2",
        "flow:U1:POINTS:VOUCHER:D/1",
        // A team's own, some of them cut short.
        "order:O1:LOST",
        "order:PAID",
        "stock:DEDUCTED",
        "flow:U1",
        "O1",
    ] {
        let sql = format!("UPDATE parked_event SET awaits = '{awaits}'");
        world.run(&sql).await;
        assert_eq!(world.check("parked_and_possible").await, [], "{awaits}");
    }
    let possible = [
        (
            "order:O1:PAID",
            "UPDATE orders SET updated_at = @now WHERE order_id = 'O1'",
        ),
        (
            "stock:O1:DEDUCTED",
            "UPDATE reservation SET created_at = @now WHERE order_id = 'O1'",
        ),
        (
            "flow:U4:POINTS:ORDER:O4",
            "UPDATE account_flow SET at = @now WHERE source_id = 'O4'",
        ),
        (
            "stock:O4:DEDUCTED",
            "UPDATE parked_event SET parked_at = @now",
        ),
        (
            "stock:O4:DEDUCTED",
            "UPDATE parked_event SET parked_at = @old, woken_at = @now",
        ),
    ];
    for (awaits, young) in possible {
        let sql = format!("UPDATE parked_event SET awaits = '{awaits}'");
        world.run(&sql).await;
        let found = world.check("parked_and_possible").await;
        assert_eq!(found.len(), 1, "{awaits}");
        world.run(young).await;
        assert_eq!(world.check("parked_and_possible").await, [], "{young}");
        world.run("UPDATE parked_event SET parked_at = @old").await;
    }
    world.finish().await;
}

async fn a_rejected_credit_explains_missing_points(engine: Engine) {
    let world = World::new(engine).await;
    world
        .run(
            "DELETE FROM account_flow WHERE source_type = 'ORDER' AND source_id = 'O1';
             UPDATE idempotent_record SET outcome = 'rejected', detail = 'amount_overflow'
             WHERE key = 'U1/POINTS/ORDER/O1/credit'",
        )
        .await;
    assert_eq!(world.check("points").await, []);
    world.finish().await;
}

// SQLite's sum fails as soon as a part of it leaves 64 bits.
async fn flows_near_the_end_of_the_range_are_added_up(engine: Engine) {
    let world = World::empty(engine).await;
    world
        .run(
            "INSERT INTO account_flow
                (user_id, kind, source_type, source_id, amount, balance_after, at)
             VALUES
                ('U', 'K', 'C', '1', 9223372036854775807, 9223372036854775807, @old),
                ('U', 'K', 'C', '2', 9223372036854775807, 9223372036854775807, @old),
                ('U', 'K', 'D', '1', -9223372036854775807, 0, @old);
             INSERT INTO account (user_id, kind, balance, version, updated_at)
             VALUES ('U', 'K', 9223372036854775807, 3, @old);
             INSERT INTO deduction_flow (flow_id, sku_id, action, qty, available_after, at)
             VALUES
                ('1/S/adjust', 'S', 'adjust', 9223372036854775806, 9223372036854775807, @old),
                ('2/S/adjust', 'S', 'adjust', -9223372036854775807, 0, @old),
                ('3/S/adjust', 'S', 'adjust', 5, 5, @old);
             INSERT INTO stock (sku_id, opening, available, version, updated_at)
             VALUES ('S', 1, 5, 3, @old)",
        )
        .await;
    for check in [
        "account_balance",
        "account_running",
        "stock_available",
        "stock_running",
    ] {
        assert_eq!(world.check(check).await, [], "{check}");
    }
    world.run("UPDATE account SET balance = 1").await;
    let found = world.check("account_balance").await;
    assert_eq!(found[0].expected, "9223372036854775807");
    world.finish().await;
}

async fn keys_of_long_ids_are_not_mistaken(engine: Engine) {
    let world = World::empty(engine).await;
    let (id, sku) = ("x".repeat(300), "s/".repeat(100));
    let claim = |key: &str, subject: &str| {
        format!(
            "INSERT INTO idempotent_record
                (role, key, subject, fingerprint, message_id, outcome, created_at, concluded_at)
             VALUES ('{}', '{key}', '{subject}', zeroblob(32), 'm', 'applied', @old, @old);",
            if key.contains("/K/") {
                "account"
            } else {
                "inventory"
            }
        )
    };
    let hashed = |parts: &[&str]| orderonce::domain::Key::new(parts).unwrap().to_string();
    let deduct = hashed(&[&id, "deduct"]);
    let back = hashed(&["return", "r1"]);
    let count = hashed(&["adjust", "a1"]);
    let credit = hashed(&[&id, "K", "C", "1", "credit"]);
    assert!(deduct.contains('~') && credit.contains('~'));
    let flow = |parts: &[&str], order: &str, action: &str, qty: i64, after: i64| {
        format!(
            "INSERT INTO deduction_flow (flow_id, order_id, sku_id, action, qty, available_after, at)
             VALUES ('{}', {order}, '{sku}', '{action}', {qty}, {after}, @old);",
            hashed(parts)
        )
    };
    let quoted = format!("'{id}'");
    let sql = [
        claim(&deduct, &id),
        claim(&back, &id),
        claim(&count, &sku),
        claim(&credit, &id),
        flow(&["adjust", "a1", &sku], "NULL", "adjust", 9, 9),
        flow(&[&id, &sku, "deduct"], &quoted, "deduct", -2, 7),
        flow(&[&id, &sku, "return", "r1"], &quoted, "return", 1, 8),
        format!(
            "INSERT INTO stock (sku_id, available, version, updated_at) VALUES ('{sku}', 8, 3, @old);
             INSERT INTO reservation (order_id, status, version, created_at, updated_at)
             VALUES ('{id}', 'DEDUCTED', 1, @old, @old);
             INSERT INTO account (user_id, kind, balance, version, updated_at)
             VALUES ('{id}', 'K', 3, 1, @old);
             INSERT INTO account_flow
                (user_id, kind, source_type, source_id, amount, balance_after, at)
             VALUES ('{id}', 'K', 'C', '1', 3, 3, @old)"
        ),
    ];
    world.run(&sql.concat()).await;
    assert_eq!(world.differences().await, []);
    world.finish().await;
}

async fn a_report_lists_up_to_its_limit_and_says_that_there_is_more(engine: Engine) {
    let world = World::new(engine).await;
    world
        .run("UPDATE stock SET available = available + 1")
        .await;
    let options = Options {
        stuck_after: STUCK_AFTER,
        limit: 2,
    };
    let mut heard = Vec::new();
    let report = reconcile(world.store(), &options, |name| heard.push(name.to_owned()));
    let report = report.await.unwrap();
    assert_eq!(heard, world.store().checks());
    assert!(report.more && !report.is_clean());
    let stock = &report.checks[0];
    assert_eq!(
        (stock.name, stock.differences.len(), stock.more),
        ("stock_available", 2, true)
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["checks"][0]["differences"][0]["subject"]["kind"],
        "sku"
    );
    assert_eq!(json["differences"], 4);
    world.finish().await;
}

async fn an_order_is_explained_from_its_claims_to_its_dead_letters(engine: Engine) {
    let world = World::new(engine).await;
    let life = explain(world.store(), "O1").await.unwrap();
    let text = life.to_string();
    assert!(
        text.starts_with(
            "order O1 of user U1: COMPLETED, version 7\n\
             total 28.99 GBP, paid 28.99 GBP, refunded 8.99 GBP, stock DEDUCTED, earned 20 POINTS\n"
        ),
        "{text}"
    );
    let told = [
        "order O1/order.create: applied [message m-O1/order.create]",
        "4 lines (1 charge), total 28.99 GBP",
        "deduct SKU A: -2, leaves 98",
        "payment T1 by ali: 28.99 GBP, ACCEPTED (TRADE_SUCCESS)",
        "version 3: WAIT_PAY -> PAID, by ali/O1/SUCCEEDED/T1",
        "order O1/order.cancel: rejected (already_shipped)",
        "account U1/POINTS/REFUND/O1%2Fali%2FR1/reverse: taken, decided later",
        "+28 POINTS of user U1 for ORDER O1, leaves 28",
        "refund R1 by ali of payment T1: 8.99 GBP, SUCCEEDED",
        "version 6: stays COMPLETED, note of ali/O1/R1/SUCCEEDED",
        "-8 POINTS of user U1 for REFUND O1/ali/R1, leaves 20",
        "return SKU A: +1, leaves 99",
        "order O1/order.ship: dead letter 2, conflict: other content; DEAD",
    ];
    let mut rest = text.as_str();
    for line in told {
        let Some((_, after)) = rest.split_once(line) else {
            panic!("{line} is not there, or not in its place, in\n{text}");
        };
        rest = after;
    }
    assert!(text.contains("+0.123 s  payment "), "{text}");
    assert!(life.entries.is_sorted_by_key(|entry| entry.at));
    let json = serde_json::to_value(&life).unwrap();
    assert_eq!(json["order"]["status"], "COMPLETED");
    assert_eq!(json["entries"][0]["outcome"], "applied");
    world.finish().await;
}

async fn a_key_of_an_order_is_marked_in_the_life_of_the_order(engine: Engine) {
    let world = World::new(engine).await;
    for asked in ["O1/order.ship", "order:O1/order.ship"] {
        let life = explain(world.store(), asked).await.unwrap();
        assert_eq!(life.subject, "O1");
        let marked = life.entries.iter().filter(|entry| entry.asked);
        let tables: Vec<_> = marked.map(|entry| entry.table).collect();
        assert_eq!(
            tables,
            ["idempotent_record", "order_transition", "dead_letter"]
        );
        assert!(life.to_string().contains("\n* "));
    }
    world.finish().await;
}

async fn a_key_of_an_account_is_explained_alone(engine: Engine) {
    let world = World::new(engine).await;
    let key = "U1/BALANCE/VOUCHER/D%2F1/debit";
    let life = explain(world.store(), key).await.unwrap();
    assert_eq!((life.subject.as_str(), life.entries.len()), ("U1", 1));
    assert!(life.entries[0].asked);
    world.finish().await;
}

async fn what_is_parked_or_dead_is_explained(engine: Engine) {
    let world = World::new(engine).await;
    let parked = explain(world.store(), "O5").await.unwrap().to_string();
    assert!(
        parked.contains("order.ship set aside until order:O5:PAID"),
        "{parked}"
    );
    let dead = explain(world.store(), "O8").await.unwrap().to_string();
    assert!(dead.contains("dead letter 1, parked_too_long"), "{dead}");
    let user = explain(world.store(), "U1").await.unwrap().to_string();
    assert!(
        user.contains("account.credited waits to be published"),
        "{user}"
    );
    world.finish().await;
}

async fn an_unknown_order_is_an_error_that_says_what_was_searched(engine: Engine) {
    let world = World::new(engine).await;
    let error = explain(world.store(), "O404").await.unwrap_err();
    assert!(matches!(&error, explain::Error::NotFound(asked) if asked == "O404"));
    assert!(
        error
            .to_string()
            .starts_with("nothing is known of O404: no order has this id")
    );
    world.finish().await;
}

async fn the_lists_of_history_are_filtered_and_ordered(engine: Engine) {
    use orderonce::store::{DeadFilter, DeadStatus};
    let world = World::new(engine).await;
    let store = world.fresh.store.clone();
    let (_, due) = store.due_orders(10).await.unwrap();
    assert_eq!(due, []);
    world
        .run("UPDATE orders SET pay_deadline = @old WHERE order_id = 'O5'")
        .await;
    let (now, due) = store.due_orders(10).await.unwrap();
    assert_eq!((due.len(), due[0].as_str()), (1, "O5"));
    assert!(now.0 >= world.now);

    let dead = |filter: DeadFilter| {
        let store = store.clone();
        async move {
            let letters = store.dead_letters(&filter, 10).await.unwrap();
            letters
                .into_iter()
                .map(|letter| letter.id)
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(dead(DeadFilter::default()).await, [1, 2]);
    let role = Some(orderonce::domain::RoleName::PAYMENT);
    assert_eq!(
        dead(DeadFilter {
            role,
            ..DeadFilter::default()
        })
        .await,
        [1]
    );
    let status = Some(DeadStatus::Replayed);
    assert_eq!(
        dead(DeadFilter {
            status,
            ..DeadFilter::default()
        })
        .await,
        [0_i64; 0]
    );
    let reason = Some("conflict".to_owned());
    assert_eq!(
        dead(DeadFilter {
            reason,
            ..DeadFilter::default()
        })
        .await,
        [2]
    );
    let key = Some("O1/order.ship".to_owned());
    assert_eq!(
        dead(DeadFilter {
            key,
            ..DeadFilter::default()
        })
        .await,
        [2]
    );
    let letter = store.dead_letter(2).await.unwrap().unwrap();
    assert_eq!(
        (letter.headers["a"].as_str(), letter.raw.as_slice()),
        ("b", &b"{}"[..])
    );
    assert_eq!(store.dead_letter(9).await.unwrap(), None);

    let parked = store.parked(None, 10).await.unwrap();
    assert_eq!((parked.len(), parked[0].key.as_str()), (1, "O5/order.ship"));
    assert_eq!(store.parked(Some("O1"), 10).await.unwrap(), []);

    let counts = store.claim_counts().await.unwrap();
    let rejected = counts
        .iter()
        .find(|(role, outcome, _)| role.as_str() == "order" && outcome == "rejected");
    assert_eq!(rejected.map(|(_, _, count)| *count), Some(2));
    let of = store.claims_of(None, "O1/order.ship").await.unwrap();
    assert_eq!(of.len(), 1);
    let other = orderonce::domain::RoleName::ACCOUNT;
    assert_eq!(
        store
            .claims_of(Some(&other), "O1/order.ship")
            .await
            .unwrap(),
        []
    );
    world.finish().await;
}
