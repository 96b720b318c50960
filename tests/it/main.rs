//! Integration tests.
mod broker;
