//! RabbitMQ: the suite, and what only a broker at the other end of a wire does.

mod fixture;

use super::broker_suite;
use fixture::fresh;

broker_suite!(fresh);
