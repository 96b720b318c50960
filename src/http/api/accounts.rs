//! `/v1/accounts`.

use super::asking::{By, Id};
use super::schema::{Account, Accounts, OfUser};
use super::{Api, reading};
use crate::domain::UserId;
use crate::http::auth::Right;
use crate::http::problem::Problem;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Read the accounts of a user
///
/// A user who never earned anything has none.
#[utoipa::path(
    get, path = "/v1/accounts/{user_id}", tag = "accounts", operation_id = "readAccounts", security(("key" = [])),
    params(OfUser),
    responses(
        (status = 200, body = Accounts),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "The request is wrong"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "Not known now, ask again"),
    ),
)]
pub(super) async fn read(
    State(api): State<Arc<Api>>,
    by: By,
    Id(user_id): Id<UserId>,
) -> Result<Json<Accounts>, Problem> {
    by.may(Right::AccountsRead)?;
    let (store, id) = (Arc::clone(&api.store), user_id.clone());
    let accounts = reading(async move { store.accounts_of(&id).await }).await?;
    Ok(Json(Accounts {
        user_id: user_id.to_string(),
        accounts: accounts.into_iter().map(Account::from).collect(),
    }))
}
