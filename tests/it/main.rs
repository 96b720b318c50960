//! Integration tests.

mod reconcile;
