//! Marks of what a worker has in hand.
//!
//! A mark says who works on a key. Whoever meets the mark of another worker lets the copy wait: it may be
//! done soon, or not at all, so a mark is no reason to acknowledge anything. A worker that meets its own
//! mark, or one that its process has left in an earlier life, was killed half-way, and goes on. Marks end
//! by themselves, after several times the time that a batch takes, so that one whose process is gone for
//! good holds nobody up for long.

use super::{Shared, known, milliseconds};
use crate::domain::{Key, RoleName};
use crate::gate::{Gate, Known, Told};
use async_trait::async_trait;
use redis::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first byte of a mark: the names of the process, of its life and of the worker follow, a line each.
const MARK: u8 = b'0';

/// The shortest life of a mark.
const SHORTEST: Duration = Duration::from_secs(30);

/// A mark lives so many times as long as the longest batch of late.
const TIMES: u32 = 4;

/// Takes marks over that still are what was seen of them (`ARGV` from 3 on), for `ARGV[2]` milliseconds.
const TAKE_OVER: &str = "
    for i, key in ipairs(KEYS) do
        if redis.call('GET', key) == ARGV[i + 2] then
            redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
        end
    end
    return #KEYS";

/// Deletes marks that are ours.
const RELEASE: &str = "
    for _, key in ipairs(KEYS) do
        if redis.call('GET', key) == ARGV[1] then
            redis.call('DEL', key)
        end
    end
    return #KEYS";

/// Redis as one worker uses it.
pub(super) struct InFlight {
    shared: Arc<Shared>,
    /// How the marks of its process begin.
    of_process: Vec<u8>,
    /// How those of the process's present life begin.
    of_life: Vec<u8>,
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
    pub(super) fn new(shared: Arc<Shared>, process: &str, worker: &str) -> Self {
        let of_process = [&[MARK], process.as_bytes(), b"\n"].concat();
        let life = format!("{:016x}\n", shared.life);
        let of_life = [&of_process, life.as_bytes()].concat();
        Self {
            shared,
            mark: [&of_life, worker.as_bytes()].concat(),
            of_process,
            of_life,
            pace: Mutex::default(),
        }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, script: &'static str, keys: Vec<String>, arguments: &[&[u8]]) {
        let Some((number, mut connection)) = self.shared.connection() else {
            return;
        };
        self.shared.count(1);
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(keys.len()).arg(keys).arg(arguments);
        let done = eval.query_async::<u64>(&mut connection);
        self.shared.answer(number, done).await;
    }

    /// Whether a value is a mark that nobody stands behind: ours, or of an earlier life of our process.
    fn is_left(&self, value: &[u8]) -> bool {
        value == self.mark
            || value.starts_with(&self.of_process) && !value.starts_with(&self.of_life)
    }

    fn says(&self, value: Option<&[u8]>) -> Known {
        match value {
            Some(value) if value.starts_with(&[MARK]) && !self.is_left(value) => Known::Held,
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
        let life = milliseconds(self.pace().life_of_marks()).to_string();
        let mut pipe = redis::pipe();
        let mut get = redis::cmd("MGET");
        for key in keys {
            let key = self.shared.key(role, key);
            let set = pipe.cmd("SET").arg(&key).arg(&self.mark);
            set.arg("NX").arg("PX").arg(&life);
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
        let mine = self.mark.as_slice();
        let (mut left, mut seen) = (Vec::new(), vec![mine, life.as_bytes()]);
        let mut known = Vec::with_capacity(keys.len());
        for ((value, set), key) in values.iter().zip(&answers).zip(keys) {
            let value = if let Value::BulkString(bytes) = value {
                Some(bytes.as_slice())
            } else {
                None
            };
            known.push(self.says(value));
            // There before we set it.
            if let (Some(value), Value::Nil) = (value, set)
                && self.is_left(value)
            {
                left.push(self.shared.key(role, key));
                seen.push(value);
            }
        }
        if !left.is_empty() {
            self.run(TAKE_OVER, left, &seen).await;
        }
        known
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        self.pace().end();
        self.shared.tell(role, told).await;
    }

    async fn release(&self, role: &RoleName, keys: &[&Key]) {
        self.pace().end();
        let keys = keys.iter().map(|key| self.shared.key(role, key));
        self.run(RELEASE, keys.collect(), &[&self.mark]).await;
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
