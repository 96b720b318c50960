//! An order processor for at-least-once message queues.
