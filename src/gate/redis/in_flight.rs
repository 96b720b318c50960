//! Marks of what a worker has in hand.
//!
//! A mark says who works on a key. Whoever meets the mark of another worker lets the copy wait: it may be
//! done soon, or not at all, so a mark is no reason to acknowledge anything. A worker that meets its own
//! mark was killed half-way, and goes on. Marks end by themselves, after several times the time that a
//! batch takes, so that one whose worker is gone for good holds nobody up for long.

use super::{Shared, known, milliseconds};
use crate::domain::{Key, RoleName};
use crate::gate::{Gate, Known, Told};
use async_trait::async_trait;
use redis::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first byte of a mark: the name of the worker follows.
const MARK: u8 = b'0';

/// The shortest life of a mark.
const SHORTEST: Duration = Duration::from_secs(30);

/// A mark lives so many times as long as the longest batch of late.
const TIMES: u32 = 4;

/// Lengthens the life of marks that are ours (`ARGV[2]` in milliseconds), or deletes them (0).
const OURS: &str = "
    local ours = 0
    for _, key in ipairs(KEYS) do
        if redis.call('GET', key) == ARGV[1] then
            ours = ours + 1
            if ARGV[2] == '0' then
                redis.call('DEL', key)
            else
                redis.call('PEXPIRE', key, ARGV[2])
            end
        end
    end
    return ours";

/// Redis as one worker uses it.
pub(super) struct InFlight {
    shared: Arc<Shared>,
    mark: Vec<u8>,
    pace: Mutex<Pace>,
}

/// How long batches take.
#[derive(Debug, Default)]
struct Pace {
    begun: Option<Instant>,
    /// The longest of late: each batch that is shorter takes an eighth of it away.
    longest: Duration,
}

impl Pace {
    fn begin(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }

    fn end(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.took(begun.elapsed());
        }
    }

    fn took(&mut self, time: Duration) {
        self.longest = (self.longest - self.longest / 8).max(time);
    }

    fn life_of_marks(&self) -> Duration {
        SHORTEST.max(self.longest.saturating_mul(TIMES))
    }
}

impl InFlight {
    pub(super) fn new(shared: Arc<Shared>, holder: &str) -> Self {
        let mark = [&[MARK], holder.as_bytes()].concat();
        let pace = Mutex::default();
        Self { shared, mark, pace }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes those marks that are ours.
    async fn ours(&self, role: &RoleName, keys: impl Iterator<Item = &Key>, life: Duration) {
        let Some((number, mut connection)) = self.shared.connection() else {
            return;
        };
        let keys: Vec<_> = keys.map(|key| self.shared.key(role, key)).collect();
        self.shared.count(1);
        let mut eval = redis::cmd("EVAL");
        eval.arg(OURS).arg(keys.len()).arg(keys);
        eval.arg(&self.mark).arg(milliseconds(life));
        let done = eval.query_async::<u64>(&mut connection);
        self.shared.answer(number, done).await;
    }

    fn says(&self, value: Option<&[u8]>) -> Known {
        match value {
            Some(value) if value.starts_with(&[MARK]) && value != self.mark => Known::Held,
            Some(value) => known(Some(value)),
            None => Known::Unknown,
        }
    }
}

#[async_trait]
impl Gate for InFlight {
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known> {
        self.pace().begin();
        let unknown = || vec![Known::Unknown; keys.len()];
        let Some((number, mut connection)) = self.shared.connection() else {
            return unknown();
        };
        let life = milliseconds(self.pace().life_of_marks());
        let mut pipe = redis::pipe();
        let mut get = redis::cmd("MGET");
        for key in keys {
            let key = self.shared.key(role, key);
            let set = pipe.cmd("SET").arg(&key).arg(&self.mark);
            set.arg("NX").arg("PX").arg(life);
            get.arg(key);
        }
        pipe.add_command(get);
        self.shared.count(keys.len() + 1);
        let answers = pipe.query_async::<Vec<Value>>(&mut connection);
        let Some(mut answers) = self.shared.answer(number, answers).await else {
            return unknown();
        };
        let Some(Value::Array(values)) = answers.pop() else {
            return unknown();
        };
        if values.len() != keys.len() || answers.len() != keys.len() {
            return unknown();
        }
        // Ours before we set it: it was left by a worker of our name that was killed.
        let mut left = Vec::new();
        let mut known = Vec::with_capacity(keys.len());
        for ((value, set), key) in values.iter().zip(&answers).zip(keys) {
            let value = if let Value::BulkString(bytes) = value {
                Some(bytes.as_slice())
            } else {
                None
            };
            if value == Some(&self.mark) && *set == Value::Nil {
                left.push(*key);
            }
            known.push(self.says(value));
        }
        if !left.is_empty() {
            let life = self.pace().life_of_marks();
            self.ours(role, left.into_iter(), life).await;
        }
        known
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        self.pace().end();
        self.shared.tell(role, told).await;
    }

    async fn release(&self, role: &RoleName, keys: &[&Key]) {
        self.pace().end();
        self.ours(role, keys.iter().copied(), Duration::ZERO).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_lives_four_times_as_long_as_the_longest_batch_of_late_and_30_seconds_at_least() {
        let seconds = Duration::from_secs;
        let mut pace = Pace::default();
        assert_eq!(pace.life_of_marks(), seconds(30));
        pace.took(seconds(1));
        assert_eq!(pace.life_of_marks(), seconds(30));
        pace.took(seconds(16));
        assert_eq!(pace.life_of_marks(), seconds(64));
        pace.took(seconds(1));
        assert_eq!(pace.life_of_marks(), seconds(56));
        pace.took(seconds(20));
        assert_eq!(pace.life_of_marks(), seconds(80));
    }

    #[test]
    fn the_time_of_a_batch_is_taken_once() {
        let mut pace = Pace::default();
        pace.end();
        assert_eq!(pace.longest, Duration::ZERO);
        pace.begin();
        let begun = pace.begun;
        pace.begin();
        assert_eq!(pace.begun, begun);
        pace.end();
        assert_eq!(pace.begun, None);
    }
}
