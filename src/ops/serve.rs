//! Runs roles, relay and janitor until told to stop.

use super::deployment::Deployment;
use crate::worker;
use crate::worker::supervisor::{self, Plan};
use tokio_util::sync::CancellationToken;

/// Runs `plan` until `stop` is cancelled, then drains.
///
/// # Errors
/// [`worker::Error`] if a part ended by something that time does not heal.
pub async fn serve(
    deployment: &Deployment,
    plan: Plan,
    stop: CancellationToken,
) -> worker::Result<()> {
    let roles: Vec<_> = plan.roles.iter().map(ToString::to_string).collect();
    tracing::info!(
        roles = roles.join(","),
        relay = plan.relay,
        janitor = plan.janitor,
        "started"
    );
    let store = deployment.store.clone();
    let served = supervisor::run(plan, store, deployment.broker.clone(), stop).await;
    deployment.store.close().await;
    tracing::info!("stopped");
    served
}
