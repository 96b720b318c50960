//! Who calls: keys with names and rights, from a file that holds no key itself but what it is known by.

use super::Problem;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use strum::{Display, EnumIter, EnumString, VariantNames};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// What a caller may do.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumIter, EnumString, Display, VariantNames,
)]
pub enum Right {
    /// Read orders.
    #[strum(serialize = "orders.read")]
    OrdersRead,
    /// Create and cancel orders.
    #[strum(serialize = "orders.write")]
    OrdersWrite,
    /// Say that orders are shipped or complete.
    #[strum(serialize = "orders.fulfil")]
    OrdersFulfil,
    /// Ask for money to be given back.
    #[strum(serialize = "orders.refund")]
    OrdersRefund,
    /// Read stock.
    #[strum(serialize = "stock.read")]
    StockRead,
    /// Set stock.
    #[strum(serialize = "stock.write")]
    StockWrite,
    /// Read accounts.
    #[strum(serialize = "accounts.read")]
    AccountsRead,
}

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("http.keys_file is {}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        problem: String,
    },
    /// Some of its entries are wrong; all of them are named.
    #[error("{}: {}", path.display(), problems.join("\n"))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong, each with its place.
        problems: Vec<String>,
    },
    /// The system has no randomness to give.
    #[error("the system gives no random bytes for a key")]
    NoRandomness,
}

/// How often a caller may call, unless its entry says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests in a second, on average.
    pub per_second: u32,
    /// Requests at once.
    pub burst: u32,
}

/// All keys by which callers are known.
pub struct Keys {
    keys: Vec<Key>,
    callers: Vec<Arc<Caller>>,
}

/// A caller may have several keys, so that an old one can go on while a new one is handed out.
struct Key {
    sha256: [u8; 32],
    caller: u32,
}

/// Who calls.
pub struct Caller {
    name: String,
    rights: BTreeSet<Right>,
    limiter: DefaultDirectRateLimiter,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    sha256: String,
    rights: Vec<String>,
    rate_per_second: Option<u32>,
    rate_burst: Option<u32>,
}

impl Keys {
    /// Nobody is known.
    #[must_use]
    pub fn none() -> Self {
        Self {
            keys: Vec::new(),
            callers: Vec::new(),
        }
    }

    /// Reads a file of keys.
    ///
    /// # Errors
    /// [`Error`] that names everything that is wrong with it.
    pub fn read(path: &Path, rate: Rate) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::Read {
            path: path.to_owned(),
            problem: error.to_string(),
        })?;
        Self::parse(&text, rate).map_err(|problems| Error::Wrong {
            path: path.to_owned(),
            problems,
        })
    }

    fn parse(text: &str, rate: Rate) -> Result<Self, Vec<String>> {
        // The error as a whole would show the line, with what may be a key.
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error.span().map_or("", |span| &text[..span.start]);
            let line = before.matches('\n').count() + 1;
            vec![format!("line {line}: {}", error.message())]
        })?;
        let mut problems = Vec::new();
        if file.key.is_empty() {
            problems.push("there is no [[key]], `orderonce keys new NAME` makes one".to_owned());
        }
        let mut keys: Vec<Key> = Vec::new();
        let mut callers: BTreeMap<String, (u32, Arc<Caller>)> = BTreeMap::new();
        for (number, entry) in (1..).zip(&file.key) {
            match entry.checked(rate) {
                Ok((sha256, caller)) => {
                    let next = u32::try_from(callers.len()).unwrap_or(u32::MAX);
                    let known = callers.entry(entry.name.clone());
                    let (index, known) = known.or_insert_with(|| (next, Arc::new(caller)));
                    if known.rights != entry.rights() {
                        problems.push(format!(
                            "key {number} ({}): has other rights than the first key of that name",
                            entry.name
                        ));
                    }
                    if keys.iter().any(|key| key.sha256 == sha256) {
                        problems.push(format!("key {number} ({}): is there twice", entry.name));
                    }
                    let caller = *index;
                    keys.push(Key { sha256, caller });
                }
                Err(wrong) => problems.extend(
                    wrong
                        .into_iter()
                        .map(|problem| format!("key {number} ({}): {problem}", entry.name)),
                ),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut callers: Vec<_> = callers.into_values().collect();
        callers.sort_by_key(|(index, _)| *index);
        let callers = callers.into_iter().map(|(_, caller)| caller).collect();
        Ok(Self { keys, callers })
    }

    /// Who calls with these headers, if it is known and does not call too often.
    ///
    /// # Errors
    /// 401 without a key that is known, 429 with the time to wait.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Arc<Caller>, Problem> {
        let caller = self.known(headers).ok_or_else(|| {
            let detail = "expected Authorization: Bearer KEY with a key that is known here";
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
        })?;
        match caller.limiter.check() {
            Ok(()) => Ok(caller),
            Err(not_until) => {
                let wait = not_until.wait_time_from(DefaultClock::default().now());
                let detail = format!("{} calls more often than it may", caller.name);
                Err(
                    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", detail)
                        .retry_after(wait),
                )
            }
        }
    }

    /// All keys are compared whole, whichever fits, so that the time tells nothing of them.
    fn known(&self, headers: &HeaderMap) -> Option<Arc<Caller>> {
        let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let (scheme, key) = value.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let sha256 = Sha256::digest(key.trim().as_bytes());
        let (mut found, mut caller) = (Choice::from(0), 0);
        for known in &self.keys {
            let fits = known.sha256[..].ct_eq(&sha256);
            caller = u32::conditional_select(&caller, &known.caller, fits);
            found |= fits;
        }
        let caller = usize::try_from(caller).ok()?;
        bool::from(found).then(|| self.callers.get(caller).map(Arc::clone))?
    }
}

impl Entry {
    fn rights(&self) -> BTreeSet<Right> {
        self.rights
            .iter()
            .filter_map(|right| right.parse().ok())
            .collect()
    }

    fn checked(&self, rate: Rate) -> Result<([u8; 32], Caller), Vec<String>> {
        let mut problems = Vec::new();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !(1..=64).contains(&self.name.len()) || !self.name.chars().all(is_name) {
            problems.push(
                "expected a name of 1 to 64 ASCII letters, digits, underscores, hyphens or dots"
                    .to_owned(),
            );
        }
        let mut sha256 = [0; 32];
        if hex::decode_to_slice(&self.sha256, &mut sha256).is_err() {
            problems.push("expected a sha256 of 64 hexadecimal digits, that of the key".to_owned());
        }
        for right in &self.rights {
            if right.parse::<Right>().is_err() {
                let rights = Right::VARIANTS.join(", ");
                problems.push(format!("{right:?} is no right, expected some of {rights}"));
            }
        }
        let per_second = NonZeroU32::new(self.rate_per_second.unwrap_or(rate.per_second));
        let burst = NonZeroU32::new(self.rate_burst.unwrap_or(rate.burst));
        let (Some(per_second), Some(burst), true) = (per_second, burst, problems.is_empty()) else {
            if problems.is_empty() {
                problems
                    .push("a rate of 0 would let nothing through, expected at least 1".to_owned());
            }
            return Err(problems);
        };
        let quota = Quota::per_second(per_second).allow_burst(burst);
        let caller = Caller {
            name: self.name.clone(),
            rights: self.rights(),
            limiter: RateLimiter::direct(quota),
        };
        Ok((sha256, caller))
    }
}

impl Caller {
    /// Its name, which scopes its idempotency keys.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it may do something.
    ///
    /// # Errors
    /// 403 with the right that it lacks.
    pub fn may(&self, right: Right) -> Result<(), Problem> {
        if self.rights.contains(&right) {
            return Ok(());
        }
        let detail = format!("{} has not the right {right}", self.name);
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("name", &self.name)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}

/// A new key, and the entry by which it is known.
///
/// # Errors
/// [`Error::NoRandomness`].
pub fn new_key(name: &str, rights: &[Right]) -> Result<(String, String), Error> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::NoRandomness)?;
    let key = format!("oo_{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
    let sha256 = hex::encode(Sha256::digest(key.as_bytes()));
    let rights: Vec<_> = rights.iter().map(|right| format!("\"{right}\"")).collect();
    let rights = rights.join(", ");
    let entry = format!("[[key]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\nrights = [{rights}]\n");
    Ok((key, entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 1,
        burst: 2,
    };

    fn with(authorization: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, authorization.parse().unwrap());
        headers
    }

    #[test]
    fn a_new_key_is_known_by_its_entry_and_has_its_rights() {
        let (key, entry) = new_key("shop", &[Right::OrdersRead]).unwrap();
        let (other, _) = new_key("shop", &[]).unwrap();
        assert!(!entry.contains(&key));
        let keys = Keys::parse(&entry, RATE).unwrap();
        let caller = keys.caller(&with(&format!("Bearer {key}"))).unwrap();
        assert_eq!(caller.name(), "shop");
        assert!(caller.may(Right::OrdersRead).is_ok());
        assert!(caller.may(Right::OrdersWrite).is_err());
        for wrong in [
            format!("Bearer {other}"),
            format!("Basic {key}"),
            format!("Bearer {key}x"),
            key.clone(),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
        ] {
            assert!(keys.caller(&with(&wrong)).is_err(), "{wrong}");
        }
        assert!(keys.caller(&HeaderMap::new()).is_err());
    }

    #[test]
    fn a_caller_has_two_keys_while_one_replaces_the_other() {
        let (old, old_entry) = new_key("shop", &[Right::OrdersRead]).unwrap();
        let (new, new_entry) = new_key("shop", &[Right::OrdersRead]).unwrap();
        let (third, third_entry) = new_key("till", &[Right::StockRead]).unwrap();
        let keys = Keys::parse(&format!("{old_entry}{third_entry}{new_entry}"), RATE).unwrap();
        for (key, name) in [(old, "shop"), (new, "shop"), (third, "till")] {
            let caller = keys.caller(&with(&format!("bearer {key}"))).unwrap();
            assert_eq!(caller.name(), name);
        }
    }

    #[test]
    fn a_caller_that_calls_too_often_waits() {
        let (key, entry) = new_key("shop", &[]).unwrap();
        let keys = Keys::parse(&entry, RATE).unwrap();
        let headers = with(&format!("Bearer {key}"));
        assert!(keys.caller(&headers).is_ok() && keys.caller(&headers).is_ok());
        let problem = keys.caller(&headers).unwrap_err();
        assert!(format!("{problem:?}").contains("429"), "{problem:?}");
    }

    #[test]
    fn everything_that_is_wrong_with_the_entries_is_named() {
        let (_, entry) = new_key("shop", &[]).unwrap();
        let other = entry.replace("rights = []", "rights = [\"stock.read\"]");
        let wrong = "[[key]]\nname = \"a b\"\nsha256 = \"12\"\nrights = [\"all\"]\n";
        let problems = Keys::parse(&format!("{entry}{other}{wrong}"), RATE);
        let problems = problems.err().unwrap().join("\n");
        for part in [
            "key 2 (shop): has other rights",
            "key 2 (shop): is there twice",
            "key 3 (a b): expected a name",
            "key 3 (a b): expected a sha256",
            "key 3 (a b): \"all\" is no right, expected some of orders.read",
        ] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        assert!(Keys::parse("", RATE).err().unwrap()[0].contains("there is no [[key]]"));
        let unknown = Keys::parse("[[key]]\nname = \"a\"\nsecret = \"hunter2\"", RATE);
        assert!(unknown.err().unwrap()[0].contains("unknown field"));
    }
}
