//! What an operator can ask for: one command per file, called by the command line and by HTTP.
//!
//! What lives here: the work of a command and the report that it returns as data. What
//! deliberately does not: parsing of arguments, printing, and exit codes.

pub mod bench;
pub mod callbacks;
pub mod dead;
pub mod demo;
pub mod deployment;
pub mod explain;
pub mod gates;
pub mod health;
pub mod import;
pub mod online_retail;
pub mod parked;
pub mod progress;
pub mod reconcile;
pub mod repair;
pub mod retention;
pub mod send;
pub mod serve;
pub mod settings;
pub(crate) mod table;
mod watch;
