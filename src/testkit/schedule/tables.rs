//! What a schedule reads of the tables, on a connection of its own and with SQL of its own.

use crate::testkit::model::{
    AccountState, ClaimState, OrderState, ReservationState, Snapshot, StockState,
};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::collections::BTreeSet;
use std::path::Path;

pub(super) struct Tables(SqliteConnection);

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(super) struct OutboxRow {
    pub(super) id: i64,
    pub(super) aggregate: String,
    pub(super) addressee: Option<String>,
    pub(super) event_type: String,
    pub(super) message: Vec<u8>,
    /// When the relay may offer it again.
    pub(super) retry_at: i64,
}

/// Role, reason and bytes of a dead letter.
pub(super) type DeadLetter = (String, String, Vec<u8>);

type Result<T> = std::result::Result<T, sqlx::Error>;

impl Tables {
    pub(super) async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new().filename(path).read_only(true);
        SqliteConnection::connect_with(&options).await.map(Self)
    }

    pub(super) async fn close(self) -> Result<()> {
        self.0.close().await
    }

    /// Rows of the outbox that are younger than `id`, in order.
    pub(super) async fn outbox_after(&mut self, id: i64) -> Result<Vec<OutboxRow>> {
        const AFTER: &str = "
            SELECT id, aggregate, addressee, event_type, message, retry_at FROM outbox
            WHERE id > ?1 ORDER BY id";
        sqlx::query_as(AFTER).bind(id).fetch_all(&mut self.0).await
    }

    /// Whether one of these deliveries, given by id and fence, still has its lease.
    pub(super) async fn leased(&mut self, tags: &[(i64, i64)]) -> Result<bool> {
        const LEASED: &str = "
            SELECT count(*) FROM queue_message WHERE id = ?1 AND fence = ?2 AND leased = 1";
        for (id, fence) in tags {
            let leased: i64 = sqlx::query_scalar(LEASED)
                .bind(id)
                .bind(fence)
                .fetch_one(&mut self.0)
                .await?;
            if leased > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many messages were ever put into a queue. Their ids count from 1 without a gap.
    pub(super) async fn published(&mut self) -> Result<i64> {
        const LAST: &str = "
            SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queue_message'";
        sqlx::query_scalar(LAST).fetch_one(&mut self.0).await
    }

    pub(super) async fn dead_letters(&mut self) -> Result<BTreeSet<DeadLetter>> {
        const DEAD: &str = "SELECT role, reason, raw FROM dead_letter";
        let rows: Vec<DeadLetter> = sqlx::query_as(DEAD).fetch_all(&mut self.0).await?;
        Ok(rows.into_iter().collect())
    }

    /// Parked events that were woken and have not arrived.
    pub(super) async fn woken(&mut self) -> Result<Vec<(String, String)>> {
        const WOKEN: &str = "SELECT role, key FROM parked_event WHERE woken_at IS NOT NULL";
        sqlx::query_as(WOKEN).fetch_all(&mut self.0).await
    }

    /// All that the model has too.
    pub(super) async fn snapshot(&mut self) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        self.orders(&mut snapshot).await?;
        self.stock(&mut snapshot).await?;
        self.accounts(&mut snapshot).await?;
        self.keys(&mut snapshot).await?;
        Ok(snapshot)
    }

    async fn orders(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        const ORDERS: &str = "
            SELECT order_id, status, version, paid_minor, refunded_minor FROM orders";
        let rows: Vec<(String, String, i64, i64, i64)> =
            sqlx::query_as(ORDERS).fetch_all(&mut self.0).await?;
        for (order_id, status, version, paid_minor, refunded_minor) in rows {
            let state = OrderState {
                status,
                version,
                paid_minor,
                refunded_minor,
            };
            snapshot.orders.insert(order_id, state);
        }
        Ok(())
    }

    async fn stock(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        const STOCK: &str = "SELECT sku_id, available, version FROM stock";
        const RESERVATIONS: &str = "SELECT order_id, status FROM reservation";
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(STOCK).fetch_all(&mut self.0).await?;
        for (sku_id, available, version) in rows {
            let state = StockState { available, version };
            snapshot.stock.insert(sku_id, state);
        }
        let rows: Vec<(String, String)> =
            sqlx::query_as(RESERVATIONS).fetch_all(&mut self.0).await?;
        for (order_id, status) in rows {
            let state = ReservationState { status };
            snapshot.reservations.insert(order_id, state);
        }
        Ok(())
    }

    async fn accounts(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        const ACCOUNTS: &str = "SELECT user_id, kind, balance FROM account";
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as(ACCOUNTS).fetch_all(&mut self.0).await?;
        for (user_id, kind, balance) in rows {
            let of_user = snapshot.accounts.entry(user_id).or_default();
            of_user.insert(kind, AccountState { balance });
        }
        Ok(())
    }

    async fn keys(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        const PARKED: &str = "SELECT role, key, awaits FROM parked_event";
        const CLAIMS: &str = "SELECT role, key, outcome, detail FROM idempotent_record";
        let rows: Vec<(String, String, String)> =
            sqlx::query_as(PARKED).fetch_all(&mut self.0).await?;
        for (role, key, awaits) in rows {
            let of_role = snapshot.parked.entry(role).or_default();
            of_role.insert(key, awaits);
        }
        let rows: Vec<(String, String, String, Option<String>)> =
            sqlx::query_as(CLAIMS).fetch_all(&mut self.0).await?;
        for (role, key, outcome, detail) in rows {
            let of_role = snapshot.claims.entry(role).or_default();
            of_role.insert(key, ClaimState { outcome, detail });
        }
        Ok(())
    }
}
