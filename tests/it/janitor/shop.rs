//! The order, payment and inventory roles on a store, without queues: what they emit is handed on by hand.

use crate::store::fixture::Fresh;
use crate::support::{PAY_TIMEOUT, create, delivery, envelope, order_role, outcomes};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use orderonce::broker::{self, Broker, Consumer, Delivery, Depth, Publisher, Tag};
use orderonce::domain::RoleName;
use orderonce::store::Store;
use orderonce::worker::inventory::InventoryRole;
use orderonce::worker::janitor::{Janitor, LEASE};
use orderonce::worker::order::OrderRole;
use orderonce::worker::payment::PaymentRole;
use orderonce::worker::{Processor, Role, Settings};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long before its end somebody is reminded of an order.
pub(crate) const REMIND_BEFORE: Duration = Duration::from_secs(300);

/// Orders that are created at a time.
const BATCH: usize = 250;

pub(crate) fn processor<R: Role>(fresh: &Fresh, role: R) -> Processor<R> {
    let settings = Settings {
        redecide: 20,
        ..Settings::default()
    };
    Processor::new(role, Arc::clone(&fresh.store), settings)
}

pub(crate) fn orders(fresh: &Fresh) -> Processor<OrderRole> {
    let role = OrderRole {
        remind_before: Some(REMIND_BEFORE),
        ..OrderRole::new(PAY_TIMEOUT)
    };
    processor(fresh, role)
}

pub(crate) fn payments(fresh: &Fresh) -> Processor<PaymentRole> {
    processor(fresh, PaymentRole::new(PAY_TIMEOUT))
}

/// A janitor without a lease that takes up to `batch` of each thing at a time, at a broker that is not asked
/// for much.
pub(crate) fn janitor(fresh: &Fresh, batch: u32) -> Janitor {
    janitor_at(fresh, Arc::new(Crashes::default()), batch)
}

pub(crate) fn janitor_at(fresh: &Fresh, broker: Arc<Crashes>, batch: u32) -> Janitor {
    let orders = Arc::new(orders(fresh));
    let roles = RoleName::BUILT_IN.to_vec();
    Janitor::new(Arc::clone(&fresh.store), broker, orders, roles, batch)
}

/// A delivery of an event under the message id `id`.
pub(crate) fn event(id: &str, event_type: &str, data: &Value) -> Delivery {
    delivery(envelope(id, event_type, data))
}

/// Processes deliveries; fails unless all are applied.
pub(crate) async fn apply<R: Role>(processor: &Processor<R>, deliveries: &[Delivery]) {
    let processed = processor.process(deliveries).await;
    assert!(processed.stopped.is_none(), "{:?}", processed.stopped);
    let outcomes = outcomes(&processed.settled);
    assert_eq!(outcomes, vec!["applied"; deliveries.len()]);
}

/// Stock of SKU `A` for orders of one unit each, the orders, and their goods set aside.
pub(crate) async fn sell(fresh: &Fresh, order_ids: &[String]) {
    let opening = format!("open-{}", order_ids[0]);
    let adjust = json!({"adjustment_id": opening, "sku_id": "A", "change": order_ids.len()});
    let adjust = event(&opening, "stock.adjust", &adjust);
    apply(&processor(fresh, InventoryRole), &[adjust]).await;
    // Nobody is reminded of them.
    let orders = processor(fresh, order_role());
    for order_ids in order_ids.chunks(BATCH) {
        let create = |id: &String| event(id, "order.create", &create(id, &[("A", 1)]));
        let creates: Vec<_> = order_ids.iter().map(create).collect();
        apply(&orders, &creates).await;
    }
    hand_on(fresh).await;
}

/// Empties the outbox and gives the inventory what is its own. Returns the types of what was about each order.
pub(crate) async fn hand_on(fresh: &Fresh) -> BTreeMap<String, Vec<String>> {
    let inventory = processor(fresh, InventoryRole);
    let relay = fresh.store.lease("relay", "test", Duration::from_secs(60));
    let relay = relay.await.unwrap().unwrap();
    let mut emitted = BTreeMap::<String, Vec<String>>::new();
    loop {
        let rows = fresh.store.outbox_head(BATCH).await.unwrap();
        if rows.is_empty() {
            return emitted;
        }
        let of_inventory = |event_type: &str| {
            let own = ["order.created", "order.closed"];
            own.contains(&event_type)
        };
        let own = rows.iter().filter(|row| of_inventory(&row.event_type));
        let own = own.map(|row| Delivery {
            message: row.message.clone().into(),
            ..delivery(String::new())
        });
        apply(&inventory, &own.collect::<Vec<_>>()).await;
        let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
        let removed = fresh.store.remove_published("relay", relay, &ids).await;
        assert_eq!(removed, Ok(u64::try_from(ids.len()).unwrap()));
        for row in rows {
            let types = emitted.entry(row.aggregate).or_default();
            types.push(row.event_type);
        }
    }
}

/// Lets the janitor `b` take over the lease of the janitor `a`.
pub(crate) async fn take_over(store: Arc<dyn Store>) {
    const LONG: Duration = Duration::from_mins(10);
    let held = store.lease(LEASE, "a", LONG).await.unwrap();
    store.give_back_lease(LEASE, held.unwrap()).await.unwrap();
    assert!(store.lease(LEASE, "b", LONG).await.unwrap().is_some());
}

/// A broker with nothing but messages that seem to kill the order role, until they are forgotten.
#[derive(Default)]
pub(crate) struct Crashes {
    pub(crate) left: Mutex<Vec<Delivery>>,
    /// How often it was told to let go what was taken.
    pub(crate) put_back: Mutex<usize>,
    /// What happens once the messages are taken.
    pub(crate) then: Mutex<Option<BoxFuture<'static, ()>>>,
}

#[async_trait]
impl Broker for Crashes {
    async fn consumer(&self, role: &RoleName, _: usize) -> broker::Result<Box<dyn Consumer>> {
        Err(broker::Error::UnknownQueue(role.clone()))
    }

    async fn publisher(&self) -> broker::Result<Box<dyn Publisher>> {
        Err(broker::Error::Unavailable("it takes nothing".to_owned()))
    }

    async fn crashed(&self, role: &RoleName, max: usize) -> broker::Result<Vec<Delivery>> {
        if *role != RoleName::ORDER {
            return Ok(Vec::new());
        }
        let left = self.left.lock().unwrap().clone();
        let taken = left.into_iter().take(max).collect();
        let then = self.then.lock().unwrap().take();
        if let Some(then) = then {
            then.await;
        }
        Ok(taken)
    }

    async fn put_back_crashed(&self, _: &RoleName) -> broker::Result<()> {
        *self.put_back.lock().unwrap() += 1;
        Ok(())
    }

    async fn forget_crashed(&self, _: &RoleName, tags: &[Tag]) -> broker::Result<()> {
        let mut left = self.left.lock().unwrap();
        left.retain(|delivery| !tags.contains(&delivery.tag));
        Ok(())
    }

    async fn depth(&self, _: &RoleName) -> broker::Result<Depth> {
        Ok(Depth::default())
    }
}
