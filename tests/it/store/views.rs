//! What clients read.

use super::fixture::{Fresh, NOW, ROLE, key, order, order_id, print, reservation, sku_id, stock};
use orderonce::domain::account::{Account, AccountFlow, AccountId, Source};
use orderonce::domain::event::OrderLine;
use orderonce::domain::order::{
    Order, OrderStatus, Payment, PaymentStatus, Refund, RefundStatus, Step,
};
use orderonce::domain::{
    AccountKind, Currency, Provider, RefundNo, RoleName, SourceId, SourceType, TradeNo, UserId,
};
use orderonce::store::{Conclusion, NewClaim, Recorded, StepRow};

fn line(sku: &str, charge: bool) -> OrderLine {
    OrderLine {
        sku_id: sku_id(sku),
        qty: 6,
        unit_price_minor: 255,
        amount_minor: 1530,
        charge,
    }
}

pub(super) async fn an_order_is_read_with_all_that_belongs_to_it(fresh: &Fresh) {
    let (id, other) = (order_id("O1"), order_id("O2"));
    let provider = Provider::new("alipay").unwrap();
    let paid = Order {
        status: OrderStatus::Paid,
        version: 2,
        paid_minor: 13_912,
        refunded_minor: 100,
        ..order("O1")
    };
    let payment = |number: &str, trade_status: Option<&str>| Payment {
        provider: provider.clone(),
        trade_no: TradeNo::new(number).unwrap(),
        order_id: id.clone(),
        status: match trade_status {
            Some(_) => PaymentStatus::Accepted,
            None => PaymentStatus::Surplus,
        },
        trade_status: trade_status.map(str::to_owned),
        amount_minor: 13_912,
        currency: Currency::GBP,
    };
    let refund = Refund {
        provider: provider.clone(),
        refund_no: RefundNo::new("R1").unwrap(),
        order_id: id.clone(),
        trade_no: Some(TradeNo::new("T1").unwrap()),
        status: RefundStatus::Succeeded,
        amount_minor: 100,
        currency: Currency::GBP,
    };
    let step = |version, from: Option<OrderStatus>, to| StepRow {
        order_id: id.clone(),
        step: Step { from, to, version },
        key: key(&version.to_string()),
    };
    let points = AccountId {
        user_id: UserId::new("17850").unwrap(),
        kind: AccountKind::new("POINTS").unwrap(),
    };
    let earned = AccountFlow {
        account: points.clone(),
        source: Source {
            source_type: SourceType::new("ORDER").unwrap(),
            source_id: SourceId::new("O1").unwrap(),
        },
        reverses: None,
        amount: 139,
        balance_after: 139,
    };
    let account = Account {
        id: points.clone(),
        balance: 139,
        version: 1,
    };
    let steps = [
        step(1, None, OrderStatus::WaitPay),
        step(2, Some(OrderStatus::WaitPay), OrderStatus::Paid),
    ];
    let lines = [line("B", false), line("A", true)];
    let of_both = [
        (&id, 1, &lines[0]),
        (&id, 2, &lines[1]),
        (&other, 1, &lines[0]),
    ];
    let payments = [payment("T1", Some("TRADE_SUCCESS")), payment("T2", None)];

    let mut tx = fresh.begin().await;
    tx.insert_orders(NOW, &[&paid, &order("O2")]).await.unwrap();
    tx.insert_order_lines(&of_both).await.unwrap();
    tx.insert_payments(NOW, &[&payments[0], &payments[1]])
        .await
        .unwrap();
    tx.insert_refunds(NOW, &[&refund]).await.unwrap();
    tx.insert_steps(NOW, &steps).await.unwrap();
    tx.insert_reservations(NOW, &[&reservation("O1")])
        .await
        .unwrap();
    tx.insert_accounts(NOW, &[&account]).await.unwrap();
    tx.insert_account_flows(NOW, &[earned]).await.unwrap();
    tx.commit().await.unwrap();

    let view = fresh.store.order_view(&id).await.unwrap().unwrap();
    assert_eq!(view.summary.order_id, id);
    assert_eq!(view.summary.status, OrderStatus::Paid);
    assert_eq!(
        (view.summary.paid_minor, view.summary.refunded_minor),
        (13_912, 100)
    );
    assert_eq!(view.summary.earned, [(points.kind, 139)]);
    assert_eq!(view.lines, lines);
    assert_eq!(view.payments, payments);
    assert_eq!(view.refunds, [refund]);
    let history: Vec<_> = { view.history.iter() }
        .map(|past| (past.step.clone(), past.key.clone(), past.at))
        .collect();
    let expected = steps.map(|row| (row.step, row.key, NOW));
    assert_eq!(history, expected);
    let bare = fresh.store.order_view(&other).await.unwrap().unwrap();
    assert_eq!((bare.lines.len(), bare.payments.len()), (1, 0));
    let nothing = fresh.store.order_view(&order_id("O3")).await.unwrap();
    assert_eq!(nothing, None);
}

pub(super) async fn stock_and_accounts_are_read(fresh: &Fresh) {
    let user = UserId::new("U1").unwrap();
    let account = |user: &UserId, kind: &str, balance| Account {
        id: AccountId {
            user_id: user.clone(),
            kind: AccountKind::new(kind).unwrap(),
        },
        balance,
        version: 3,
    };
    let (points, balance) = (account(&user, "POINTS", 5), account(&user, "BALANCE", 7));
    let another = account(&UserId::new("U2").unwrap(), "POINTS", 9);
    let mut tx = fresh.begin().await;
    tx.insert_stock(NOW, &[&stock("A", 4, 2)]).await.unwrap();
    tx.insert_accounts(NOW, &[&points, &balance, &another])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let read = fresh.store.stock_of(&sku_id("A")).await.unwrap();
    assert_eq!(read, Some(stock("A", 4, 2)));
    assert_eq!(fresh.store.stock_of(&sku_id("a")).await.unwrap(), None);
    let read = fresh.store.accounts_of(&user).await.unwrap();
    assert_eq!(read, [balance, points]);
    let nobody = UserId::new("U3").unwrap();
    assert!(fresh.store.accounts_of(&nobody).await.unwrap().is_empty());
}

pub(super) async fn the_answers_to_requests_are_read_and_those_of_roles_are_not(fresh: &Fresh) {
    let [asked, rejected, unknown] = ["asked", "rejected", "unknown"].map(key);
    let claim = |key, byte| NewClaim {
        key,
        subject: "O1",
        fingerprint: print(byte),
        message_id: "m",
        body: None,
    };
    let mut tx = fresh.begin().await;
    let requests = [claim(&asked, 1), claim(&rejected, 2)];
    tx.claim(&RoleName::API, NOW, &requests).await.unwrap();
    tx.claim(&ROLE, NOW, &[claim(&unknown, 3)]).await.unwrap();
    let answer = Conclusion {
        key: &rejected,
        from: "applied",
        to: "applied",
        detail: Some("rejected:order_closed".into()),
    };
    tx.conclude(&RoleName::API, NOW, &[answer]).await.unwrap();
    tx.commit().await.unwrap();
    let keys = [&asked, &unknown, &rejected];
    let mut answers = fresh.store.answers(&keys).await.unwrap();
    answers.sort_by(|a, b| a.key.cmp(&b.key));
    let recorded = |key: &_, byte, detail: Option<&str>| Recorded {
        key: Clone::clone(key),
        fingerprint: print(byte),
        detail: detail.map(str::to_owned),
    };
    let expected = [
        recorded(&asked, 1, None),
        recorded(&rejected, 2, Some("rejected:order_closed")),
    ];
    assert_eq!(answers, expected);
    assert!(fresh.store.answers(&[]).await.unwrap().is_empty());
}
