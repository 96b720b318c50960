//! `/v1/stock`.

use super::asking::{Body, By, Id};
use super::schema::{NewStock, OfSku, Seen, Stock};
use super::{Api, reading};
use crate::domain::event::{Adjustment, Event, InventoryEvent, MAX_QTY, StockAdjust};
use crate::domain::{AdjustmentId, Rejection, SkuId};
use crate::http::auth::Right;
use crate::http::problem::Problem;
use crate::message::Outgoing;
use crate::store::Store;
use crate::telemetry::trace::Passed;
use crate::worker::Asked;
use crate::worker::desk::Reply;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::Arc;

/// Read the stock of a SKU
///
/// The ETag is its version.
#[utoipa::path(
    get, path = "/v1/stock/{sku_id}", tag = "stock", operation_id = "readStock", security(("key" = [])),
    params(OfSku),
    responses(
        (status = 200, body = Stock, headers(("ETag" = String))),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "There never was any"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn read(
    State(api): State<Arc<Api>>,
    by: By,
    Id(sku_id): Id<SkuId>,
) -> Result<Response, Problem> {
    by.may(Right::StockRead)?;
    match stock(&api, &sku_id).await? {
        Some(stock) => Ok(stock.into_response()),
        None => {
            let detail = format!("there never was any stock of {sku_id}");
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail))
        }
    }
}

/// Set the stock of a SKU
///
/// If-Match is the ETag that was read, so that no change in between is lost; If-None-Match: * for a SKU that
/// never had any stock.
#[utoipa::path(
    put, path = "/v1/stock/{sku_id}", tag = "stock", operation_id = "setStock", security(("key" = [])),
    params(
        OfSku,
        Seen,
    ),
    request_body = NewStock,
    responses(
        (status = 200, body = Stock, headers(("ETag" = String)), description = "It is set"),
        (status = 412, body = Problem, content_type = "application/problem+json", description = "It has another version: both are told"),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "The request is wrong"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn set(
    State(api): State<Arc<Api>>,
    by: By,
    Id(sku_id): Id<SkuId>,
    headers: HeaderMap,
    passed: Option<Extension<Passed>>,
    body: Body,
) -> Result<Response, Problem> {
    by.may(Right::StockWrite)?;
    let expected = expected_version(&headers)?;
    let fields = body.fields(&api)?;
    let available = fields.integer("available", 0..=MAX_QTY)?;
    // The version makes it happen once; the number only tells one try from another.
    let adjustment_id = format!("http-{:032x}", fastrand::u128(..));
    let event = InventoryEvent::Adjust(StockAdjust {
        adjustment_id: AdjustmentId::literal(&adjustment_id),
        sku_id: sku_id.clone(),
        adjustment: Adjustment::Set(available),
        version: Some(expected),
        reason: fields.remark("reason")?,
    });
    let asked = Asked {
        outgoing: Outgoing::from(&Event::Inventory(event.clone())),
        event,
        traceparent: passed.map(|Extension(Passed(traceparent))| traceparent),
        request: None,
    };
    match api.inventory.ask(asked).await? {
        Reply::Decided { outcome, .. } if outcome == "applied" => {
            let version = expected.saturating_add(1);
            let sku_id = sku_id.to_string();
            Ok(Stock {
                sku_id,
                available,
                version,
            }
            .into_response())
        }
        Reply::Decided { detail, .. } => {
            let code = detail.unwrap_or_default();
            if code != Rejection::VersionMismatch.to_string() {
                let detail = format!(
                    "the stock of {sku_id} cannot be set: {}",
                    code.replace('_', " ")
                );
                return Err(Problem::new(StatusCode::CONFLICT, &code, detail));
            }
            let found = stock(&api, &sku_id).await?.map_or(0, |stock| stock.version);
            let detail =
                format!("the stock of {sku_id} has version {found}, not {expected}; read it again");
            Err(Problem::new(StatusCode::PRECONDITION_FAILED, &code, detail)
                .with_versions(expected, found))
        }
        Reply::OtherRequest => Err(Problem::unavailable("the request was taken for another")),
    }
}

async fn stock(api: &Api, sku_id: &SkuId) -> Result<Option<Stock>, Problem> {
    let (store, sku_id): (Arc<dyn Store>, _) = (Arc::clone(&api.store), sku_id.clone());
    let stock = reading(async move { store.stock_of(&sku_id).await }).await?;
    Ok(stock.map(Stock::from))
}

/// The version that the caller saw; 0 if it saw none.
fn expected_version(headers: &HeaderMap) -> Result<i64, Problem> {
    let given = |name| headers.get_all(name).iter().collect::<Vec<_>>();
    let number = |tag: &HeaderValue| {
        let tag = tag
            .to_str()
            .ok()?
            .trim()
            .strip_prefix('"')?
            .strip_suffix('"')?;
        let digits = tag.bytes().all(|byte| byte.is_ascii_digit());
        tag.parse::<i64>()
            .ok()
            .filter(|_| digits && !tag.starts_with('0'))
    };
    match (
        &given(header::IF_MATCH)[..],
        &given(header::IF_NONE_MATCH)[..],
    ) {
        ([tag], []) => number(tag).ok_or_else(|| {
            let detail = "expected If-Match with one ETag as it was read, such as \"5\"";
            Problem::new(StatusCode::BAD_REQUEST, "if_match", detail)
        }),
        ([], [any]) if any.as_bytes() == b"*" => Ok(0),
        ([], []) => {
            let detail =
                "expected If-Match with the ETag that was read, or If-None-Match: * for a new SKU";
            let status = StatusCode::PRECONDITION_REQUIRED;
            Err(Problem::new(status, "precondition_required", detail))
        }
        _ => {
            let detail = "expected If-Match with one ETag, or If-None-Match: *, not both";
            Err(Problem::new(StatusCode::BAD_REQUEST, "if_match", detail))
        }
    }
}

impl IntoResponse for Stock {
    fn into_response(self) -> Response {
        let version = HeaderValue::from_str(&format!("\"{}\"", self.version));
        let mut response = Json(self).into_response();
        if let Ok(version) = version {
            response.headers_mut().insert(header::ETAG, version);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_expected_in_one_way_only() {
        let expected = |given: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in given {
                headers.append(*name, value.parse().unwrap());
            }
            expected_version(&headers)
        };
        assert_eq!(expected(&[("if-match", "\"5\"")]), Ok(5));
        assert_eq!(expected(&[("if-none-match", "*")]), Ok(0));
        for wrong in [
            "5",
            "W/\"5\"",
            "*",
            "\"05\"",
            "\"+5\"",
            "\"5\", \"6\"",
            "\"\"",
            "\"99999999999999999999\"",
        ] {
            assert!(expected(&[("if-match", wrong)]).is_err(), "{wrong}");
        }
        assert!(expected(&[]).is_err());
        assert!(expected(&[("if-match", "\"5\""), ("if-match", "\"6\"")]).is_err());
        assert!(expected(&[("if-match", "\"5\""), ("if-none-match", "*")]).is_err());
        assert!(expected(&[("if-none-match", "\"5\"")]).is_err());
    }
}
