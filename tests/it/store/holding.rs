//! What holding a row that is not there leaves behind: nothing.

use super::fixture::{Fresh, NOW, ROLE, key, order, order_id, reservation, token};
use orderonce::domain::account::{Account, AccountId};
use orderonce::domain::{AccountKind, UserId};
use orderonce::store::{NewParked, Result, Store, Tx};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What an event can wait for.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    Order,
    Reservation,
    Account,
}

const ALL: [Awaited; 3] = [Awaited::Order, Awaited::Reservation, Awaited::Account];

fn account() -> Account {
    Account {
        id: AccountId {
            user_id: UserId::new("17850").unwrap(),
            kind: AccountKind::new("POINTS").unwrap(),
        },
        balance: 1,
        version: 1,
    }
}

impl Awaited {
    async fn is_there(self, tx: &mut dyn Tx) -> bool {
        let rows = match self {
            Self::Order => tx.load_orders(&[&order_id("A")]).await.unwrap().len(),
            Self::Reservation => tx.load_reservations(&[&order_id("A")]).await.unwrap().len(),
            Self::Account => tx.load_accounts(&[&account().id]).await.unwrap().len(),
        };
        rows > 0
    }

    async fn hold(self, tx: &mut dyn Tx) -> Result<()> {
        match self {
            Self::Order => tx.hold_absent_orders(&[&order_id("A")]).await,
            Self::Reservation => tx.hold_absent_reservations(&[&order_id("A")]).await,
            Self::Account => tx.hold_absent_accounts(&[&account().id]).await,
        }
    }

    async fn insert(self, tx: &mut dyn Tx) -> Result<()> {
        match self {
            Self::Order => tx.insert_orders(NOW, &[&order("A")]).await,
            Self::Reservation => tx.insert_reservations(NOW, &[&reservation("A")]).await,
            Self::Account => tx.insert_accounts(NOW, &[&account()]).await,
        }
    }
}

async fn park(tx: &mut dyn Tx) {
    let parked = NewParked {
        key: &key("a"),
        awaits: &token("A"),
        message_id: "m-1",
        event_type: "order.ship",
        subject: "A",
        message: "{}",
        headers: &BTreeMap::new(),
        deadline: NOW,
    };
    tx.park(&ROLE, NOW, &[parked]).await.unwrap();
}

/// Parks an event if the row is not there; returns whether it did.
async fn park_unless_there(store: Arc<dyn Store>, awaited: Awaited) -> Result<bool> {
    let mut tx = store.begin().await?;
    if awaited.is_there(&mut *tx).await {
        return Ok(false);
    }
    awaited.hold(&mut *tx).await?;
    park(&mut *tx).await;
    tx.commit().await?;
    Ok(true)
}

/// Gives the other transaction the time to end if nothing holds it up.
async fn assert_waits<T: std::fmt::Debug>(other: &mut JoinHandle<T>, awaited: Awaited) {
    let ended = timeout(Duration::from_millis(300), other).await;
    assert!(ended.is_err(), "{awaited:?}: it did not wait: {ended:?}");
}

pub(super) async fn a_row_that_was_taken_back_can_be_held(fresh: &Fresh) {
    for awaited in ALL {
        let mut creator = fresh.begin().await;
        awaited.insert(&mut *creator).await.unwrap();
        let mut parker = tokio::spawn(park_unless_there(fresh.store.clone(), awaited));
        assert_waits(&mut parker, awaited).await;
        creator.rollback().await.unwrap();
        assert_eq!(parker.await.unwrap(), Ok(true), "{awaited:?}");
    }
}

pub(super) async fn holding_a_row_leaves_nothing_behind(fresh: &Fresh) {
    for awaited in ALL {
        let mut tx = fresh.begin().await;
        awaited.hold(&mut *tx).await.unwrap();
        awaited.hold(&mut *tx).await.unwrap();
        assert!(!awaited.is_there(&mut *tx).await, "{awaited:?}");
        tx.commit().await.unwrap();
        let mut tx = fresh.begin().await;
        assert!(!awaited.is_there(&mut *tx).await, "{awaited:?}");
        awaited.hold(&mut *tx).await.unwrap();
        awaited.insert(&mut *tx).await.unwrap();
        assert!(awaited.is_there(&mut *tx).await, "{awaited:?}");
        tx.commit().await.unwrap();
    }
}
