//! The day as it happens: publishing, killing, waiting.

use super::tap::Tap;
use super::{Error, Options, PATIENCE};
use crate::broker::{Broker, Headers, Publication, Publisher};
use crate::domain::RoleName;
use crate::message::{Envelope, Limits};
use crate::ops::deployment::Deployment;
use crate::ops::progress::Progress;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// The shop, with what it needs to run its day.
pub(super) struct Shop<'d> {
    deployment: &'d Deployment,
    broker: &'d dyn Broker,
    tap: &'d mut Tap,
    options: &'d Options,
    config: &'d Path,
    rng: fastrand::Rng,
    /// Messages between the roles that were looked at and published again, or not.
    seen: HashSet<(String, String)>,
}

/// The longest that the workers are left alone with a part of the day before they are killed.
const LONGEST_LIFE_MS: u64 = 60;

/// How often is looked whether all is settled.
const LOOK: Duration = Duration::from_millis(20);

impl<'d> Shop<'d> {
    pub(super) fn open(
        deployment: &'d Deployment,
        broker: &'d dyn Broker,
        tap: &'d mut Tap,
        options: &'d Options,
        config: &'d Path,
        rng: fastrand::Rng,
    ) -> Self {
        Self {
            deployment,
            broker,
            tap,
            options,
            config,
            rng,
            seen: HashSet::new(),
        }
    }

    /// Publishes everything and kills the workers while they are at it; returns how often.
    pub(super) async fn run(
        mut self,
        deliveries: &[Publication],
        progress: &dyn Progress,
    ) -> Result<u32, Error> {
        let external = deliveries.iter().map(|message| &message.message_id);
        let external: HashSet<_> = external.cloned().collect();
        let mut publisher = self.broker.publisher().await?;
        let mut workers = self.start()?;
        let parts = usize::try_from(self.options.kills)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let mut kills = 0;
        progress.stage("the day begins", u64::try_from(deliveries.len()).ok());
        let mut published = 0;
        for part in deliveries.chunks(deliveries.len().div_ceil(parts).max(1)) {
            publisher.publish(part).await?;
            published += part.len();
            self.repeat(publisher.as_mut(), &external).await?;
            progress.at(u64::try_from(published).unwrap_or(u64::MAX));
            if kills < self.options.kills {
                self.kill(&mut workers).await?;
                kills += 1;
                workers = self.start()?;
            }
        }
        // A short day has fewer parts than kills were asked for.
        while kills < self.options.kills {
            self.kill(&mut workers).await?;
            kills += 1;
            workers = self.start()?;
        }
        self.settle(publisher.as_mut(), &external, &mut workers, progress)
            .await?;
        self.stop(workers).await?;
        Ok(kills)
    }

    fn start(&self) -> Result<Child, Error> {
        let log = self.log();
        let file = File::options().create(true).append(true).open(&log);
        let file = file.map_err(Error::io(format!("opening {}", log.display())))?;
        Command::new(&self.options.program)
            .arg("--config")
            .arg(self.config)
            .arg("serve")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io(format!(
                "starting {}",
                self.options.program.display()
            )))
    }

    fn log(&self) -> std::path::PathBuf {
        self.options.dir.join("workers.log")
    }

    /// SIGKILL, at a random moment while the workers have something to do.
    async fn kill(&mut self, workers: &mut Child) -> Result<(), Error> {
        let (_, before) = self.traffic().await?;
        let patience = Instant::now() + Duration::from_secs(5);
        while self.traffic().await?.1 == before && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis(self.rng.u64(..LONGEST_LIFE_MS))).await;
        self.check(workers)?;
        workers
            .kill()
            .await
            .map_err(Error::io("killing the workers"))
    }

    /// How many messages and how many deliveries there have been so far.
    async fn traffic(&mut self) -> Result<(usize, u64), Error> {
        let kept = self.tap.look().await?;
        let deliveries = kept.iter().map(|kept| u64::from(kept.deliveries));
        Ok((kept.len(), deliveries.sum()))
    }

    /// Publishes some of the messages between the roles again, as their producers would.
    async fn repeat(
        &mut self,
        publisher: &mut dyn Publisher,
        external: &HashSet<String>,
    ) -> Result<usize, Error> {
        let mut again = Vec::new();
        for kept in self.tap.look().await? {
            let id = (kept.queue.to_string(), kept.message_id.clone());
            let is_new = !external.contains(&kept.message_id) && self.seen.insert(id);
            if is_new
                && self.rng.f64() < self.options.duplicates
                && let Ok(envelope) = Envelope::parse(&kept.message, &Limits::default())
            {
                again.push(Publication {
                    message_id: kept.message_id.clone(),
                    event_type: envelope.event_type.into_owned(),
                    addressee: None,
                    message: kept.message.clone(),
                    headers: Headers::new(),
                });
            }
        }
        if !again.is_empty() {
            publisher.publish(&again).await?;
        }
        Ok(again.len())
    }

    /// Waits until queues, outbox and parked events are empty.
    async fn settle(
        &mut self,
        publisher: &mut dyn Publisher,
        external: &HashSet<String>,
        workers: &mut Child,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        progress.stage("waiting until all is settled", None);
        let (mut least, mut moved) = (u64::MAX, Instant::now());
        loop {
            self.check(workers)?;
            let repeated = self.repeat(publisher, external).await?;
            let before = self.traffic().await?;
            let mut queued = 0;
            for role in &RoleName::BUILT_IN {
                queued += self.broker.depth(role).await?.total();
            }
            let (outbox, _) = self.deployment.store.outbox_depth().await?;
            let parked = self.deployment.store.parked(None, u32::MAX).await?.len();
            let parked = u64::try_from(parked).unwrap_or(u64::MAX);
            let left = queued + outbox + parked;
            // Without traffic meanwhile, nothing moved from where one had yet to look to where one had
            // looked.
            if left == 0 && repeated == 0 && self.traffic().await? == before {
                return Ok(());
            }
            if left < least || repeated > 0 {
                (least, moved) = (left, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                return Err(Error::Unsettled {
                    seconds: PATIENCE.as_secs(),
                    queued,
                    outbox,
                    parked,
                });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The workers have not ended by themselves.
    fn check(&self, workers: &mut Child) -> Result<(), Error> {
        match workers
            .try_wait()
            .map_err(Error::io("looking after the workers"))?
        {
            None => Ok(()),
            Some(status) => Err(Error::Ended {
                status,
                log: self.log(),
            }),
        }
    }

    /// SIGTERM, after which the workers finish what they have in hand.
    async fn stop(&self, mut workers: Child) -> Result<(), Error> {
        let pid = workers
            .id()
            .and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(pid) = pid {
            let stopped = kill_process(pid, Signal::TERM);
            stopped.map_err(|error| Error::io("stopping the workers")(error.into()))?;
        }
        let status = workers
            .wait()
            .await
            .map_err(Error::io("stopping the workers"))?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::Ended {
                status,
                log: self.log(),
            })
        }
    }
}
