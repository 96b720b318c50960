//! Integration tests: one binary, a module for each subject.

mod broker;
mod reconcile;
mod schedules;
