//! RabbitMQ: the suite, and what only a broker at the other end of a wire does.

mod blocking;
mod consuming;
mod fixture;
mod opening;
mod publishing;

use super::broker_suite;
use fixture::fresh;

mod suite {
    use super::{broker_suite, fresh};

    broker_suite!(fresh);
}
