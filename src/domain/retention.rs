//! How long a claim must be kept at least: as long as a copy of its message can still come.

use std::fmt;
use std::time::Duration;

/// The ways in which a message can come back, each with the longest time that it takes. One copy may go
/// all of them, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaysBack {
    /// All retries of a delivery that fails.
    pub retries: Duration,
    /// In the hands of a worker, before the broker gives it to another.
    pub processing: Duration,
    /// As a dead letter, here or elsewhere, before somebody replays it.
    pub dead_letters: Duration,
    /// In the outbox of a producer whose broker is away.
    pub outbox: Duration,
    /// In what a producer or an operator plays back, such as a log or a restored queue.
    pub replay: Duration,
    /// What nobody has thought of.
    pub slack: Duration,
}

impl WaysBack {
    /// Each way's name, and the time it takes.
    #[must_use]
    pub fn terms(&self) -> [(&'static str, Duration); 6] {
        [
            ("retries", self.retries),
            ("processing", self.processing),
            ("dead letters", self.dead_letters),
            ("outbox", self.outbox),
            ("replay", self.replay),
            ("slack", self.slack),
        ]
    }

    /// The shortest allowed life of a claim: all of them together.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let terms = self.terms();
        let add = |sum: Duration, (_, term): (_, Duration)| sum.saturating_add(term);
        terms.into_iter().fold(Duration::ZERO, add)
    }
}

/// The sum with its terms, in seconds.
impl fmt::Display for WaysBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.longest().as_secs_f64())?;
        for ((name, term), sign) in self.terms().into_iter().zip(["=", "+", "+", "+", "+", "+"]) {
            write!(f, " {sign} {name} {}", term.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_lives_as_long_as_all_ways_back_together() {
        let seconds = Duration::from_secs;
        let ways = WaysBack {
            retries: seconds(1),
            processing: seconds(20),
            dead_letters: seconds(300),
            outbox: seconds(4_000),
            replay: seconds(50_000),
            slack: Duration::from_millis(500),
        };
        assert_eq!(ways.longest(), Duration::from_millis(54_321_500));
        assert_eq!(
            ways.to_string(),
            "54321.5 s = retries 1 + processing 20 + dead letters 300 + outbox 4000 + replay 50000 + slack 0.5"
        );
    }

    #[test]
    fn ways_without_end_have_a_sum() {
        let ways = WaysBack {
            retries: Duration::MAX,
            processing: Duration::MAX,
            dead_letters: Duration::ZERO,
            outbox: Duration::ZERO,
            replay: Duration::ZERO,
            slack: Duration::ZERO,
        };
        assert_eq!(ways.longest(), Duration::MAX);
    }
}
