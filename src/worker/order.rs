//! The order role: what is asked of an order, and what became of its stock.

use super::order_rows::OrderRows;
use super::role::decode_typed;
use super::{Role, Ruling};
use crate::domain::event::OrderEvent;
use crate::domain::{Fingerprint, Key, RoleName, Timestamp};
use crate::message::{self, Envelope, Malformed};
use crate::store::{self, Tx};
use async_trait::async_trait;
use std::time::Duration;

/// Consumes `order.create`, `cancel`, `expire`, `ship`, `complete`, `stock.deducted` and
/// `stock.rejected`.
#[derive(Debug, Clone)]
pub struct OrderRole {
    /// How long an order may stay unpaid, unless it says so itself.
    pub pay_timeout: Duration,
}

#[async_trait]
impl Role for OrderRole {
    type Event = OrderEvent;
    type Rows = OrderRows;

    fn name(&self) -> RoleName {
        RoleName::ORDER
    }

    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<OrderEvent>, Malformed> {
        decode_typed(envelope, &self.name(), message::order_event)
    }

    fn key(&self, event: &OrderEvent) -> Key {
        event.key()
    }

    fn fingerprint(&self, event: &OrderEvent) -> Fingerprint {
        event.fingerprint()
    }

    fn subject<'e>(&self, event: &'e OrderEvent) -> &'e str {
        event.order_id().as_str()
    }

    async fn load(&self, tx: &mut dyn Tx, events: &[&OrderEvent]) -> store::Result<OrderRows> {
        OrderRows::load(tx, events).await
    }

    fn decide(
        &self,
        rows: &mut OrderRows,
        event: &OrderEvent,
        key: &Key,
        now: Timestamp,
    ) -> Ruling {
        rows.decide(event, key, now, self.pay_timeout)
    }

    async fn write(&self, tx: &mut dyn Tx, rows: OrderRows, now: Timestamp) -> store::Result<()> {
        rows.write(tx, now).await
    }
}
