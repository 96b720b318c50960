//! What tests of this crate, and of systems built on it, need: points at which the binary kills
//! itself, an independent model to compare with, and random stories to play to both.
//!
//! What lives here: code for tests alone, public behind the feature `testkit`. What deliberately
//! does not: anything that the crate itself needs to run, and decisions that come from
//! [`domain`](crate::domain). Where the model and the domain agree, two authors read the design
//! the same way.

pub mod kill;
pub mod model;
pub mod stories;
