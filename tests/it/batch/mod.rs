//! The path of a batch, on SQLite and the embedded queue.

mod commits;
mod copies;
mod gates;
mod messages;
mod parking;
mod races;
mod retries;
