//! `stock`, `reservation`, `deduction_flow`.

use super::fixture::{
    Fresh, NOW, assert_conflict, assert_refused, key, order_id, reservation, sku_id, stock,
};
use orderonce::domain::inventory::{Flow, FlowAction, Reservation, ReservationStatus, Stock};
use orderonce::domain::{OrderId, SkuId};
use orderonce::store::{StockUpdate, Tx};

fn flow(id: &str, order: Option<&str>, sku: &str) -> Flow {
    Flow {
        flow_id: key(id),
        order_id: order.map(order_id),
        sku_id: sku_id(sku),
        action: FlowAction::Deduct,
        qty: -6,
        available_after: 94,
    }
}

async fn load(tx: &mut dyn Tx, sku: &str) -> Stock {
    let mut rows = tx.load_stock(&[&sku_id(sku)]).await.unwrap();
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

fn update(was_version: i64, stock: &Stock) -> StockUpdate<'_> {
    StockUpdate { was_version, stock }
}

pub(super) async fn what_was_inserted_is_loaded(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let deducted = reservation("A");
    let released = Reservation {
        status: ReservationStatus::Released,
        version: 2,
        ..reservation("B")
    };
    tx.insert_reservations(NOW, &[&deducted, &released])
        .await
        .unwrap();
    tx.insert_stock(NOW, &[&stock("85123A", 100, 1)])
        .await
        .unwrap();
    tx.insert_flows(
        NOW,
        &[flow("1", Some("A"), "85123A"), flow("2", None, "85123A")],
    )
    .await
    .unwrap();
    tx.commit().await.unwrap();

    let mut tx = fresh.begin().await;
    let (a, b, c) = (order_id("A"), order_id("B"), order_id("C"));
    let mut loaded = tx.load_reservations(&[&c, &b, &a, &b]).await.unwrap();
    loaded.sort_by(|a, b| a.order_id.cmp(&b.order_id));
    assert_eq!(loaded, [deducted, released]);
    let skus = [&sku_id("85123a"), &sku_id("85123A"), &sku_id("85123A")];
    let loaded = tx.load_stock(&skus).await.unwrap();
    assert_eq!(loaded, [stock("85123A", 100, 1)]);
    let loaded = tx.load_flows(&[&a], &[]).await.unwrap();
    assert_eq!(loaded, [flow("1", Some("A"), "85123A")]);
}

pub(super) async fn stock_of_another_version_is_not_written(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_stock(NOW, &[&stock("a", 100, 1)]).await.unwrap();
    let new = stock("a", 94, 2);
    assert_conflict(tx.update_stock(NOW, &[update(2, &new)]).await);
    assert_eq!(load(&mut *tx, "a").await, stock("a", 100, 1));
    tx.update_stock(NOW, &[update(1, &new)]).await.unwrap();
    assert_eq!(load(&mut *tx, "a").await, new);
    assert_conflict(tx.update_stock(NOW, &[update(1, &new)]).await);
}

pub(super) async fn one_lost_guard_leaves_all_stock_as_it_was(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_stock(NOW, &[&stock("a", 100, 1), &stock("b", 100, 1)])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let (a, b) = (stock("a", 1, 2), stock("b", 1, 2));
    assert_conflict(tx.update_stock(NOW, &[update(1, &a), update(3, &b)]).await);
    tx.rollback().await.unwrap();
    let mut tx = fresh.begin().await;
    assert_eq!(load(&mut *tx, "a").await, stock("a", 100, 1));
    assert_eq!(load(&mut *tx, "b").await, stock("b", 100, 1));
}

pub(super) async fn stock_below_zero_is_refused(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.savepoint().await.unwrap();
    assert_refused(tx.insert_stock(NOW, &[&stock("a", -1, 1)]).await);
    tx.rollback_to_savepoint().await.unwrap();
    tx.insert_stock(NOW, &[&stock("a", 0, 1)]).await.unwrap();
    let below = stock("a", -1, 2);
    assert_refused(tx.update_stock(NOW, &[update(1, &below)]).await);
}

pub(super) async fn a_reservation_is_inserted_once(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_reservations(NOW, &[&reservation("A")])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let again = [&reservation("B"), &reservation("A")];
    assert_conflict(tx.insert_reservations(NOW, &again).await);
}

pub(super) async fn a_reservation_moves_from_what_was_read_only(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_reservations(NOW, &[&reservation("A")])
        .await
        .unwrap();
    let new = Reservation {
        status: ReservationStatus::Released,
        version: 2,
        ..reservation("A")
    };
    let (deducted, rejected) = (ReservationStatus::Deducted, ReservationStatus::Rejected);
    assert_conflict(tx.update_reservations(NOW, &[(rejected, 1, &new)]).await);
    assert_conflict(tx.update_reservations(NOW, &[(deducted, 2, &new)]).await);
    tx.update_reservations(NOW, &[(deducted, 1, &new)])
        .await
        .unwrap();
    let loaded = tx.load_reservations(&[&order_id("A")]).await.unwrap();
    assert_eq!(loaded, [new]);
}

pub(super) async fn a_flow_is_inserted_once_even_by_another_transaction(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let first = flow("1", Some("A"), "a");
    tx.insert_flows(NOW, std::slice::from_ref(&first))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let same_id = flow("1", Some("B"), "b");
    assert_conflict(tx.insert_flows(NOW, &[flow("2", None, "a"), same_id]).await);
    tx.rollback().await.unwrap();
    assert_eq!(fresh.number("SELECT count(*) FROM deduction_flow").await, 1);
}

pub(super) async fn flows_are_found_by_order_and_by_id(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let flows = [
        flow("1", Some("A"), "a"),
        flow("2", Some("A"), "b"),
        flow("3", Some("B"), "a"),
        Flow {
            action: FlowAction::Adjust,
            qty: i64::MAX,
            ..flow("4", None, "a")
        },
    ];
    tx.insert_flows(NOW, &flows).await.unwrap();
    let (a, one, four) = (order_id("A"), key("1"), key("4"));
    let mut loaded = tx.load_flows(&[&a], &[&one, &four]).await.unwrap();
    loaded.sort_by(|a, b| a.flow_id.cmp(&b.flow_id));
    assert_eq!(
        loaded,
        [flows[0].clone(), flows[1].clone(), flows[3].clone()]
    );
    let by_id = tx.load_flows(&[], &[&four]).await.unwrap();
    assert_eq!(by_id, [flows[3].clone()]);
}

pub(super) async fn a_sku_has_one_row(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.insert_stock(NOW, &[&stock("a", 1, 1)]).await.unwrap();
    assert_conflict(tx.insert_stock(NOW, &[&stock("a", 1, 1)]).await);
}

pub(super) async fn a_thousand_rows_go_in_and_come_out(fresh: &Fresh) {
    let ids: Vec<OrderId> = (0..1000).map(|i| order_id(&format!("{i:04}"))).collect();
    let skus: Vec<SkuId> = (0..1000).map(|i| sku_id(&format!("{i:04}"))).collect();
    let rows: Vec<Stock> = skus.iter().map(|sku| stock(sku.as_str(), 9, 1)).collect();
    let reservations: Vec<_> = ids.iter().map(|id| reservation(id.as_str())).collect();
    let flows: Vec<Flow> = ids
        .iter()
        .map(|id| flow(id.as_str(), Some(id.as_str()), id.as_str()))
        .collect();
    let mut tx = fresh.begin().await;
    let all: Vec<_> = rows.iter().collect();
    tx.insert_stock(NOW, &all).await.unwrap();
    let all: Vec<_> = reservations.iter().collect();
    tx.insert_reservations(NOW, &all).await.unwrap();
    tx.insert_flows(NOW, &flows).await.unwrap();
    let new: Vec<_> = rows
        .iter()
        .map(|s| stock(s.sku_id.as_str(), 3, 2))
        .collect();
    let updates: Vec<_> = new.iter().map(|stock| update(1, stock)).collect();
    tx.update_stock(NOW, &updates).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = fresh.begin().await;
    let ids: Vec<_> = ids.iter().collect();
    let skus: Vec<_> = skus.iter().collect();
    let mut loaded = tx.load_stock(&skus).await.unwrap();
    loaded.sort_by(|a, b| a.sku_id.cmp(&b.sku_id));
    assert_eq!(loaded, new);
    assert_eq!(tx.load_reservations(&ids).await.unwrap().len(), 1000);
    assert_eq!(tx.load_flows(&ids, &[]).await.unwrap().len(), 1000);
}
