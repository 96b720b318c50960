//! Integration tests: one binary, a module for each subject.

#[cfg(test)]
mod broker;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod day;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod reconcile;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod site;
#[cfg(test)]
mod store;
