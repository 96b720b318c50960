//! An order processor for at-least-once message queues in which every effect happens once.

pub mod broker;
pub mod cli;
pub mod config;
pub mod domain;
pub mod gate;
pub mod message;
pub mod ops;
pub mod store;
pub mod telemetry;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod worker;
