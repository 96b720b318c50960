//! Workers.
