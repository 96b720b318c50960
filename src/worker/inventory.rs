//! The inventory role: sets goods aside, gives them back, and counts.

use super::role::decode_typed;
use super::{Role, Ruling};
use crate::domain::event::InventoryEvent;
use crate::domain::inventory::{
    self, Flow, InventoryState, InventoryWrites, Reservation, ReservationStatus, Stock,
    adjust_flow_id,
};
use crate::domain::{Fingerprint, Key, OrderId, RoleName, SkuId, Timestamp, Verdict};
use crate::message::{self, Envelope, Malformed};
use crate::store::{self, StockUpdate, Tx};
use async_trait::async_trait;
use std::collections::{BTreeMap, HashMap};

/// Consumes `order.created`, `order.closed`, `stock.return` and `stock.adjust`.
#[derive(Debug, Clone, Copy, Default)]
pub struct InventoryRole;

/// Rows by order and SKU, with what was read of each as its guard.
#[derive(Debug, Default)]
pub struct InventoryRows {
    reservations: BTreeMap<OrderId, Slot>,
    stock: HashMap<SkuId, Stock>,
    /// Versions of the stock rows that were read.
    read: HashMap<SkuId, i64>,
    /// Flows by the id of the adjustment's flow.
    adjustments: HashMap<Key, Vec<Flow>>,
    new_flows: Vec<Flow>,
}

#[derive(Debug, Default)]
struct Slot {
    reservation: Option<Reservation>,
    /// Status and version of the row that was read.
    read: Option<(ReservationStatus, i64)>,
    changed: bool,
    /// Whether an event waits for the reservation to be there.
    awaited: bool,
    flows: Vec<Flow>,
}

#[async_trait]
impl Role for InventoryRole {
    type Event = InventoryEvent;
    type Rows = InventoryRows;

    fn name(&self) -> RoleName {
        RoleName::INVENTORY
    }

    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<InventoryEvent>, Malformed> {
        decode_typed(envelope, &self.name(), message::inventory_event)
    }

    fn key(&self, event: &InventoryEvent) -> Key {
        event.key()
    }

    fn fingerprint(&self, event: &InventoryEvent) -> Fingerprint {
        event.fingerprint()
    }

    fn subject<'e>(&self, event: &'e InventoryEvent) -> &'e str {
        event.subject()
    }

    async fn load(
        &self,
        tx: &mut dyn Tx,
        events: &[&InventoryEvent],
    ) -> store::Result<InventoryRows> {
        let mut rows = InventoryRows::default();
        rows.load_reservations(tx, events).await?;
        rows.load_flows(tx, events).await?;
        rows.load_stock(tx, events).await?;
        Ok(rows)
    }

    fn decide(
        &self,
        rows: &mut InventoryRows,
        event: &InventoryEvent,
        _key: &Key,
        _now: Timestamp,
    ) -> Ruling {
        let decision = inventory::decide(rows.state(event), event);
        let ruling = Ruling::from(&decision);
        match decision.verdict {
            Verdict::Applied => rows.apply(decision.writes),
            Verdict::Parked(_) => {
                if let Some(order_id) = event.order_id() {
                    rows.slot(order_id).awaited = true;
                }
            }
            Verdict::Duplicate | Verdict::Conflict | Verdict::Stale | Verdict::Rejected(_) => {}
        }
        ruling
    }

    async fn write(
        &self,
        tx: &mut dyn Tx,
        rows: InventoryRows,
        now: Timestamp,
    ) -> store::Result<()> {
        rows.write(tx, now).await
    }
}

impl InventoryRows {
    async fn load_reservations(
        &mut self,
        tx: &mut dyn Tx,
        events: &[&InventoryEvent],
    ) -> store::Result<()> {
        let mut ids: Vec<_> = events.iter().filter_map(|event| event.order_id()).collect();
        ids.sort_unstable();
        ids.dedup();
        for reservation in tx.load_reservations(&ids).await? {
            let slot = self.slot(&reservation.order_id);
            slot.read = Some((reservation.status, reservation.version));
            slot.reservation = Some(reservation);
        }
        Ok(())
    }

    /// Flows of orders that give something back, and of adjustments.
    async fn load_flows(
        &mut self,
        tx: &mut dyn Tx,
        events: &[&InventoryEvent],
    ) -> store::Result<()> {
        let (mut orders, mut adjustments) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                InventoryEvent::Created(_) => {}
                InventoryEvent::Closed(closed) => orders.push(&closed.order_id),
                InventoryEvent::Return(back) => orders.push(&back.order_id),
                InventoryEvent::Adjust(adjust) => adjustments.push(adjust_flow_id(adjust)),
            }
        }
        orders.sort_unstable();
        orders.dedup();
        let adjustments: Vec<_> = adjustments.iter().collect();
        for flow in tx.load_flows(&orders, &adjustments).await? {
            self.remember(flow);
        }
        Ok(())
    }

    async fn load_stock(
        &mut self,
        tx: &mut dyn Tx,
        events: &[&InventoryEvent],
    ) -> store::Result<()> {
        let mut skus: Vec<&SkuId> = Vec::new();
        for event in events {
            match event {
                InventoryEvent::Created(created) => {
                    skus.extend(created.lines.iter().map(|line| &line.sku_id));
                }
                InventoryEvent::Closed(_) => {}
                InventoryEvent::Return(back) => {
                    skus.extend(back.lines.iter().map(|line| &line.sku_id));
                }
                InventoryEvent::Adjust(adjust) => skus.push(&adjust.sku_id),
            }
        }
        let taken = self.reservations.values().flat_map(|slot| &slot.flows);
        skus.extend(taken.map(|flow| &flow.sku_id));
        skus.sort_unstable();
        skus.dedup();
        for stock in tx.load_stock(&skus).await? {
            self.read.insert(stock.sku_id.clone(), stock.version);
            self.stock.insert(stock.sku_id.clone(), stock);
        }
        Ok(())
    }

    fn slot(&mut self, order_id: &OrderId) -> &mut Slot {
        self.reservations.entry(order_id.clone()).or_default()
    }

    fn remember(&mut self, flow: Flow) {
        match &flow.order_id {
            Some(order_id) => self
                .reservations
                .entry(order_id.clone())
                .or_default()
                .flows
                .push(flow),
            None => {
                let flows = self.adjustments.entry(flow.flow_id.clone()).or_default();
                flows.push(flow);
            }
        }
    }

    fn state(&self, event: &InventoryEvent) -> InventoryState<'_> {
        let slot = event.order_id().and_then(|id| self.reservations.get(id));
        let flows = match event {
            InventoryEvent::Adjust(adjust) => self.adjustments.get(&adjust_flow_id(adjust)),
            InventoryEvent::Created(_) | InventoryEvent::Closed(_) | InventoryEvent::Return(_) => {
                slot.map(|slot| &slot.flows)
            }
        };
        InventoryState {
            reservation: slot.and_then(|slot| slot.reservation.as_ref()),
            stock: &self.stock,
            flows: flows.map_or(&[], Vec::as_slice),
        }
    }

    fn apply(&mut self, writes: InventoryWrites) {
        if let Some(reservation) = writes.reservation {
            let slot = self.slot(&reservation.order_id);
            slot.reservation = Some(reservation);
            slot.changed = true;
        }
        for flow in writes.flows {
            let stock = self
                .stock
                .entry(flow.sku_id.clone())
                .or_insert_with(|| Stock {
                    sku_id: flow.sku_id.clone(),
                    available: 0,
                    version: 0,
                });
            stock.available = flow.available_after;
            stock.version += 1;
            self.new_flows.push(flow.clone());
            self.remember(flow);
        }
    }

    async fn write(self, tx: &mut dyn Tx, now: Timestamp) -> store::Result<()> {
        let (mut inserts, mut updates) = (Vec::new(), Vec::new());
        for slot in self.reservations.values().filter(|slot| slot.changed) {
            match (&slot.reservation, slot.read) {
                (Some(reservation), None) => inserts.push(reservation),
                (Some(reservation), Some((status, version))) => {
                    updates.push((status, version, reservation));
                }
                (None, _) => {}
            }
        }
        let absent = self.reservations.iter();
        let absent = absent.filter(|(_, slot)| slot.awaited && slot.reservation.is_none());
        let absent: Vec<_> = absent.map(|(order_id, _)| order_id).collect();
        let (mut new_stock, mut stock_updates) = (Vec::new(), Vec::new());
        for stock in self.stock.values() {
            match self.read.get(&stock.sku_id) {
                None => new_stock.push(stock),
                Some(&was_version) if was_version != stock.version => {
                    stock_updates.push(StockUpdate { was_version, stock });
                }
                Some(_) => {}
            }
        }
        stock_updates.sort_unstable_by(|a, b| a.stock.sku_id.cmp(&b.stock.sku_id));
        tx.hold_absent_reservations(&absent).await?;
        tx.insert_flows(now, &self.new_flows).await?;
        tx.insert_reservations(now, &inserts).await?;
        tx.update_reservations(now, &updates).await?;
        tx.insert_stock(now, &new_stock).await?;
        tx.update_stock(now, &stock_updates).await
    }
}
