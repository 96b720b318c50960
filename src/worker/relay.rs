//! Moves rows of the outbox to the broker.
//!
//! One relay at a time, by a lease with a fencing token, so that events of one order leave in the
//! order of their commits. A row is removed only when the broker has confirmed it; a relay that dies
//! in between publishes it again, with the same message id.

use super::lease::Held;
use super::{Point, Points, Result};
use crate::broker::{Publication, Publisher, Receipt};
use crate::domain::RoleName;
use crate::message::traceparent;
use crate::store::{OutboxRow, Store};
use crate::telemetry::trace::{Span, Traces};
use metrics::{Counter, counter};
use opentelemetry::trace::SpanKind;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The name of the relay's lease.
pub const LEASE: &str = "relay";

/// How a relay works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rows that are read and published at a time.
    pub window: usize,
    /// How long the relay owns the outbox without renewing its lease.
    pub lease: Duration,
    /// How long a row waits that the broker refused, doubled with each failure up to
    /// [`LONGEST_WAIT`].
    pub first_wait: Duration,
}

/// The longest wait of a row that the broker refuses again and again.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Five seconds before the first second try, 256 rows at a time.
impl Default for Settings {
    fn default() -> Self {
        Self {
            window: 256,
            lease: Duration::from_secs(10),
            first_wait: Duration::from_secs(1),
        }
    }
}

/// A relay.
pub struct Relay {
    store: Arc<dyn Store>,
    publisher: Box<dyn Publisher>,
    settings: Settings,
    points: Points,
    traces: Traces,
    lease: Held,
    published: Counter,
    refused: Counter,
}

/// What a run of the relay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relayed {
    /// Another relay holds the lease.
    NotOurs,
    /// Rows were published and removed, and others refused by the broker.
    Rows {
        /// Rows that left the outbox.
        published: usize,
        /// Rows that stay and wait.
        refused: usize,
    },
}

impl Relayed {
    /// Whether there may be more to do at once.
    #[must_use]
    pub fn is_busy(self) -> bool {
        match self {
            Self::NotOurs => false,
            Self::Rows { published, .. } => published > 0,
        }
    }
}

impl Relay {
    /// A relay that holds its lease as `holder`, a name that no other process has.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        publisher: Box<dyn Publisher>,
        holder: String,
        settings: Settings,
    ) -> Self {
        let lease = Held::new(Arc::clone(&store), LEASE, holder, settings.lease);
        Self {
            store,
            publisher,
            settings,
            points: Points::default(),
            traces: Traces::default(),
            lease,
            published: counter!("orderonce_relay_messages_total", "result" => "published"),
            refused: counter!("orderonce_relay_messages_total", "result" => "refused"),
        }
    }

    /// Makes a span of each publication, within the trace of its message.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// Stops at points, for tests.
    #[must_use]
    pub fn with_points(mut self, points: Points) -> Self {
        self.points = points;
        self
    }

    /// Publishes the oldest rows, up to a window of them. Must not be cancelled.
    ///
    /// # Errors
    /// [`super::Error`] if the database or the broker is away; the rows stay.
    pub async fn run_once(&mut self) -> Result<Relayed> {
        let Some(lease) = self.lease.hold().await? else {
            return Ok(Relayed::NotOurs);
        };
        let rows = self.store.outbox_head(self.settings.window).await?;
        if rows.is_empty() {
            return Ok(Relayed::Rows {
                published: 0,
                refused: 0,
            });
        }
        self.points.pass(Point::RelayRead)?;
        let messages: Vec<_> = rows.iter().map(publication).collect();
        let mut spans = self.spans(&rows);
        let receipts = self.publisher.publish(&messages).await?;
        for (span, receipt) in spans.iter_mut().zip(&receipts) {
            if let Receipt::Refused(problem) = receipt {
                span.fail(problem.clone());
            }
        }
        drop(spans);
        self.points.pass(Point::RelayPublished)?;

        let sorted = sort(&rows, receipts);
        let removed = self
            .store
            .remove_published(LEASE, lease, &sorted.confirmed)
            .await?;
        self.points.pass(Point::RelayRemoved)?;
        if removed == 0 && !sorted.confirmed.is_empty() {
            // Somebody else took over; it publishes these rows again.
            self.lease.lose();
            return Ok(Relayed::NotOurs);
        }
        self.published.increment(count(&sorted.confirmed));
        self.refused.increment(count(&sorted.refused));
        self.postpone(&rows, &sorted.refused).await?;
        Ok(Relayed::Rows {
            published: sorted.confirmed.len(),
            refused: sorted.refused.len(),
        })
    }

    /// Gives the lease back, so that another relay need not wait for its end.
    ///
    /// # Errors
    /// [`super::Error`] if the database is away.
    pub async fn close(self) -> Result<()> {
        self.lease.give_back().await
    }

    /// A span for each row, within the trace of what caused it; none while traces are off.
    fn spans(&self, rows: &[OutboxRow]) -> Vec<Span> {
        if !self.traces.is_on() {
            return Vec::new();
        }
        let span = |row: &OutboxRow| {
            let addressee = row.addressee.as_ref().map(RoleName::as_str);
            let destination = addressee.unwrap_or(&row.event_type).to_owned();
            let name = format!("publish {destination}");
            let parent = traceparent(&row.message);
            let mut span = self
                .traces
                .begin(name, SpanKind::Producer, parent.as_deref())?;
            span.set("messaging.system", self.traces.system());
            span.set("messaging.operation.name", "publish");
            span.set("messaging.operation.type", "send");
            span.set("messaging.destination.name", destination);
            span.set("messaging.message.id", row.message_id.clone());
            Some(span)
        };
        rows.iter().filter_map(span).collect()
    }

    async fn postpone(&self, rows: &[OutboxRow], refused: &[(i64, String)]) -> Result<()> {
        for (id, problem) in refused {
            let row = rows.iter().find(|row| row.id == *id);
            let failures = row.map_or(0, |row| row.failures);
            let wait = self.settings.first_wait * 2_u32.saturating_pow(failures.min(16));
            let message_id = row.map(|row| row.message_id.as_str());
            tracing::warn!(
                outbox_id = id,
                message_id,
                failures,
                problem,
                "the broker refused a message, it stays in the outbox"
            );
            let failed = [(*id, problem.clone())];
            self.store.postpone(&failed, wait.min(LONGEST_WAIT)).await?;
        }
        Ok(())
    }
}

fn count<T>(rows: &[T]) -> u64 {
    u64::try_from(rows.len()).unwrap_or(u64::MAX)
}

fn publication(row: &OutboxRow) -> Publication {
    Publication {
        message_id: row.message_id.clone(),
        event_type: row.event_type.clone(),
        addressee: row.addressee.clone(),
        message: row.message.clone().into(),
        headers: row.headers.clone(),
    }
}

struct Sorted {
    confirmed: Vec<i64>,
    refused: Vec<(i64, String)>,
}

/// Which rows may go. A confirmed row stays behind a refused one of its aggregate, and is published
/// again after it, so that consumers see the last copy of each in order.
fn sort(rows: &[OutboxRow], receipts: Vec<Receipt>) -> Sorted {
    let mut sorted = Sorted {
        confirmed: Vec::with_capacity(rows.len()),
        refused: Vec::new(),
    };
    let mut blocked = HashSet::new();
    for (row, receipt) in rows.iter().zip(receipts) {
        match receipt {
            Receipt::Refused(problem) => {
                blocked.insert(&row.aggregate);
                sorted.refused.push((row.id, problem));
            }
            Receipt::Confirmed if blocked.contains(&row.aggregate) => {}
            Receipt::Confirmed => sorted.confirmed.push(row.id),
        }
    }
    sorted
}
