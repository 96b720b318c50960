//! `stock`, `reservation`, `deduction_flow`.

use super::Result;
use crate::domain::inventory::{Flow, Reservation, ReservationStatus, Stock};
use crate::domain::{Key, OrderId, SkuId, Timestamp};
use async_trait::async_trait;

/// A SKU's new row, guarded by the version that was read.
#[derive(Debug, Clone)]
pub struct StockUpdate<'a> {
    /// The version that was read.
    pub was_version: i64,
    /// The row from now on.
    pub stock: &'a Stock,
}

/// The tables of the inventory role, within a transaction.
#[async_trait]
pub trait Inventory {
    /// The reservations that are there, locked in the order of their ids where the database can.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_reservations(&mut self, ids: &[&OrderId]) -> Result<Vec<Reservation>>;

    /// The stock rows that are there, locked in the order of their SKUs where the database can.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_stock(&mut self, skus: &[&SkuId]) -> Result<Vec<Stock>>;

    /// All flows of the orders, and those with the given ids.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_flows(&mut self, ids: &[&OrderId], flow_ids: &[&Key]) -> Result<Vec<Flow>>;

    /// Inserts new reservations.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn insert_reservations(
        &mut self,
        now: Timestamp,
        reservations: &[&Reservation],
    ) -> Result<()>;

    /// Keeps reservations that are not there from appearing before this transaction ends. An event that is
    /// parked until a reservation is there needs it: whoever inserts a reservation then sees what was parked, or is seen.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn hold_absent_reservations(&mut self, ids: &[&OrderId]) -> Result<()>;

    /// Updates reservations, each with the status and version that were read as its guard.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a guard fails.
    async fn update_reservations(
        &mut self,
        now: Timestamp,
        updates: &[(ReservationStatus, i64, &Reservation)],
    ) -> Result<()>;

    /// Inserts stock rows of SKUs that had none.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn insert_stock(&mut self, now: Timestamp, stock: &[&Stock]) -> Result<()>;

    /// Updates stock rows, guarded by the version that was read.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a guard fails.
    async fn update_stock(&mut self, now: Timestamp, updates: &[StockUpdate<'_>]) -> Result<()>;

    /// Inserts new flows.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if an id is there by now.
    async fn insert_flows(&mut self, now: Timestamp, flows: &[Flow]) -> Result<()>;
}
