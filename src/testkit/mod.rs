//! What tests of this crate, and of systems built on it, need: an independent model to compare
//! with, random stories to play to both, and schedules that play them with all that can go wrong.
//!
//! What lives here: code for tests alone, public behind the feature `testkit`. What deliberately
//! does not: anything that the crate itself needs to run, and anything that shares code with
//! [`domain`](crate::domain). Where the model and the domain agree, two authors read the design
//! the same way.

pub mod model;
pub mod schedule;
pub mod stories;
