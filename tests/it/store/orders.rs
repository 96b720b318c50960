//! `orders`, `order_line`, `order_transition`, `payment`, `refund`.

use super::fixture::{Fresh, NOW, assert_conflict, key, number, order, order_id};
use orderonce::domain::event::OrderLine;
use orderonce::domain::order::{
    Order, OrderStatus, Payment, PaymentStatus, Refund, RefundStatus, Step,
};
use orderonce::domain::{Currency, OrderId, Provider, RefundNo, SkuId, TradeNo};
use orderonce::store::{OrderUpdate, RefundUpdate, StepRow, Tx};

fn alipay() -> Provider {
    Provider::new("alipay").unwrap()
}

fn trade_no(text: &str) -> TradeNo {
    TradeNo::new(text).unwrap()
}

fn refund_no(text: &str) -> RefundNo {
    RefundNo::new(text).unwrap()
}

fn payment(number: &str, order: &str, status: PaymentStatus) -> Payment {
    Payment {
        provider: alipay(),
        trade_no: trade_no(number),
        order_id: order_id(order),
        status,
        trade_status: None,
        amount_minor: 13_912,
        currency: Currency::GBP,
    }
}

fn refund(number: &str, order: &str) -> Refund {
    Refund {
        provider: alipay(),
        refund_no: refund_no(number),
        order_id: order_id(order),
        trade_no: None,
        status: RefundStatus::Requested,
        amount_minor: 100,
        currency: Currency::GBP,
    }
}

fn line(sku: &str) -> OrderLine {
    OrderLine {
        sku_id: SkuId::new(sku).unwrap(),
        qty: 6,
        unit_price_minor: 255,
        amount_minor: 1530,
        charge: false,
    }
}

async fn load(tx: &mut dyn Tx, id: &str) -> Order {
    let mut orders = tx.load_orders(&[&order_id(id)]).await.unwrap();
    assert_eq!(orders.len(), 1);
    orders.remove(0)
}

fn from(was: &Order, new: &Order) -> (OrderStatus, i64, Order) {
    (was.status, was.version, new.clone())
}

fn paid(order: &Order) -> Order {
    Order {
        status: OrderStatus::Paid,
        version: order.version + 1,
        paid_minor: order.total_minor,
        ..order.clone()
    }
}

async fn update(
    tx: &mut dyn Tx,
    guarded: &[(OrderStatus, i64, Order)],
) -> orderonce::store::Result<()> {
    let updates: Vec<_> = guarded
        .iter()
        .map(|(was, was_version, order)| OrderUpdate {
            was: *was,
            was_version: *was_version,
            order,
        })
        .collect();
    tx.update_orders(NOW, &updates).await
}

pub(super) async fn what_was_inserted_is_loaded(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (a, b) = (order("A"), paid(&order("B")));
    tx.insert_orders(NOW, &[&a, &b]).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let ids = [&order_id("A"), &order_id("C"), &order_id("B")];
    let mut loaded = tx.load_orders(&ids).await.unwrap();
    loaded.sort_by(|a, b| a.order_id.cmp(&b.order_id));
    assert_eq!(loaded, [a, b]);
}

pub(super) async fn an_order_is_inserted_once_even_by_another_transaction(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    assert_conflict(tx.insert_orders(NOW, &[&order("A")]).await);
    tx.rollback().await.unwrap();

    let mut tx = fresh.begin().await;
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let both = tx.insert_orders(NOW, &[&order("B"), &order("A")]).await;
    assert_conflict(both);
    tx.rollback().await.unwrap();
    assert_eq!(fresh.number("SELECT count(*) FROM orders").await, 1);
}

pub(super) async fn an_order_is_loaded_once_however_often_it_is_asked_for(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    let id = order_id("A");
    assert_eq!(tx.load_orders(&[&id, &id]).await.unwrap().len(), 1);
}

pub(super) async fn an_update_writes_the_whole_row(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let was = order("A");
    tx.insert_orders(NOW, &[&was]).await.unwrap();
    let new = Order {
        refunded_minor: 12,
        pay_deadline: NOW,
        remind_at: None,
        ..paid(&was)
    };
    update(&mut *tx, &[from(&was, &new)]).await.unwrap();
    assert_eq!(load(&mut *tx, "A").await, new);
}

pub(super) async fn an_update_of_another_version_is_a_conflict(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let was = order("A");
    tx.insert_orders(NOW, &[&was]).await.unwrap();
    let guarded = [(was.status, was.version + 1, paid(&was))];
    assert_conflict(update(&mut *tx, &guarded).await);
    assert_eq!(load(&mut *tx, "A").await, was);
}

pub(super) async fn an_update_of_another_status_is_a_conflict(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let was = order("A");
    tx.insert_orders(NOW, &[&was]).await.unwrap();
    let guarded = [(OrderStatus::Closed, was.version, paid(&was))];
    assert_conflict(update(&mut *tx, &guarded).await);
    assert_eq!(load(&mut *tx, "A").await, was);
}

pub(super) async fn one_lost_guard_leaves_all_orders_as_they_were(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (a, b) = (order("A"), order("B"));
    tx.insert_orders(NOW, &[&a, &b]).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = fresh.begin().await;
    let guarded = [from(&a, &paid(&a)), (b.status, 7, paid(&b))];
    assert_conflict(update(&mut *tx, &guarded).await);
    tx.rollback().await.unwrap();
    let mut tx = fresh.begin().await;
    assert_eq!(load(&mut *tx, "A").await, a);
    assert_eq!(load(&mut *tx, "B").await, b);
}

pub(super) async fn a_version_has_one_step(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let step = |from, to, version| StepRow {
        order_id: order_id("A"),
        step: Step { from, to, version },
        key: key("A"),
    };
    let created = step(None, OrderStatus::WaitPay, 1);
    let paid = step(Some(OrderStatus::WaitPay), OrderStatus::Paid, 2);
    tx.insert_steps(NOW, &[created.clone(), paid])
        .await
        .unwrap();
    tx.savepoint().await.unwrap();
    assert_conflict(tx.insert_steps(NOW, &[created]).await);
    tx.rollback_to_savepoint().await.unwrap();
    let history = "SELECT count(*) FROM order_transition
        WHERE from_status IS NULL AND to_status = 'WAIT_PAY'
            OR from_status = 'WAIT_PAY' AND to_status = 'PAID'";
    assert_eq!(number(&mut *tx, history).await, 2);
}

pub(super) async fn notes_are_found_by_order_and_steps_are_none(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let step = |id, from, to, version, name| StepRow {
        order_id: order_id(id),
        step: Step { from, to, version },
        key: key(name),
    };
    let (wait, paid) = (OrderStatus::WaitPay, OrderStatus::Paid);
    let steps = [
        step("A", None, wait, 1, "create"),
        step("A", Some(wait), wait, 2, "note A2"),
        step("A", Some(wait), paid, 3, "pay"),
        step("A", Some(paid), paid, 4, "note A4"),
        step("B", Some(wait), wait, 2, "note B2"),
        step("C", Some(wait), wait, 2, "note C2"),
    ];
    tx.insert_steps(NOW, &steps).await.unwrap();
    let [a, b, none] = ["A", "B", "D"].map(order_id);
    let mut notes = tx.load_notes(&[&a, &b, &none]).await.unwrap();
    notes.sort_unstable();
    assert_eq!(notes, ["note A2", "note A4", "note B2"].map(key));
    assert_eq!(tx.load_notes(&[]).await.unwrap(), []);
}

pub(super) async fn a_line_number_is_used_once(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let id = order_id("A");
    let charge = OrderLine {
        charge: true,
        amount_minor: -100,
        unit_price_minor: -100,
        qty: 1,
        ..line("D")
    };
    let lines = [(&id, 1, &line("85123A")), (&id, 2, &charge)];
    tx.insert_order_lines(&lines).await.unwrap();
    tx.savepoint().await.unwrap();
    assert_conflict(tx.insert_order_lines(&lines[..1]).await);
    tx.rollback_to_savepoint().await.unwrap();
    let kept = "SELECT count(*) FROM order_line
        WHERE charge = 0 AND amount_minor = 1530 AND sku_id = '85123A'
            OR charge = 1 AND amount_minor = -100 AND unit_price_minor = -100";
    assert_eq!(number(&mut *tx, kept).await, 2);
}

pub(super) async fn a_trade_number_pays_once_whatever_the_order(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let accepted = payment("T1", "A", PaymentStatus::Accepted);
    tx.insert_payments(NOW, &[&accepted]).await.unwrap();
    let again = payment("T1", "B", PaymentStatus::Accepted);
    tx.savepoint().await.unwrap();
    assert_conflict(tx.insert_payments(NOW, &[&again]).await);
    tx.rollback_to_savepoint().await.unwrap();
    let other_provider = Payment {
        provider: Provider::new("Alipay").unwrap(),
        ..again
    };
    tx.insert_payments(NOW, &[&other_provider]).await.unwrap();
}

pub(super) async fn an_order_accepts_one_payment(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let first = payment("T1", "A", PaymentStatus::Accepted);
    tx.insert_payments(NOW, &[&first]).await.unwrap();
    let second = payment("T2", "A", PaymentStatus::Accepted);
    tx.savepoint().await.unwrap();
    assert_conflict(tx.insert_payments(NOW, &[&second]).await);
    tx.rollback_to_savepoint().await.unwrap();
    let surplus = payment("T2", "A", PaymentStatus::Surplus);
    tx.insert_payments(NOW, &[&surplus]).await.unwrap();
}

pub(super) async fn payments_are_found_by_order_and_by_number(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let a1 = Payment {
        trade_status: Some("TRADE_SUCCESS".into()),
        ..payment("T1", "A", PaymentStatus::Accepted)
    };
    let a2 = payment("T2", "A", PaymentStatus::Surplus);
    let b = payment("T3", "B", PaymentStatus::Late);
    let c = payment("T4", "C", PaymentStatus::Accepted);
    tx.insert_payments(NOW, &[&a1, &a2, &b, &c]).await.unwrap();
    let (provider, id) = (alipay(), order_id("A"));
    let (t1, t3, t9) = (trade_no("T1"), trade_no("T3"), trade_no("T9"));
    let numbers = [(&provider, &t1), (&provider, &t3), (&provider, &t9)];
    let sorted = |mut payments: Vec<Payment>| {
        payments.sort_by(|a, b| a.trade_no.cmp(&b.trade_no));
        payments
    };
    let both = tx.load_payments(&[&id], &numbers).await.unwrap();
    assert_eq!(sorted(both), [a1.clone(), a2.clone(), b.clone()]);
    let by_order = tx.load_payments(&[&id], &[]).await.unwrap();
    assert_eq!(sorted(by_order), [a1.clone(), a2]);
    let by_number = tx.load_payments(&[], &numbers).await.unwrap();
    assert_eq!(sorted(by_number), [a1, b]);
}

pub(super) async fn refunds_are_found_by_order_and_by_number(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let a = Refund {
        trade_no: Some(trade_no("T1")),
        ..refund("R1", "A")
    };
    let (b, c) = (refund("R2", "B"), refund("R3", "C"));
    tx.insert_refunds(NOW, &[&a, &b, &c]).await.unwrap();
    tx.savepoint().await.unwrap();
    assert_conflict(tx.insert_refunds(NOW, &[&refund("R2", "A")]).await);
    tx.rollback_to_savepoint().await.unwrap();
    let (provider, id) = (alipay(), order_id("A"));
    let (r1, r2) = (refund_no("R1"), refund_no("R2"));
    let numbers = [(&provider, &r1), (&provider, &r2)];
    let mut both = tx.load_refunds(&[&id], &numbers).await.unwrap();
    both.sort_by(|a, b| a.refund_no.cmp(&b.refund_no));
    assert_eq!(both, [a, b]);
}

pub(super) async fn a_refund_moves_from_the_status_that_was_read_only(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let requested = refund("R1", "A");
    tx.insert_refunds(NOW, &[&requested]).await.unwrap();
    let succeeded = Refund {
        status: RefundStatus::Succeeded,
        amount_minor: 250,
        trade_no: Some(trade_no("T1")),
        ..requested
    };
    let update = |was| RefundUpdate {
        was,
        refund: &succeeded,
    };
    let wrong = [update(RefundStatus::Failed)];
    assert_conflict(tx.update_refunds(NOW, &wrong).await);
    let right = [update(RefundStatus::Requested)];
    tx.update_refunds(NOW, &right).await.unwrap();
    let id: OrderId = order_id("A");
    let loaded = tx.load_refunds(&[&id], &[]).await.unwrap();
    assert_eq!(loaded, std::slice::from_ref(&succeeded));
    assert_conflict(tx.update_refunds(NOW, &right).await);
}

// B07: amounts never pass through a float.
pub(super) async fn amounts_reach_the_ends_of_their_range(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let largest = Order {
        total_minor: i64::MAX,
        paid_minor: i64::MAX - 1,
        refunded_minor: (1 << 53) + 1,
        version: i64::MAX,
        ..order("A")
    };
    tx.insert_orders(NOW, &[&largest]).await.unwrap();
    assert_eq!(load(&mut *tx, "A").await, largest);
    let smallest = OrderLine {
        unit_price_minor: i64::MIN,
        amount_minor: i64::MIN + 1,
        ..line("D")
    };
    tx.insert_order_lines(&[(&order_id("A"), 1, &smallest)])
        .await
        .unwrap();
    let price = "SELECT unit_price_minor FROM order_line";
    assert_eq!(number(&mut *tx, price).await, i64::MIN);
    let amount = "SELECT amount_minor FROM order_line";
    assert_eq!(number(&mut *tx, amount).await, i64::MIN + 1);
}
