//! What payment providers say by HTTP, and whether they said it.
//!
//! What lives here: a provider is one file behind the trait [`Provider`]. It checks who signed a request and
//! reads it as events of an order. What deliberately does not: statements and decisions. A provider is a
//! pure function of the request and the time, so that whatever can be sent can be tried in a unit test.
//!
//! Nothing of a body is believed, and nothing of it gets into an event, before its signature is checked.

mod alipay;
mod door;
mod file;
mod generic;
mod json;
mod keys;
mod provider;
mod stripe;
mod wechat;

#[cfg(test)]
mod testing;

pub use door::{Callbacks, router};
pub use file::{Error, read};
pub use provider::{Provider, Received, Refusal, Reply, Said, Verdict};
