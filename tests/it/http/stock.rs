//! Stock is set by whoever has seen its version.

use super::Shop;
use serde_json::json;

#[tokio::test]
async fn stock_is_set_by_the_version_that_was_read() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let path = "/v1/stock/S%201";
    client.get(path).await.is_problem(404, "not_found");
    let made = client
        .put(path, ("if-none-match", "*"), &json!({"available": 5}))
        .await;
    assert_eq!(
        (made.status, &made.body),
        (200, &json!({"sku_id": "S 1", "available": 5, "version": 1}))
    );
    let read = client.get(path).await;
    assert_eq!(
        (&read.body, &read.headers["etag"]),
        (&made.body, &made.headers["etag"])
    );
    let set = client
        .put(
            path,
            ("if-match", "\"1\""),
            &json!({"available": 7, "reason": "counted"}),
        )
        .await;
    assert_eq!(
        (set.status, &set.headers["etag"].to_str().unwrap()),
        (200, &"\"2\"")
    );

    for header in [("if-match", "\"1\""), ("if-none-match", "*")] {
        let late = client.put(path, header, &json!({"available": 9})).await;
        late.is_problem(412, "version_mismatch");
        let seen = if header.0 == "if-match" { 1 } else { 0 };
        assert_eq!(
            (&late.body["expected_version"], &late.body["version"]),
            (&json!(seen), &json!(2))
        );
    }
    assert_eq!(client.get(path).await.body["available"], 7);
    let early = client
        .put(
            "/v1/stock/S2",
            ("if-match", "\"1\""),
            &json!({"available": 9}),
        )
        .await;
    early.is_problem(412, "version_mismatch");
    assert_eq!(early.body["version"], 0);
}

#[tokio::test]
async fn of_many_who_saw_one_version_one_sets_the_stock() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    client
        .put(
            "/v1/stock/S1",
            ("if-none-match", "*"),
            &json!({"available": 0}),
        )
        .await;
    let mut setting = tokio::task::JoinSet::new();
    for level in 1..=20 {
        let client = client.clone();
        setting.spawn(async move {
            let set = client
                .put(
                    "/v1/stock/S1",
                    ("if-match", "\"1\""),
                    &json!({"available": level}),
                )
                .await;
            (level, set.status)
        });
    }
    let answers = setting.join_all().await;
    let won: Vec<_> = answers
        .iter()
        .filter(|(_, status)| *status == 200)
        .collect();
    assert_eq!(won.len(), 1, "{answers:?}");
    assert!(
        answers
            .iter()
            .all(|(_, status)| [200, 412].contains(status))
    );
    let read = client.get("/v1/stock/S1").await.body;
    assert_eq!(
        (&read["available"], &read["version"]),
        (&json!(won[0].0), &json!(2))
    );
    shop.site.reconciles();
}

#[tokio::test]
async fn stock_is_not_set_blindly() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let json = [("content-type", "application/json")];
    let blind = client
        .send("PUT", "/v1/stock/S1", &json, r#"{"available":1}"#)
        .await;
    blind.is_problem(428, "precondition_required");
    for (body, code) in [
        (json!({"available": -1}), "out_of_range"),
        (json!({"available": 1.5}), "wrong_type"),
        (json!({}), "missing_field"),
        (json!([]), "wrong_type"),
    ] {
        let wrong = client
            .put("/v1/stock/S1", ("if-none-match", "*"), &body)
            .await;
        wrong.is_problem(422, code);
    }
    client
        .put("/v1/stock/S1", ("if-match", "1"), &json!({"available": 1}))
        .await
        .is_problem(400, "if_match");
    client
        .get("/v1/stock/S1")
        .await
        .is_problem(404, "not_found");
}
