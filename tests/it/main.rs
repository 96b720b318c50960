//! Integration tests: one binary, a module for each subject.

#[cfg(test)]
mod broker;
#[cfg(test)]
mod parking;
#[cfg(test)]
mod reconcile;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod store;
