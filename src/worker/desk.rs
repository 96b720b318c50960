//! Where events are handed in by somebody who waits for what becomes of them.
//!
//! Those that come while a batch is at work share the next, as deliveries do. The work goes on when whoever
//! waits goes away: a transaction is never cut short.

use super::batch::{Asked, Request};
use super::{Error, Processor, Role, clock};
use crate::domain::{Fingerprint, Key, Layer, Outcome};
use crate::store::Store;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio_util::task::TaskTracker;

/// What became of what was handed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is in the database.
    Decided {
        /// The name of the outcome, such as `applied`.
        outcome: String,
        /// What belongs to it, such as the code of a rejection.
        detail: Option<String>,
        /// Whether it was decided when the same was asked before.
        is_repeat: bool,
    },
    /// The key of the request belongs to another one, which said something else.
    OtherRequest,
}

/// Why there is no reply. What was handed in may be handed in again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoReply {
    /// More is waiting than there is room for.
    #[error("too much is waiting already")]
    Busy,
    /// The process stops.
    #[error("the process stops")]
    Stopping,
    /// The database is away or cannot take it, and whether it has been decided is not known.
    #[error("the database could not be used: {0}")]
    Failed(String),
}

/// How a desk works.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Events in a batch, at most.
    pub batch_max: usize,
    /// Batches at work at the same time.
    pub workers: usize,
    /// Events that may wait.
    pub room: usize,
}

/// Takes events of one role. It works until it is dropped, with all its clones, and has replied to all that it
/// took.
pub struct Desk<R: Role> {
    waiting: mpsc::Sender<Waiting<R::Event>>,
}

impl<R: Role> Clone for Desk<R> {
    fn clone(&self) -> Self {
        Self {
            waiting: self.waiting.clone(),
        }
    }
}

struct Waiting<E> {
    asked: Asked<E>,
    reply: oneshot::Sender<Result<Reply, NoReply>>,
}

/// Who waits, and for the answer to which request.
type Waiter = (Option<Request>, oneshot::Sender<Result<Reply, NoReply>>);

impl<R: Role> Desk<R> {
    /// A desk whose work is done by tasks of `tasks`. `written` is told after each commit, so that the relay
    /// need not poll.
    pub fn open(
        processor: Arc<Processor<R>>,
        store: Arc<dyn Store>,
        settings: Settings,
        written: Arc<Notify>,
        tasks: &TaskTracker,
    ) -> Self {
        let (waiting, taken) = mpsc::channel(settings.room.max(1));
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..settings.workers.max(1) {
            let clerk = Clerk {
                processor: Arc::clone(&processor),
                store: Arc::clone(&store),
                batch_max: settings.batch_max.max(1),
                written: Arc::clone(&written),
                taken: Arc::clone(&taken),
            };
            tasks.spawn(clerk.run());
        }
        Self { waiting }
    }

    /// Hands in an event and waits. Dropping the future leaves the event where it is.
    ///
    /// # Errors
    /// [`NoReply`].
    pub async fn ask(&self, asked: Asked<R::Event>) -> Result<Reply, NoReply> {
        let (reply, replied) = oneshot::channel();
        let handed_in = self.waiting.try_send(Waiting { asked, reply });
        handed_in.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoReply::Busy,
            mpsc::error::TrySendError::Closed(_) => NoReply::Stopping,
        })?;
        replied.await.unwrap_or(Err(NoReply::Stopping))
    }
}

/// Works through what was handed in.
struct Clerk<R: Role> {
    processor: Arc<Processor<R>>,
    store: Arc<dyn Store>,
    batch_max: usize,
    written: Arc<Notify>,
    taken: Arc<Mutex<mpsc::Receiver<Waiting<R::Event>>>>,
}

impl<R: Role> Clerk<R> {
    async fn run(self) {
        while let Some(batch) = self.take().await {
            self.run_once(batch).await;
        }
    }

    /// Waits for the first and takes what is there; `None` once nothing can come any more.
    async fn take(&self) -> Option<Vec<Waiting<R::Event>>> {
        let mut batch = Vec::new();
        let mut taken = self.taken.lock().await;
        let count = taken.recv_many(&mut batch, self.batch_max).await;
        (count > 0).then_some(batch)
    }

    async fn run_once(&self, batch: Vec<Waiting<R::Event>>) {
        let (mut asked, mut waiting) = (Vec::new(), Vec::new());
        for one in batch {
            waiting.push((one.asked.request.clone(), one.reply));
            asked.push(one.asked);
        }
        let outcomes = self.processor.process_asked(clock::now(), asked).await;
        self.written.notify_one();
        match self.replies(&waiting, outcomes).await {
            Ok(replies) => {
                for ((_, waiting), reply) in waiting.into_iter().zip(replies) {
                    // Whoever has gone away asks again, or does not care.
                    let _ = waiting.send(reply);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "what was asked for could not be decided");
                for (_, waiting) in waiting {
                    let _ = waiting.send(Err(NoReply::Failed(error.to_string())));
                }
            }
        }
    }

    async fn replies(
        &self,
        waiting: &[Waiter],
        outcomes: Result<Vec<Outcome>, Error>,
    ) -> Result<Vec<Result<Reply, NoReply>>, Error> {
        let outcomes = outcomes?;
        let asked = waiting.iter().zip(&outcomes);
        let repeated = asked.filter_map(|((request, _), outcome)| {
            let request = request.as_ref()?;
            (*outcome == Outcome::Duplicate(Layer::Request)).then_some(&request.key)
        });
        let answers = self.store.answers(&repeated.collect::<Vec<_>>()).await?;
        let answers: HashMap<Key, (Fingerprint, Option<String>)> = answers
            .into_iter()
            .map(|answer| (answer.key, (answer.fingerprint, answer.detail)))
            .collect();
        let asked = waiting.iter().zip(&outcomes);
        let replies = asked.map(|((request, _), outcome)| match (request, outcome) {
            (Some(request), Outcome::Duplicate(Layer::Request)) => {
                match answers.get(&request.key) {
                    Some((fingerprint, _)) if *fingerprint != request.fingerprint => {
                        Ok(Reply::OtherRequest)
                    }
                    Some((_, detail)) => Ok(reply(detail.as_deref().unwrap_or("applied"), true)),
                    // Its first copy failed together with it.
                    None => Err(failed()),
                }
            }
            (_, Outcome::Retried { .. }) => Err(failed()),
            (_, outcome) => Ok(reply(&outcome.recorded(), false)),
        });
        Ok(replies.collect())
    }
}

fn failed() -> NoReply {
    NoReply::Failed("it took back what was written".to_owned())
}

/// The reply that was recorded as `name` or `name:detail`.
fn reply(recorded: &str, is_repeat: bool) -> Reply {
    let (outcome, detail) = match recorded.split_once(':') {
        Some((outcome, detail)) => (outcome, Some(detail.to_owned())),
        None => (recorded, None),
    };
    Reply::Decided {
        outcome: outcome.to_owned(),
        detail,
        is_repeat,
    }
}
