//! `callback`.

use super::fixture::{Fresh, key};
use orderonce::domain::{Key, Timestamp};
use orderonce::store::{CallbackVerdict, NewCallback};
use std::collections::BTreeMap;
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

fn callback<'a>(
    headers: &'a BTreeMap<String, String>,
    key: &'a Key,
    subject: &'a str,
    body: &'a [u8],
) -> NewCallback<'a> {
    NewCallback {
        provider: "alipay",
        verdict: match subject {
            "" => CallbackVerdict::Refused,
            _ => CallbackVerdict::Accepted,
        },
        detail: "what \0 it says",
        subject,
        key,
        headers,
        body,
        remote: "192.0.2.1",
    }
}

pub(super) async fn what_came_is_shown_as_it_came_youngest_first(fresh: &Fresh) {
    let headers = BTreeMap::from([("x-\u{0}".to_owned(), "é \u{0}".to_owned())]);
    let (first, second) = (key("first"), key("second"));
    let bytes: Vec<u8> = (0..=255).collect();
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    tx.keep_callbacks(now, &[]).await.unwrap();
    let set = [
        callback(&headers, &first, "O1", &bytes),
        callback(&headers, &second, "", b""),
        callback(&headers, &first, "O2", b"3"),
    ];
    tx.keep_callbacks(now, &set).await.unwrap();
    tx.commit().await.unwrap();

    let list = async |about, verdict, limit| {
        let listed = fresh.store.callbacks(about, verdict, limit).await.unwrap();
        listed
            .into_iter()
            .map(|row| row.subject)
            .collect::<Vec<_>>()
    };
    assert_eq!(list(None, None, 100).await, ["O2", "", "O1"]);
    assert_eq!(list(None, None, 2).await, ["O2", ""]);
    let refused = Some(CallbackVerdict::Refused);
    assert_eq!(list(None, refused, 100).await, [""]);
    assert_eq!(list(Some("O1"), None, 100).await, ["O1"]);
    assert!(list(Some("O1"), refused, 100).await.is_empty());
    assert!(list(Some("O3"), None, 100).await.is_empty());

    let about = fresh.store.callbacks(Some("O1"), None, 1).await.unwrap();
    let shown = fresh.store.callback(about[0].id).await.unwrap().unwrap();
    assert_eq!(shown, about[0]);
    assert_eq!((shown.provider.as_str(), &shown.body), ("alipay", &bytes));
    assert_eq!(
        (shown.verdict, &shown.key),
        (CallbackVerdict::Accepted, &first)
    );
    assert_eq!((&shown.headers, shown.received_at), (&headers, now));
    assert_eq!(shown.remote, "192.0.2.1");
    // Where a text holds no NUL, a sign stands in its place.
    assert!(shown.detail.starts_with("what ") && shown.detail.ends_with(" it says"));
    assert_eq!(fresh.store.callback(-1).await.unwrap(), None);
}

pub(super) async fn the_oldest_are_removed_after_their_time(fresh: &Fresh) {
    let headers = BTreeMap::new();
    let key = key("k");
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    for (days, body) in [(1, b"1"), (3, b"3"), (2, b"2"), (0, b"0")] {
        let at: Timestamp = now.minus(days * DAY);
        let set = [callback(&headers, &key, "O1", body)];
        tx.keep_callbacks(at, &set).await.unwrap();
    }
    tx.commit().await.unwrap();
    let left = async || {
        let rows = fresh.store.callbacks(None, None, 100).await.unwrap();
        let bodies = rows.into_iter().map(|row| row.body).collect::<Vec<_>>();
        String::from_utf8(bodies.concat()).unwrap()
    };
    assert_eq!(fresh.store.remove_callbacks(DAY, 1).await.unwrap(), 1);
    assert_eq!(left().await, "021");
    assert_eq!(fresh.store.remove_callbacks(DAY, 100).await.unwrap(), 2);
    assert_eq!(left().await, "0");
    assert_eq!(fresh.store.remove_callbacks(DAY, 100).await.unwrap(), 0);
}
