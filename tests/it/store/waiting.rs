//! Two transactions at once: the second waits for the first where they meet, and sees what it left.

use super::fixture::{
    Fresh, NOW, ROLE, assert_conflict, claim, key, order, order_id, print, reservation, sku_id,
    stock, token,
};
use orderonce::domain::account::{Account, AccountId};
use orderonce::domain::order::{Order, Refund, RefundStatus};
use orderonce::domain::{AccountKind, Currency, Key, Provider, RefundNo, UserId};
use orderonce::store::{
    AccountUpdate, Claimed, Conclusion, NewParked, OrderUpdate, Prior, RefundUpdate, Result,
    StockUpdate, Store, Tx,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// InnoDB shows the same state again for as long as anybody looks more often than ten times a second, so
/// that the tests look in turn.
const LOOK: Duration = Duration::from_millis(150);
static LOOKING: Mutex<()> = Mutex::const_new(());

fn done() -> Claimed {
    Claimed::Done {
        fingerprint: print(1),
        is_expired: false,
    }
}

/// Lets `second` run beside `first`, which must make it wait, and then commits `first`.
pub(super) async fn behind<T: Send + 'static>(
    fresh: &Fresh,
    first: Box<dyn Tx>,
    second: impl Future<Output = T> + Send + 'static,
) -> T {
    let second = tokio::spawn(second);
    waits(fresh, &second).await;
    first.commit().await.unwrap();
    second.await.unwrap()
}

/// Returns once the task waits for another transaction, which it must.
async fn waits<T>(fresh: &Fresh, second: &JoinHandle<T>) {
    let Some(waiting) = fresh.waiting else {
        tokio::task::yield_now().await;
        assert!(!second.is_finished(), "it did not wait");
        return;
    };
    loop {
        let looking = LOOKING.lock().await;
        tokio::time::sleep(LOOK).await;
        if fresh.number(waiting).await > 0 {
            return;
        }
        drop(looking);
        assert!(!second.is_finished(), "it did not wait");
    }
}

/// Claims a key in a transaction of its own.
async fn claim_alone(store: Arc<dyn Store>) -> Claimed {
    let mut tx = store.begin().await.unwrap();
    let claimed = claim(&mut *tx, &key("a")).await;
    tx.commit().await.unwrap();
    claimed
}

fn conclusion<'k>(from: &'static str, to: &'static str, key: &'k Key) -> [Conclusion<'k>; 1] {
    [Conclusion {
        key,
        from,
        to,
        detail: None,
    }]
}

async fn park(tx: &mut dyn Tx) {
    let parked = NewParked {
        key: &key("parked"),
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

pub(super) async fn a_claim_is_done_if_its_rival_commits(fresh: &Fresh) {
    let mut rival = fresh.begin().await;
    assert_eq!(claim(&mut *rival, &key("a")).await, Claimed::Fresh);
    let claimed = behind(fresh, rival, claim_alone(fresh.store.clone())).await;
    assert_eq!(claimed, done());
}

pub(super) async fn a_claim_is_fresh_if_its_rival_rolls_back(fresh: &Fresh) {
    let mut rival = fresh.begin().await;
    assert_eq!(claim(&mut *rival, &key("a")).await, Claimed::Fresh);
    let second = tokio::spawn(claim_alone(fresh.store.clone()));
    waits(fresh, &second).await;
    rival.rollback().await.unwrap();
    assert_eq!(second.await.unwrap(), Claimed::Fresh);
    assert_eq!(claim_alone(fresh.store.clone()).await, done());
}

pub(super) async fn of_two_copies_of_an_open_claim_one_resumes(fresh: &Fresh) {
    let a = key("a");
    let mut tx = fresh.begin().await;
    claim(&mut *tx, &a).await;
    let dead = conclusion("applied", "dead", &a);
    tx.conclude(&ROLE, NOW, &dead).await.unwrap();
    tx.commit().await.unwrap();

    let mut first = fresh.begin().await;
    let open = Claimed::Open {
        prior: Prior::Dead,
        fingerprint: print(1),
    };
    assert_eq!(claim(&mut *first, &a).await, open);
    // From here on, before the first has written anything.
    let second = tokio::spawn(claim_alone(fresh.store.clone()));
    waits(fresh, &second).await;
    let applied = conclusion("dead", "applied", &a);
    first.conclude(&ROLE, NOW, &applied).await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), done());
}

pub(super) async fn an_order_is_changed_by_one_at_a_time(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let was = order("A");
    tx.insert_orders(NOW, &[&was]).await.unwrap();
    tx.commit().await.unwrap();
    let mut first = fresh.begin().await;
    first.load_orders(&[&was.order_id]).await.unwrap();
    let (store, id) = (fresh.store.clone(), was.order_id.clone());
    let second = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        tx.load_orders(&[&id]).await.unwrap()
    });
    let new = Order {
        version: 2,
        ..was.clone()
    };
    let update = OrderUpdate {
        was: was.status,
        was_version: 1,
        order: &new,
    };
    first.update_orders(NOW, &[update]).await.unwrap();
    let loaded = behind(fresh, first, async { second.await.unwrap() }).await;
    assert_eq!(loaded, [new]);
}

pub(super) async fn a_reservation_is_changed_by_one_at_a_time(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let was = reservation("A");
    tx.insert_reservations(NOW, &[&was]).await.unwrap();
    tx.commit().await.unwrap();
    let mut first = fresh.begin().await;
    first.load_reservations(&[&was.order_id]).await.unwrap();
    let (store, id) = (fresh.store.clone(), was.order_id.clone());
    let second = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        tx.load_reservations(&[&id]).await.unwrap()
    });
    let mut new = was.clone();
    new.version = 2;
    let update = (was.status, 1, &new);
    first.update_reservations(NOW, &[update]).await.unwrap();
    let loaded = behind(fresh, first, async { second.await.unwrap() }).await;
    assert_eq!(loaded, [new]);
}

pub(super) async fn stock_is_changed_by_one_at_a_time(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_stock(NOW, &[&stock("a", 9, 1)]).await.unwrap();
    tx.commit().await.unwrap();
    let mut first = fresh.begin().await;
    first.load_stock(&[&sku_id("a")]).await.unwrap();
    let store = fresh.store.clone();
    let second = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        tx.load_stock(&[&sku_id("a")]).await.unwrap()
    });
    let new = stock("a", 8, 2);
    let update = StockUpdate {
        was_version: 1,
        stock: &new,
    };
    first.update_stock(NOW, &[update]).await.unwrap();
    let loaded = behind(fresh, first, async { second.await.unwrap() }).await;
    assert_eq!(loaded, [new]);
}

fn points(version: i64) -> Account {
    Account {
        id: AccountId {
            user_id: UserId::new("A").unwrap(),
            kind: AccountKind::new("POINTS").unwrap(),
        },
        balance: 7,
        version,
    }
}

pub(super) async fn an_account_is_changed_by_one_at_a_time(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_accounts(NOW, &[&points(1)]).await.unwrap();
    tx.commit().await.unwrap();
    let mut first = fresh.begin().await;
    first.load_accounts(&[&points(1).id]).await.unwrap();
    let store = fresh.store.clone();
    let second = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        tx.load_accounts(&[&points(1).id]).await.unwrap()
    });
    let update = AccountUpdate {
        was_version: 1,
        account: &points(2),
    };
    first.update_accounts(NOW, &[update]).await.unwrap();
    let loaded = behind(fresh, first, async { second.await.unwrap() }).await;
    assert_eq!(loaded, [points(2)]);
}

fn refund(status: RefundStatus) -> Refund {
    Refund {
        provider: Provider::new("alipay").unwrap(),
        refund_no: RefundNo::new("R1").unwrap(),
        order_id: order_id("A"),
        trade_no: None,
        status,
        amount_minor: 100,
        currency: Currency::GBP,
    }
}

pub(super) async fn a_refund_is_changed_by_one_at_a_time(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let was = refund(RefundStatus::Requested);
    tx.insert_refunds(NOW, &[&was]).await.unwrap();
    tx.commit().await.unwrap();
    let mut first = fresh.begin().await;
    first.load_refunds(&[&order_id("A")], &[]).await.unwrap();
    let store = fresh.store.clone();
    let second = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        let Refund {
            provider,
            refund_no,
            ..
        } = refund(RefundStatus::Requested);
        let number = [(&provider, &refund_no)];
        tx.load_refunds(&[], &number).await.unwrap()
    });
    let new = refund(RefundStatus::Succeeded);
    let update = RefundUpdate {
        was: was.status,
        refund: &new,
    };
    first.update_refunds(NOW, &[update]).await.unwrap();
    let loaded = behind(fresh, first, async { second.await.unwrap() }).await;
    assert_eq!(loaded, [new]);
}

/// What an event may be parked for.
#[derive(Clone, Copy)]
enum Awaited {
    Order,
    Reservation,
    Account,
}

impl Awaited {
    /// How many there are.
    async fn load(self, tx: &mut dyn Tx) -> usize {
        match self {
            Self::Order => tx.load_orders(&[&order_id("A")]).await.unwrap().len(),
            Self::Reservation => tx.load_reservations(&[&order_id("A")]).await.unwrap().len(),
            Self::Account => tx.load_accounts(&[&points(1).id]).await.unwrap().len(),
        }
    }

    async fn hold(self, tx: &mut dyn Tx) -> Result<()> {
        match self {
            Self::Order => tx.hold_absent_orders(&[&order_id("A")]).await,
            Self::Reservation => tx.hold_absent_reservations(&[&order_id("A")]).await,
            Self::Account => tx.hold_absent_accounts(&[&points(1).id]).await,
        }
    }

    async fn insert(self, tx: &mut dyn Tx) {
        match self {
            Self::Order => tx.insert_orders(NOW, &[&order("A")]).await,
            Self::Reservation => tx.insert_reservations(NOW, &[&reservation("A")]).await,
            Self::Account => tx.insert_accounts(NOW, &[&points(1)]).await,
        }
        .unwrap();
    }

    /// Whoever creates it waits for whoever parks, and wakes what they have parked.
    async fn is_held(self, fresh: &Fresh) {
        let mut parker = fresh.begin().await;
        assert_eq!(self.load(&mut *parker).await, 0);
        self.hold(&mut *parker).await.unwrap();
        park(&mut *parker).await;
        let store = fresh.store.clone();
        let creator = async move {
            let mut tx = store.begin().await.unwrap();
            self.insert(&mut *tx).await;
            let woken = tx.wake(NOW, &[token("A")]).await.unwrap();
            tx.commit().await.unwrap();
            woken
        };
        assert_eq!(behind(fresh, parker, creator).await, 1);
        let mut tx = fresh.begin().await;
        assert_eq!(self.load(&mut *tx).await, 1);
    }

    /// Whoever parks waits for whoever creates it, and sees it or loses the race.
    async fn is_seen(self, fresh: &Fresh) {
        let mut creator = fresh.begin().await;
        self.insert(&mut *creator).await;
        let store = fresh.store.clone();
        let parker = async move {
            let mut tx = store.begin().await.unwrap();
            let is_there = self.load(&mut *tx).await == 1;
            (is_there, self.hold(&mut *tx).await)
        };
        let (is_there, held) = behind(fresh, creator, parker).await;
        if !is_there {
            assert_conflict(held);
        }
    }

    /// Nothing of it is left.
    async fn stays_absent(self, fresh: &Fresh) {
        for _ in 0..2 {
            let mut tx = fresh.begin().await;
            assert_eq!(self.load(&mut *tx).await, 0);
            self.hold(&mut *tx).await.unwrap();
            tx.commit().await.unwrap();
        }
    }
}

pub(super) async fn an_absent_order_is_held(fresh: &Fresh) {
    Awaited::Order.stays_absent(fresh).await;
    Awaited::Order.is_held(fresh).await;
}

pub(super) async fn an_absent_reservation_is_held(fresh: &Fresh) {
    Awaited::Reservation.stays_absent(fresh).await;
    Awaited::Reservation.is_held(fresh).await;
}

pub(super) async fn an_absent_account_is_held(fresh: &Fresh) {
    Awaited::Account.stays_absent(fresh).await;
    Awaited::Account.is_held(fresh).await;
}

pub(super) async fn an_order_that_appears_is_not_held(fresh: &Fresh) {
    Awaited::Order.is_seen(fresh).await;
}

pub(super) async fn a_reservation_that_appears_is_not_held(fresh: &Fresh) {
    Awaited::Reservation.is_seen(fresh).await;
}

pub(super) async fn an_account_that_appears_is_not_held(fresh: &Fresh) {
    Awaited::Account.is_seen(fresh).await;
}
