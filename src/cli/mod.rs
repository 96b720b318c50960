//! The command line: arguments in, reports out.
//!
//! What lives here: parsing, printing and exit codes. What deliberately does not: the work, which is
//! [`crate::ops`]'s.

mod args;
mod exit;
mod output;
mod run;

pub use args::Cli;
pub use exit::exit_code;
pub use run::run;
