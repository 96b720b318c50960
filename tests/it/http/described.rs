//! The description of the API.

use super::Shop;
use super::client::Client;

#[tokio::test]
async fn the_description_names_every_route_and_needs_no_key() {
    let shop = Shop::new("").await;
    let (_serving, client) = shop.open().await;
    let description = Client::new(client.at, "").get("/openapi.json").await.body;
    assert!(
        description["openapi"].as_str().unwrap().starts_with("3.1"),
        "{description}"
    );
    let paths = description["paths"].as_object().unwrap();
    let mut routes: Vec<_> = paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap();
            methods.iter().map(move |(method, route)| {
                assert!(route["security"][0]["key"].is_array(), "{method} {path}");
                assert!(!route["summary"].as_str().unwrap().is_empty());
                format!("{method} {path}")
            })
        })
        .collect();
    routes.sort_unstable();
    assert_eq!(
        routes,
        [
            "get /v1/accounts/{user_id}",
            "get /v1/orders/{order_id}",
            "get /v1/stock/{sku_id}",
            "post /v1/orders",
            "post /v1/orders/{order_id}/cancel",
            "post /v1/orders/{order_id}/complete",
            "post /v1/orders/{order_id}/refunds",
            "post /v1/orders/{order_id}/ship",
            "put /v1/stock/{sku_id}",
        ]
    );
}
