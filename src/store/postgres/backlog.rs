//! `outbox`, `parked_event` and `dead_letter`, as far as they wait.

use super::PostgresStore;
use super::set::Reader;
use crate::domain::Timestamp;
use crate::store::{Backlog, COUNTED, Error, Occupancy, Result, Waiting, Watch};
use async_trait::async_trait;

#[async_trait]
impl Watch for PostgresStore {
    async fn backlog(&self) -> Result<Backlog> {
        const BACKLOG: &str = "
            SELECT
                (SELECT count(*) FROM (SELECT 1 FROM outbox ORDER BY id LIMIT $1) AS counted),
                (SELECT created_at FROM outbox ORDER BY id LIMIT 1),
                (SELECT count(*) FROM (SELECT 1 FROM parked_event ORDER BY deadline LIMIT $1) AS counted),
                (SELECT parked_at FROM parked_event ORDER BY deadline LIMIT 1),
                (SELECT count(*) FROM (
                    SELECT 1 FROM dead_letter WHERE status = 'DEAD' ORDER BY id LIMIT $1) AS counted)";
        let now = self.database().now().await?;
        let select = sqlx::query(BACKLOG).bind(i64::from(COUNTED));
        let rows = self.database().fetch(select).await?;
        let [row] = &rows[..] else {
            return Err(Error::Unavailable("the counts gave no row".into()));
        };
        let row = Reader::new(row, "outbox", 0);
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

    fn occupancy(&self) -> Occupancy {
        self.database().occupancy()
    }
}
