//! `/v1`: what a shop's own systems ask.

mod accounts;
mod asking;
mod orders;
mod schema;
mod stock;

use super::auth::{Caller, Keys};
use super::problem::Problem;
use crate::message::Limits;
use crate::store::{self, Store};
use crate::worker::Desk;
use crate::worker::inventory::InventoryRole;
use crate::worker::order::OrderRole;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::sync::Arc;
use utoipa::openapi::path::ParameterIn;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{RefOr, Required};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What the routes work with.
pub(super) struct Api {
    pub(super) keys: Arc<Keys>,
    pub(super) orders: Desk<OrderRole>,
    pub(super) inventory: Desk<InventoryRole>,
    pub(super) store: Arc<dyn Store>,
    pub(super) limits: Limits,
}

/// The routes, and their description at `/openapi.json`, which needs no key.
pub(super) fn router(api: Arc<Api>) -> Router {
    let (routes, mut description) = described().split_for_parts();
    require_what_stands_in_addresses(&mut description);
    let routes = routes
        .route_layer(middleware::from_fn_with_state(Arc::clone(&api), known))
        .with_state(api);
    let description = Arc::new(description);
    let describe = get(async move || Json(Arc::clone(&description)));
    routes.route("/openapi.json", describe)
}

/// A parameter with a schema of its own is taken for one that may be left out.
fn require_what_stands_in_addresses(description: &mut utoipa::openapi::OpenApi) {
    let paths = description.paths.paths.values_mut();
    let operations = paths.flat_map(|item| [&mut item.get, &mut item.put, &mut item.post]);
    let parameters = operations
        .flatten()
        .filter_map(|operation| operation.parameters.as_mut())
        .flatten();
    for parameter in parameters {
        if let RefOr::T(parameter) = parameter
            && parameter.parameter_in == ParameterIn::Path
        {
            parameter.required = Required::True;
        }
    }
}

fn described() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(orders::create))
        .routes(routes!(orders::read))
        .routes(routes!(orders::cancel))
        .routes(routes!(orders::ship))
        .routes(routes!(orders::complete))
        .routes(routes!(orders::refund))
        .routes(routes!(stock::read, stock::set))
        .routes(routes!(accounts::read))
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "orderonce",
        description = "Orders, stock and accounts, in which every effect happens once. \
            A POST carries an Idempotency-Key: the same key with the same body has the first answer again."
    ),
    modifiers(&Bearer)
)]
struct Description;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("key", bearer);
    }
}

/// Lets through who is known, and notes who it is for the log.
async fn known(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let caller = match api.keys.caller(request.headers()) {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(Arc::clone(&caller));
    let mut response = next.run(request).await;
    response.extensions_mut().insert::<Arc<Caller>>(caller);
    response
}

/// Reads in a task of its own: a caller that goes away must not leave a connection in the middle of it.
async fn reading<T: Send + 'static>(
    read: impl Future<Output = store::Result<T>> + Send + 'static,
) -> Result<T, Problem> {
    let read = tokio::spawn(read).await;
    match read {
        Ok(Ok(row)) => Ok(row),
        Ok(Err(error)) => {
            tracing::warn!(%error, "a request could not be answered");
            Err(Problem::unavailable("the database cannot be used now"))
        }
        Err(error) => {
            tracing::warn!(%error, "a request could not be answered");
            Err(Problem::unavailable("something went wrong here"))
        }
    }
}
