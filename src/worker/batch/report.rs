//! Tells what became of deliveries.

use super::{ItemOutcome, Settled};
use crate::domain::{Outcome, RoleName};
use std::borrow::Cow;

/// Logs and counts each outcome, once per event of a delivery.
pub(super) fn report(role: &RoleName, settled: &[Settled]) {
    for delivery in settled {
        for ItemOutcome { key, outcome } in &delivery.items {
            let name = outcome.name();
            metrics::counter!(
                "orderonce_outcomes_total",
                "role" => role.as_str().to_owned(),
                "outcome" => name,
                "layer" => outcome.layer().map_or("", Into::into)
            )
            .increment(1);
            let key = key.as_ref().map(|(key, _)| key.as_str());
            let message_id = delivery.message_id.as_deref();
            let detail = detail(outcome);
            let detail = detail.as_deref();
            let layer = outcome.layer().map(<&str>::from);
            match outcome {
                Outcome::Dead(_) | Outcome::Conflict => {
                    tracing::warn!(%role, message_id, key, outcome = name, detail, "kept in the dead-letter table");
                }
                Outcome::Applied
                | Outcome::Duplicate(_)
                | Outcome::Parked(_)
                | Outcome::Stale
                | Outcome::Rejected(_)
                | Outcome::Retried { .. } => {
                    tracing::info!(%role, message_id, key, outcome = name, layer, detail, "settled");
                }
            }
        }
    }
}

/// What belongs to an outcome beside its name.
pub(super) fn detail(outcome: &Outcome) -> Option<Cow<'static, str>> {
    match outcome {
        Outcome::Rejected(rejection) => Some(Cow::Borrowed(rejection.into())),
        Outcome::Duplicate(layer) => Some(Cow::Borrowed(layer.into())),
        Outcome::Parked(token) => Some(Cow::Owned(token.as_str().to_owned())),
        Outcome::Dead(reason) => Some(Cow::Borrowed(reason.into())),
        Outcome::Applied | Outcome::Conflict | Outcome::Stale | Outcome::Retried { .. } => None,
    }
}
