//! What tests of this crate, and of systems built on it, need: an independent model to compare
//! with, random stories to play to both, schedules that play them with all that can go wrong, and
//! points at which the program kills itself.
//!
//! What lives here: code for tests alone, public behind the feature `testkit`. What deliberately
//! does not: anything that the crate itself needs to run, and decisions that come from
//! [`domain`](crate::domain). Where the model and the domain agree, two authors read the design
//! the same way.

pub mod kill;
pub mod model;
pub mod schedule;
pub mod sql;
pub mod stories;
