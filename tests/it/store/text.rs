//! Text goes in and comes out byte by byte, and is compared so.

use super::fixture::{Fresh, NOW, ROLE, claim, key, order_id, print, reservation, sku_id, stock};
use orderonce::domain::{Key, OrderId};
use orderonce::store::{Claimed, NewClaim, NewOutbox};
use std::collections::BTreeMap;

/// Pairs that a collation, a trailing-space rule or a normalisation would take for one.
const LOOK_ALIKE: [&str; 9] = [
    "Ab1",
    "aB1",
    "é1",
    "e\u{301}1",
    "e1",
    "M1",
    "M1 ",
    " M1",
    "ß",
];

pub(super) async fn ids_are_compared_byte_by_byte(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let rows = LOOK_ALIKE.map(|text| stock(text, 1, 1));
    tx.insert_stock(NOW, &rows.each_ref()).await.unwrap();
    let reservations = LOOK_ALIKE.map(reservation);
    tx.insert_reservations(NOW, &reservations.each_ref())
        .await
        .unwrap();
    for text in LOOK_ALIKE {
        let loaded = tx.load_stock(&[&sku_id(text)]).await.unwrap();
        assert_eq!(loaded, [stock(text, 1, 1)]);
        let loaded = tx.load_reservations(&[&order_id(text)]).await.unwrap();
        assert_eq!(loaded, [reservation(text)]);
    }
    for text in ["ab1", "E1", "M1  ", "ss", "m1"] {
        let loaded = tx.load_stock(&[&sku_id(text)]).await.unwrap();
        assert_eq!(loaded, [], "{text:?}");
    }
}

pub(super) async fn keys_are_compared_byte_by_byte(fresh: &Fresh) {
    let mut keys = LOOK_ALIKE.map(key);
    keys.sort();
    let claims = keys.each_ref().map(|key| NewClaim {
        key,
        subject: "536365",
        fingerprint: print(1),
        message_id: "m-1",
        body: None,
    });
    let mut tx = fresh.begin().await;
    let answers = tx.claim(&ROLE, NOW, &claims).await.unwrap();
    assert_eq!(answers, vec![Claimed::Fresh; keys.len()]);
}

pub(super) async fn ids_of_512_bytes_are_kept(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let long = "é".repeat(256);
    let longer_alike = format!("{}e", "é".repeat(255));
    let both = [reservation(&long), reservation(&longer_alike)];
    tx.insert_reservations(NOW, &both.each_ref()).await.unwrap();
    let id: OrderId = order_id(&long);
    assert_eq!(tx.load_reservations(&[&id]).await.unwrap(), both[..1]);
    let hashed: Key = key(&long);
    assert_eq!(claim(&mut *tx, &hashed).await, Claimed::Fresh);
    assert_eq!(claim(&mut *tx, &key(&longer_alike)).await, Claimed::Fresh);
}

pub(super) async fn quotes_emoji_and_json_are_kept(fresh: &Fresh) {
    let texts = [
        "it's \"quoted\"",
        "\\ \\u0041 \\n",
        "\u{1F4E6}\u{200D}\u{FFFD}",
        "{\"a\":[1,null]}",
        "[\"a\"]",
        "null",
        "12",
        "1e3",
        "'; DROP TABLE stock; --",
        "?1 $x :y",
    ];
    let mut tx = fresh.begin().await;
    let rows = texts.map(|text| stock(text, 1, 1));
    tx.insert_stock(NOW, &rows.each_ref()).await.unwrap();
    for row in &rows {
        let loaded = tx.load_stock(&[&row.sku_id]).await.unwrap();
        assert_eq!(loaded, std::slice::from_ref(row));
    }
}

// Identifiers hold no control characters; what a producer wrote elsewhere may.
pub(super) async fn nul_is_kept(fresh: &Fresh) {
    let text = "a\u{0}b\u{1}\u{7f}\r\n\tc";
    let mut tx = fresh.begin().await;
    let row = NewOutbox {
        aggregate: text.into(),
        addressee: None,
        event_type: text.into(),
        message_id: text.into(),
        headers: BTreeMap::from([(text.into(), text.into())]),
        message: text.into(),
    };
    tx.append(NOW, &[row]).await.unwrap();
    tx.commit().await.unwrap();
    let rows = fresh.store.outbox_head(1).await.unwrap();
    let row = &rows[0];
    assert_eq!(row.aggregate, text);
    assert_eq!(row.event_type, text);
    assert_eq!(row.message_id, text);
    assert_eq!(row.message, text.as_bytes());
    let headers = BTreeMap::from([(text.to_owned(), text.to_owned())]);
    assert_eq!(row.headers, headers);
}
