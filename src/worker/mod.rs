//! Workers: from deliveries to outcomes.
//!
//! What lives here: the path of a batch (start at [`batch`]), the roles, the relay, the
//! janitor, and the supervisor that runs them. What deliberately does not: business rules, which
//! are [`crate::domain`]'s, and SQL, which is [`crate::store`]'s.

pub mod batch;
pub(crate) mod clock;
mod role;

pub mod desk;

pub mod account;
pub mod callback;
pub mod handler;
pub mod inventory;
pub mod order;
mod order_rows;
pub mod payment;

pub mod janitor;
mod lease;
pub mod relay;
pub mod retention;
pub mod supervisor;

mod error;
mod point;

pub use batch::{Asked, ItemOutcome, Processed, Processor, Request, Settings, Settled, Worker};
pub use desk::Desk;
pub use error::{Error, Result};
pub use point::{Point, Points};
pub use role::{Role, Ruling};
