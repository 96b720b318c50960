//! `outbox`, `parked_event` and `dead_letter`, as far as they wait.

use super::set::Reader;
use super::{SqliteStore, from_sqlx};
use crate::domain::Timestamp;
use crate::store::{Backlog, COUNTED, Occupancy, Result, Waiting, Watch};
use async_trait::async_trait;
use sqlx::SqlitePool;

#[async_trait]
impl Watch for SqliteStore {
    async fn backlog(&self) -> Result<Backlog> {
        const BACKLOG: &str = "
            SELECT
                (SELECT count(*) FROM (SELECT 1 FROM outbox ORDER BY id LIMIT ?1)),
                (SELECT created_at FROM outbox ORDER BY id LIMIT 1),
                (SELECT count(*) FROM (SELECT 1 FROM parked_event ORDER BY deadline LIMIT ?1)),
                (SELECT parked_at FROM parked_event ORDER BY deadline LIMIT 1),
                (SELECT count(*) FROM (SELECT 1 FROM dead_letter WHERE status = 'DEAD' ORDER BY id LIMIT ?1))";
        let now = self.database().now();
        let row = sqlx::query(BACKLOG)
            .bind(i64::from(COUNTED))
            .fetch_one(self.readers())
            .await
            .map_err(from_sqlx)?;
        let row = Reader::new(&row, "outbox", 0);
        let waiting = |rows, oldest| -> Result<Waiting> {
            Ok(Waiting {
                rows: row.count(rows)?,
                oldest: row.get::<Option<i64>>(oldest)?.map(Timestamp),
            })
        };
        Ok(Backlog {
            outbox: waiting(0, 1)?,
            parked: waiting(2, 3)?,
            dead: row.count(4)?,
            now,
        })
    }

    // Differs from Postgres: these are pools of the driver, which does not tell who waits.
    fn occupancy(&self) -> Occupancy {
        let pools = [self.database.readers(), self.database.writer()];
        let idle = |pool: &SqlitePool| u64::try_from(pool.num_idle()).unwrap_or(u64::MAX);
        let open: u64 = pools.iter().map(|pool| u64::from(pool.size())).sum();
        let idle: u64 = pools.iter().map(|pool| idle(pool)).sum();
        Occupancy {
            in_use: open.saturating_sub(idle),
            idle,
            waiting: None,
        }
    }
}
