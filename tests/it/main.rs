//! Integration tests: one binary, a module for each subject.

#[cfg(test)]
mod batch;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod broker;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod day;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod handler;
#[cfg(test)]
mod http;
#[cfg(test)]
mod janitor;
#[cfg(test)]
mod parking;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod reconcile;
#[cfg(test)]
mod redis;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod repair;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod site;
#[cfg(test)]
mod sql;
#[cfg(test)]
mod store;
#[cfg(test)]
mod support;
#[cfg(test)]
mod telemetry;
