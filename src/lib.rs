//! An order processor for at-least-once message queues in which every effect happens once.

pub mod domain;
pub mod ops;
