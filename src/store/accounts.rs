//! `account`, `account_flow`.

use super::Result;
use crate::domain::Timestamp;
use crate::domain::account::{Account, AccountFlow, AccountId, Source};
use async_trait::async_trait;

/// An account's new row, guarded by the version that was read.
#[derive(Debug, Clone)]
pub struct AccountUpdate<'a> {
    /// The version that was read.
    pub was_version: i64,
    /// The row from now on.
    pub account: &'a Account,
}

/// What reversals took back of a credit so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreditState {
    /// The credit.
    pub credit: AccountFlow,
    /// Units taken back of it.
    pub reversed: i64,
}

/// The tables of the account role, within a transaction.
#[async_trait]
pub trait Accounts {
    /// The accounts that are there, locked in the order of their keys where the database can.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_accounts(&mut self, ids: &[&AccountId]) -> Result<Vec<Account>>;

    /// The flows with the given sources, each with what was taken back of it.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_account_flows(
        &mut self,
        sources: &[(&AccountId, &Source)],
    ) -> Result<Vec<CreditState>>;

    /// Inserts new accounts.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn insert_accounts(&mut self, now: Timestamp, accounts: &[&Account]) -> Result<()>;

    /// Keeps accounts that are not there from appearing before this transaction ends. An event that is
    /// parked until an account is there needs it: whoever inserts an account then sees what was parked, or is seen.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn hold_absent_accounts(&mut self, ids: &[&AccountId]) -> Result<()>;

    /// Updates accounts, guarded by the version that was read.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a guard fails.
    async fn update_accounts(
        &mut self,
        now: Timestamp,
        updates: &[AccountUpdate<'_>],
    ) -> Result<()>;

    /// Inserts new flows.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if an account has a flow of that source by now.
    async fn insert_account_flows(&mut self, now: Timestamp, flows: &[AccountFlow]) -> Result<()>;
}
