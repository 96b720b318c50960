//! What becomes of a delivery that failed: a delay, or the dead-letter table.

use std::time::Duration;

/// The delay levels, as RocketMQ has them.
pub const LEVELS: [Duration; 18] = {
    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
    [
        s(1),
        s(5),
        s(10),
        s(30),
        s(60),
        s(120),
        s(180),
        s(240),
        s(300),
        s(360),
        s(420),
        s(480),
        s(540),
        s(600),
        s(1200),
        s(1800),
        s(3600),
        s(7200),
    ]
};

/// How often a failed delivery is tried again, and after which delays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    attempts: u32,
    first_level: usize,
}

/// What comes after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another delivery after this delay.
    Again(Duration),
    /// No attempt is left.
    DeadLetter,
}

impl RetryPolicy {
    /// `attempts` further deliveries after the first; the first of them after the delay level
    /// `first_delay`, each later one a level higher, the last level repeated.
    ///
    /// Returns `None` if `first_delay` is not one of [`LEVELS`].
    #[must_use]
    pub fn new(attempts: u32, first_delay: Duration) -> Option<Self> {
        let first_level = LEVELS.iter().position(|&level| level == first_delay)?;
        Some(Self {
            attempts,
            first_level,
        })
    }

    /// What follows when a delivery that had `failed` failures before it fails too.
    #[must_use]
    pub fn after(&self, failed: u32) -> Next {
        if failed >= self.attempts {
            return Next::DeadLetter;
        }
        let level = self.first_level.saturating_add(failed as usize);
        Next::Again(LEVELS[level.min(LEVELS.len() - 1)])
    }

    /// The longest time from a message's first delivery to its last: the sum of its delays.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        (0..self.attempts)
            .map(|failed| match self.after(failed) {
                Next::Again(delay) => delay,
                Next::DeadLetter => Duration::ZERO,
            })
            .sum()
    }
}

/// 16 attempts, the first after 10 seconds.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 16,
            first_level: 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_attempts_from_ten_seconds_end_at_two_hours() {
        let policy = RetryPolicy::default();
        let seconds: Vec<u64> = (0..16)
            .map(|failed| match policy.after(failed) {
                Next::Again(delay) => delay.as_secs(),
                Next::DeadLetter => 0,
            })
            .collect();
        assert_eq!(
            seconds,
            [
                10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200
            ]
        );
        assert_eq!(policy.after(16), Next::DeadLetter);
        assert_eq!(policy.after(u32::MAX), Next::DeadLetter);
        assert_eq!(policy.horizon().as_secs(), seconds.iter().sum::<u64>());
    }

    #[test]
    fn the_last_level_repeats() {
        let policy = RetryPolicy::new(5, Duration::from_secs(3600)).unwrap();
        assert_eq!(policy.after(4), Next::Again(Duration::from_secs(7200)));
    }

    #[test]
    fn a_delay_that_is_no_level_is_refused() {
        assert_eq!(RetryPolicy::new(16, Duration::from_secs(7)), None);
    }
}
