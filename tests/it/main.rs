//! Integration tests.

#[cfg(test)]
mod broker;
#[cfg(test)]
mod store;
