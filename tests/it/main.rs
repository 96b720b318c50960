//! Integration tests: one binary, a module for each subject.

#[cfg(test)]
mod broker;
mod cli;
#[cfg(test)]
mod reconcile;
#[cfg(test)]
mod store;
