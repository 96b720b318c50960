//! `/v1/orders`.

use super::asking::{Asking, By, Id, Needs, number};
use super::schema::{Answer, Cancellation, NewOrder, NewRefund, OfOrder, Once, Order};
use super::{Api, reading};
use crate::domain::event::{Event, OrderEvent};
use crate::domain::{EventType, OrderId};
use crate::http::auth::Right;
use crate::http::problem::Problem;
use crate::message::{Outgoing, order_event};
use crate::worker::desk::Reply;
use crate::worker::{Asked, Request as Ticket};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use std::sync::Arc;

pub(super) struct Write;
pub(super) struct Fulfil;
pub(super) struct Refund;

impl Needs for Write {
    const RIGHT: Right = Right::OrdersWrite;
}

impl Needs for Fulfil {
    const RIGHT: Right = Right::OrdersFulfil;
}

/// Create an order
///
/// Answers once the order is committed. Without an order_id the order gets one that follows from the
/// Idempotency-Key. What becomes of its stock and its payment is to be read from the order.
#[utoipa::path(
    post, path = "/v1/orders", tag = "orders", operation_id = "createOrder", security(("key" = [])),
    params(Once),
    request_body = NewOrder,
    responses(
        (status = 201, body = Answer, description = "It was created"),
        (status = 200, body = Answer, description = "It was there, with the same content"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "Another order has this order_id"),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "The request is wrong"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    asking: Asking<Write>,
) -> Result<Response, Problem> {
    let fields = asking.body.fields(&api)?;
    let own = quoted(&number("ord_", &asking.ticket));
    let fields = if fields.has("order_id") {
        fields
    } else {
        fields.with("order_id", &own)?
    };
    let event = read_event(EventType::OrderCreate, &fields)?;
    let order_id = event.order_id().clone();
    let reply = ask(&api, event, asking.ticket, asking.traceparent).await?;
    let mut response = answer(&order_id, reply, StatusCode::CREATED)?;
    if response.status() == StatusCode::CREATED {
        let location = format!("/v1/orders/{}", escaped(order_id.as_str()));
        if let Ok(location) = HeaderValue::from_str(&location) {
            response.headers_mut().insert(header::LOCATION, location);
        }
    }
    Ok(response)
}

/// Read an order with its history
#[utoipa::path(
    get, path = "/v1/orders/{order_id}", tag = "orders", operation_id = "readOrder", security(("key" = [])),
    params(OfOrder),
    responses(
        (status = 200, body = Order),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "There is none"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn read(
    State(api): State<Arc<Api>>,
    by: By,
    Id(order_id): Id<OrderId>,
) -> Result<Json<Order>, Problem> {
    by.may(Right::OrdersRead)?;
    let store = Arc::clone(&api.store);
    let id = order_id.clone();
    let view = reading(async move { store.order_view(&id).await }).await?;
    match view {
        Some(view) => Ok(Json(view.into())),
        None => {
            let detail = format!("there is no order {order_id}");
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail))
        }
    }
}

/// Cancel an order
///
/// One that is paid is closed too, and its money is asked back. One that has left cannot be cancelled.
#[utoipa::path(
    post, path = "/v1/orders/{order_id}/cancel", tag = "orders", operation_id = "cancelOrder", security(("key" = [])),
    params(
        OfOrder,
        Once,
    ),
    request_body(content = Option<Cancellation>),
    responses(
        (status = 200, body = Answer, description = "It is closed, or had ended before"),
        (status = 202, body = Answer, description = "There is no such order yet; it will be cancelled when it comes"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It has been shipped"),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "The request is wrong"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Id(order_id): Id<OrderId>,
    asking: Asking<Write>,
) -> Result<Response, Problem> {
    of_order(&api, EventType::OrderCancel, &order_id, asking).await
}

/// Say that an order has left
#[utoipa::path(
    post, path = "/v1/orders/{order_id}/ship", tag = "orders", operation_id = "shipOrder", security(("key" = [])),
    params(
        OfOrder,
        Once,
    ),
    responses(
        (status = 200, body = Answer, description = "It is shipped"),
        (status = 202, body = Answer, description = "It is not paid yet; it will be shipped when it is"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It is closed or refunded"),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "The request is wrong"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn ship(
    State(api): State<Arc<Api>>,
    Id(order_id): Id<OrderId>,
    asking: Asking<Fulfil>,
) -> Result<Response, Problem> {
    of_order(&api, EventType::OrderShip, &order_id, asking).await
}

/// Say that an order has arrived and is kept
#[utoipa::path(
    post, path = "/v1/orders/{order_id}/complete", tag = "orders", operation_id = "completeOrder", security(("key" = [])),
    params(
        OfOrder,
        Once,
    ),
    responses(
        (status = 200, body = Answer, description = "It is complete"),
        (status = 202, body = Answer, description = "It is not shipped yet; it will be complete when it is"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It is closed or refunded"),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "The request is wrong"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn complete(
    State(api): State<Arc<Api>>,
    Id(order_id): Id<OrderId>,
    asking: Asking<Fulfil>,
) -> Result<Response, Problem> {
    of_order(&api, EventType::OrderComplete, &order_id, asking).await
}

impl Needs for Refund {
    const RIGHT: Right = Right::OrdersRefund;
}

/// Ask for money of an order to be given back
///
/// The refund is REQUESTED then, and `refund.requested` is published for whoever talks to the provider; it has
/// SUCCEEDED once the provider reports it. Without a refund_id the refund gets one that follows from the
/// Idempotency-Key.
#[utoipa::path(
    post, path = "/v1/orders/{order_id}/refunds", tag = "orders", operation_id = "refundOrder", security(("key" = [])),
    params(OfOrder, Once),
    request_body(content = Option<NewRefund>),
    responses(
        (status = 202, body = Answer, description = "It is asked for"),
        (status = 200, body = Answer, description = "It had been asked for"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It is not paid, or less than that is left"),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "The request is wrong"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn refund(
    State(api): State<Arc<Api>>,
    Id(order_id): Id<OrderId>,
    asking: Asking<Refund>,
) -> Result<Response, Problem> {
    let id = quoted(order_id.as_str());
    let own = quoted(&number("rf_", &asking.ticket));
    let fields = asking.body.fields(&api)?.with("order_id", &id)?;
    let fields = if fields.has("refund_id") {
        fields
    } else {
        fields.with("refund_id", &own)?
    };
    let event = read_event(EventType::OrderRefund, &fields)?;
    let reply = ask(&api, event, asking.ticket, asking.traceparent).await?;
    answer(&order_id, reply, StatusCode::ACCEPTED)
}

/// Asks something of the order in the address.
async fn of_order<R: Needs>(
    api: &Api,
    event_type: EventType,
    order_id: &OrderId,
    asking: Asking<R>,
) -> Result<Response, Problem> {
    let id = quoted(order_id.as_str());
    let fields = asking.body.fields(api)?.with("order_id", &id)?;
    let event = read_event(event_type, &fields)?;
    let reply = ask(api, event, asking.ticket, asking.traceparent).await?;
    answer(order_id, reply, StatusCode::OK)
}

fn read_event(
    event_type: EventType,
    fields: &crate::message::Fields<'_>,
) -> Result<OrderEvent, Problem> {
    match order_event(event_type, fields) {
        Some(event) => Ok(event?),
        None => Err(Problem::unavailable("the event cannot be read here")),
    }
}

async fn ask(
    api: &Api,
    event: OrderEvent,
    ticket: Ticket,
    traceparent: Option<String>,
) -> Result<Reply, Problem> {
    let asked = Asked {
        outgoing: Outgoing::from(&Event::Order(event.clone())),
        event,
        traceparent,
        request: Some(ticket),
    };
    Ok(api.orders.ask(asked).await?)
}

/// The answer to a request: the same whenever it is made again.
fn answer(order_id: &OrderId, reply: Reply, applied: StatusCode) -> Result<Response, Problem> {
    let Reply::Decided {
        outcome,
        detail,
        is_repeat,
    } = reply
    else {
        let detail = "this Idempotency-Key was used for another request; take a new one";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        return Err(Problem::new(status, "idempotency_key_reused", detail));
    };
    let mut response = match outcome.as_str() {
        "rejected" => {
            let code = detail.unwrap_or_default();
            let detail = format!(
                "order {order_id} cannot do this: {}",
                code.replace('_', " ")
            );
            Problem::new(StatusCode::CONFLICT, &code, detail).into_response()
        }
        "conflict" => {
            let detail = format!("order {order_id} is there with other content");
            Problem::new(StatusCode::CONFLICT, "conflict", detail).into_response()
        }
        _ => {
            let status = match outcome.as_str() {
                "applied" => applied,
                "parked" => StatusCode::ACCEPTED,
                _ if detail.as_deref() == Some("parked") => StatusCode::ACCEPTED,
                _ => StatusCode::OK,
            };
            let awaits = detail.filter(|_| outcome == "parked");
            let order_id = order_id.to_string();
            (
                status,
                Json(Answer {
                    order_id,
                    outcome,
                    awaits,
                }),
            )
                .into_response()
        }
    };
    if is_repeat {
        response.headers_mut().extend(replayed());
    }
    Ok(response)
}

/// Says that the answer is that of an earlier request.
fn replayed() -> HeaderMap {
    let name = HeaderName::from_static("idempotency-replayed");
    HeaderMap::from_iter([(name, HeaderValue::from_static("true"))])
}

/// A text as JSON.
fn quoted(text: &str) -> Box<RawValue> {
    // A text always serializes.
    let json = serde_json::to_string(text).unwrap_or_default();
    RawValue::from_string(json).unwrap_or_default()
}

/// An identifier for an address: everything but letters, digits and `-_.~` is escaped.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(byte.into());
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
