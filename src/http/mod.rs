//! The doors that are not queues: the HTTP API and the callbacks of payment providers.
//!
//! What lives here: routes, who may call them, what a request means and how an answer looks. What deliberately
//! does not: decisions and statements. Whatever comes in ends in the same [`Processor`](crate::worker::Processor)
//! as a delivery, by way of a [`Desk`](crate::worker::Desk).

pub mod api;
pub mod auth;
pub mod callbacks;
mod problem;
mod server;

pub use problem::Problem;
pub use server::{Error, Server};
