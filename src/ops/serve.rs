//! Runs roles, relay and janitor until told to stop.

use super::deployment::Deployment;
use super::gates::{self, Gates};
use super::health::{self, Monitor};
use crate::broker::Broker;
use crate::worker;
use crate::worker::supervisor::{self, Door, Plan};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Why serving ended or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address for `/live` and `/ready`.
    #[error(transparent)]
    Health(#[from] health::Error),
    /// The layers in front of the database.
    #[error(transparent)]
    Gates(#[from] gates::Error),
    /// A part ended by something that time does not heal.
    #[error(transparent)]
    Worker(#[from] worker::Error),
}

/// Runs `plan` and `doors` until `stop` is cancelled, then drains.
///
/// # Errors
/// [`Error`].
pub async fn serve(
    deployment: &Deployment,
    broker: Arc<dyn Broker>,
    mut plan: Plan,
    doors: Vec<Box<dyn Door>>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let config = &deployment.config.health;
    let stopped = CancellationToken::new();
    let gates = Arc::new(Gates::open(
        &deployment.config,
        &plan.roles,
        &deployment.store,
    )?);
    plan.gates.splice(..0, gates.layers());
    let monitor = if config.listen.is_empty() {
        None
    } else {
        let monitor = Monitor::new(
            deployment,
            Arc::clone(&broker),
            Arc::clone(&gates),
            &plan.roles,
            stop.clone(),
        );
        let listening = monitor.listen(&config.listen, config.interval, stopped.clone());
        Some(listening.await?)
    };
    let roles: Vec<_> = plan.roles.iter().map(ToString::to_string).collect();
    tracing::info!(
        roles = roles.join(","),
        relay = plan.relay,
        janitor = plan.janitor,
        api = !doors.is_empty(),
        "started"
    );
    let store = Arc::clone(&deployment.store);
    let served = supervisor::run_with(plan, store, broker, doors, stop).await;
    deployment.store.close().await;
    gates.close();
    stopped.cancel();
    if let Some(monitor) = monitor {
        // It has nothing to finish but answers.
        drop(monitor.await);
    }
    tracing::info!("stopped");
    Ok(served?)
}
