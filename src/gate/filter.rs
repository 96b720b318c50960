//! A Bloom filter of the keys that this process knows to be settled.
//!
//! What lives here: for each role two generations of a filter, and the file that they are kept in
//! while the process is stopped. "No" is certain as far as this process was told, and spares the
//! layers behind the question; "maybe" says nothing. What it deliberately does not do: decide. A key
//! that another process settled is a "no" here, and the claim finds it.
//!
//! A filter cannot forget a key. So keys go to the newer generation until that holds as many as are
//! expected; then the older one is dropped, the newer one takes its place, and an empty one begins. A
//! key is remembered for as long as at least `expected` others take to come, and a question may be
//! answered wrongly by either generation: at most twice the rate of one.

use super::{Gate, Known, Told};
use crate::domain::{Key, RoleName};
use async_trait::async_trait;
use fastbloom::AtomicBloomFilter;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

mod file;

pub use file::Unfit;

/// How large a generation is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Keys that it is made for. It turns when it holds so many.
    pub expected: u64,
    /// The share of other keys that it takes for one of them then.
    pub false_positives: f64,
    /// Its bits: `-n ln p / (ln 2)^2`, a multiple of 64.
    pub bits: u64,
    /// Bits that are set for a key: `bits / n * ln 2`, to the nearest whole number.
    pub hashes: u32,
}

impl Shape {
    /// The smallest shape for so many keys at such a rate of false positives, after Bloom (1970).
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the results are positive, and a filter of 2^53 bits fits no machine"
    )]
    pub fn of(expected: u64, false_positives: f64) -> Self {
        use std::f64::consts::LN_2;
        const WORD: u64 = 64;
        let expected = expected.max(1);
        let keys = expected as f64;
        let bits = (-keys * false_positives.ln() / (LN_2 * LN_2))
            .ceil()
            .max(1.0);
        let hashes = (bits / keys * LN_2).round().max(1.0);
        Self {
            expected,
            false_positives,
            bits: (bits as u64).next_multiple_of(WORD),
            hashes: hashes as u32,
        }
    }

    /// As [`Self::of`], with another number of bits: for tests of filters that are far too small.
    #[cfg(any(test, feature = "testkit"))]
    #[must_use]
    pub fn with_bits(self, bits: u64) -> Self {
        Self { bits, ..self }
    }

    /// Bytes of a generation.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bits / 8
    }
}

/// The filters of all roles of a process.
#[derive(Debug)]
pub struct Filter {
    shape: Shape,
    /// Of the hashes, so that nobody outside can choose keys that collide.
    seed: u128,
    roles: BTreeMap<RoleName, RwLock<Generations>>,
    first: AtomicU64,
    mistaken: AtomicU64,
}

#[derive(Debug)]
struct Generations {
    newer: Generation,
    older: Option<Generation>,
}

#[derive(Debug)]
struct Generation {
    bits: AtomicBloomFilter,
    /// Keys that it did not know before they were put in.
    keys: AtomicU64,
}

/// How often a filter said "maybe" of a key that nobody had settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mistakes {
    /// Keys that were settled for the first time.
    pub first: u64,
    /// Those of them that the filter took for known.
    pub mistaken: u64,
}

impl Mistakes {
    /// The share of keys that were settled for the first time and taken for known.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share needs no more than 15 digits"
    )]
    pub fn rate(&self) -> f64 {
        self.mistaken as f64 / self.first.max(1) as f64
    }
}

/// In words, with its rate.
impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, mistaken } = self;
        let percent = self.rate() * 100.0;
        write!(
            f,
            "{mistaken} of {first} new keys were taken for known, {percent:.3}%"
        )
    }
}

impl Filter {
    /// Empty filters for some roles.
    #[must_use]
    pub fn new(shape: Shape, seed: u128, roles: &[RoleName]) -> Self {
        let empty = |role: &RoleName| {
            let newer = Generation::empty(shape, seed);
            (
                role.clone(),
                RwLock::new(Generations { newer, older: None }),
            )
        };
        Self {
            shape,
            seed,
            roles: roles.iter().map(empty).collect(),
            first: AtomicU64::new(0),
            mistaken: AtomicU64::new(0),
        }
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The roles that it has a filter for.
    pub fn roles(&self) -> impl Iterator<Item = &RoleName> {
        self.roles.keys()
    }

    /// Whether a key of a role was surely not told of.
    #[must_use]
    pub fn is_absent(&self, role: &RoleName, key: &Key) -> bool {
        self.of(role).is_some_and(|of_role| !of_role.may_know(key))
    }

    /// Takes keys that are settled.
    pub fn insert<'k>(&self, role: &RoleName, keys: impl IntoIterator<Item = &'k str>) {
        let mut is_full = false;
        if let Some(of_role) = self.of(role) {
            for key in keys {
                is_full |= of_role.newer.insert(key) >= self.shape.expected;
            }
        }
        if is_full {
            self.turn(role);
        }
    }

    /// How often it was mistaken since the process started.
    #[must_use]
    pub fn mistakes(&self) -> Mistakes {
        Mistakes {
            first: self.first.load(Ordering::Relaxed),
            mistaken: self.mistaken.load(Ordering::Relaxed),
        }
    }

    fn of(&self, role: &RoleName) -> Option<RwLockReadGuard<'_, Generations>> {
        let of_role = self.roles.get(role)?;
        Some(of_role.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins a new generation, unless somebody else just has.
    fn turn(&self, role: &RoleName) {
        let Some(of_role) = self.roles.get(role) else {
            return;
        };
        let mut of_role = of_role.write().unwrap_or_else(PoisonError::into_inner);
        if *of_role.newer.keys.get_mut() >= self.shape.expected {
            let empty = Generation::empty(self.shape, self.seed);
            let full = std::mem::replace(&mut of_role.newer, empty);
            of_role.older = Some(full);
        }
    }
}

impl Generations {
    fn may_know(&self, key: &Key) -> bool {
        let in_older = |older: &Generation| older.bits.contains(key.as_str());
        self.newer.bits.contains(key.as_str()) || self.older.as_ref().is_some_and(in_older)
    }
}

impl Generation {
    fn empty(shape: Shape, seed: u128) -> Self {
        let bits = usize::try_from(shape.bits).unwrap_or(usize::MAX);
        let bits = AtomicBloomFilter::with_num_bits(bits).seed(&seed);
        Self {
            bits: bits.hashes(shape.hashes),
            keys: AtomicU64::new(0),
        }
    }

    /// Puts a key in; returns how many there are now.
    fn insert(&self, key: &str) -> u64 {
        let is_known = self.bits.insert(key);
        let more = u64::from(!is_known);
        self.keys.fetch_add(more, Ordering::Relaxed) + more
    }
}

#[async_trait]
impl Gate for Filter {
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known> {
        let Some(of_role) = self.of(role) else {
            return vec![Known::Unknown; keys.len()];
        };
        let answer = |key: &&Key| match of_role.may_know(key) {
            true => Known::Unknown,
            false => Known::Absent,
        };
        let answers: Vec<_> = keys.iter().map(answer).collect();
        let absent = answers.iter().filter(|answer| **answer == Known::Absent);
        count("orderonce_filter_absent_total", role, absent.count());
        count("orderonce_filter_asked_total", role, keys.len());
        answers
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        let (mut first, mut mistaken) = (0, 0);
        if let Some(of_role) = self.of(role) {
            for told in told.iter().filter(|told| told.is_first) {
                first += 1;
                mistaken += usize::from(of_role.may_know(told.key));
            }
        }
        count("orderonce_filter_first_total", role, first);
        count("orderonce_filter_mistaken_total", role, mistaken);
        self.first.fetch_add(wide(first), Ordering::Relaxed);
        self.mistaken.fetch_add(wide(mistaken), Ordering::Relaxed);
        metrics::gauge!("orderonce_filter_false_positive_rate").set(self.mistakes().rate());
        self.insert(role, told.iter().map(|told| told.key.as_str()));
    }
}

fn count(name: &'static str, role: &RoleName, number: usize) {
    metrics::counter!(name, "role" => role.to_string()).increment(wide(number));
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
