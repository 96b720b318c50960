//! Tells what became of deliveries.

use super::{ItemOutcome, Settled};
use crate::domain::{Outcome, RoleName};

/// Logs each outcome, once per event of a delivery. What could not be read has an empty id or key.
pub(super) fn report(role: &RoleName, settled: &[Settled]) {
    for delivery in settled {
        for ItemOutcome { key, outcome } in &delivery.items {
            let name = outcome.name();
            let key = key.as_ref().map_or("", |(key, _)| key.as_str());
            let message_id = delivery.message_id.as_deref().unwrap_or_default();
            let trace_id = delivery.trace_id.as_deref();
            let detail = outcome.detail();
            let detail = detail.as_deref();
            let layer = outcome.layer().map(<&str>::from);
            match outcome {
                Outcome::Dead(_) | Outcome::Conflict => {
                    tracing::warn!(%role, message_id, key, outcome = name, detail, trace_id, "kept in the dead-letter table");
                }
                Outcome::Applied
                | Outcome::Duplicate(_)
                | Outcome::Parked(_)
                | Outcome::Stale
                | Outcome::Rejected(_)
                | Outcome::Retried { .. } => {
                    tracing::info!(%role, message_id, key, outcome = name, layer, detail, trace_id, "settled");
                }
            }
        }
    }
}
