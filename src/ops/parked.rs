//! Shows events that wait for what makes them possible.

use super::table::Table;
use crate::store::{self, ParkedRow, Store};
use serde::Serialize;
use std::fmt;

/// Parked events, the one with the nearest deadline first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The events.
    pub parked: Vec<ParkedRow>,
}

/// Lists up to `limit` parked events, all of them or those about a subject.
///
/// # Errors
/// [`store::Error`] if the database is away.
pub async fn list(store: &dyn Store, subject: Option<&str>, limit: u32) -> store::Result<Report> {
    let parked = store.parked(subject, limit).await?;
    Ok(Report { parked })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parked.is_empty() {
            return writeln!(f, "nothing is parked");
        }
        let header = &[
            "role",
            "key",
            "awaits",
            "parked at",
            "given up at",
            "woken at",
        ];
        let mut table = Table::new(header, &[]);
        for row in &self.parked {
            table.row([
                row.role.to_string(),
                row.key.to_string(),
                row.awaits.to_string(),
                row.parked_at.to_string(),
                row.deadline.to_string(),
                row.woken_at.map_or(String::new(), |at| at.to_string()),
            ]);
        }
        write!(f, "{table}")
    }
}
