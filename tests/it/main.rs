//! Integration tests.

mod store;
