//! What a schedule reads of the tables, on a connection of its own and with SQL of its own.

use crate::testkit::model::{
    AccountState, ClaimState, OrderState, ReservationState, Snapshot, StockState,
};
use crate::testkit::sql::Reader;
use std::collections::BTreeSet;

pub(super) struct Tables {
    /// Of the queue.
    file: Reader,
    /// Of the store.
    store: Reader,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Those of the queue in the file, and those of the store at its URL.
    pub(super) async fn open(file: &str, store: &str) -> Result<Self> {
        Ok(Self {
            file: Reader::open(file).await?,
            store: Reader::open(store).await?,
        })
    }

    pub(super) async fn close(self) -> Result<()> {
        self.file.close().await?;
        self.store.close().await
    }

    /// Rows of the outbox that are younger than `id`, in order.
    pub(super) async fn outbox_after(&mut self, id: i64) -> Result<Vec<OutboxRow>> {
        let after = format!(
            "SELECT id, aggregate, addressee, event_type, message, retry_at FROM outbox \
             WHERE id > {id} ORDER BY id"
        );
        let rows = self.store.rows(after).await?.into_iter();
        let row = |(id, aggregate, addressee, event_type, message, retry_at)| OutboxRow {
            id,
            aggregate,
            addressee,
            event_type,
            message,
            retry_at,
        };
        Ok(rows.map(row).collect())
    }

    /// Whether one of these deliveries, given by id and fence, still has its lease.
    pub(super) async fn leased(&mut self, tags: &[(i64, i64)]) -> Result<bool> {
        for (id, fence) in tags {
            let leased = format!(
                "SELECT count(*) FROM queue_message WHERE id = {id} AND fence = {fence} AND leased = 1"
            );
            let leased: Vec<(i64,)> = self.file.rows(leased).await?;
            if leased.iter().any(|(count,)| *count > 0) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many messages were ever put into a queue. Their ids count from 1 without a gap.
    pub(super) async fn published(&mut self) -> Result<i64> {
        const LAST: &str = "
            SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queue_message'";
        let last: Vec<(i64,)> = self.file.rows(LAST).await?;
        Ok(last.into_iter().map(|(last,)| last).max().unwrap_or(0))
    }

    pub(super) async fn dead_letters(&mut self) -> Result<BTreeSet<DeadLetter>> {
        const DEAD: &str = "SELECT role, reason, raw FROM dead_letter";
        let rows: Vec<DeadLetter> = self.store.rows(DEAD).await?;
        Ok(rows.into_iter().collect())
    }

    /// Parked events that were woken and have not arrived.
    pub(super) async fn woken(&mut self) -> Result<Vec<(String, String)>> {
        const WOKEN: &str = "SELECT role, \"key\" FROM parked_event WHERE woken_at IS NOT NULL";
        self.store.rows(WOKEN).await
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
        let rows: Vec<(String, String, i64, i64, i64)> = self.store.rows(ORDERS).await?;
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
        let rows: Vec<(String, i64, i64)> = self.store.rows(STOCK).await?;
        for (sku_id, available, version) in rows {
            let state = StockState { available, version };
            snapshot.stock.insert(sku_id, state);
        }
        let rows: Vec<(String, String)> = self.store.rows(RESERVATIONS).await?;
        for (order_id, status) in rows {
            let state = ReservationState { status };
            snapshot.reservations.insert(order_id, state);
        }
        Ok(())
    }

    async fn accounts(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        const ACCOUNTS: &str = "SELECT user_id, kind, balance FROM account";
        let rows: Vec<(String, String, i64)> = self.store.rows(ACCOUNTS).await?;
        for (user_id, kind, balance) in rows {
            let of_user = snapshot.accounts.entry(user_id).or_default();
            of_user.insert(kind, AccountState { balance });
        }
        Ok(())
    }

    async fn keys(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        const PARKED: &str = "SELECT role, \"key\", awaits FROM parked_event";
        const CLAIMS: &str = "SELECT role, \"key\", outcome, detail FROM idempotent_record";
        let rows: Vec<(String, String, String)> = self.store.rows(PARKED).await?;
        for (role, key, awaits) in rows {
            let of_role = snapshot.parked.entry(role).or_default();
            of_role.insert(key, awaits);
        }
        let rows: Vec<(String, String, String, Option<String>)> = self.store.rows(CLAIMS).await?;
        for (role, key, outcome, detail) in rows {
            let of_role = snapshot.claims.entry(role).or_default();
            of_role.insert(key, ClaimState { outcome, detail });
        }
        Ok(())
    }
}
