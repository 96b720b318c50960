//! Kill points: a test tells the real binary where to end itself by SIGKILL.
//!
//! What lives here: two environment variables of `orderonce serve`, and what they arm. The process
//! ends where it stands, as if the power had been cut; nothing is rolled back, closed or told.

use crate::domain::{Fingerprint, Key, RoleName};
use crate::gate::{Gate, Known};
use crate::worker::supervisor::Plan;
use crate::worker::{Point, Points};
use async_trait::async_trait;
use rustix::process::{Signal, getpid, kill_process};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strum::IntoEnumIterator;

/// The variable that names a [`Point`] and, after a colon, which passage of it is the last:
/// `committed`, `relay_read:3`.
pub const AT: &str = "ORDERONCE_KILL_AT";

/// The variable that names a key, as `ROLE:KEY`. The process ends whenever a batch of the role has
/// an event with this key, as a message does that its worker cannot survive.
pub const ON: &str = "ORDERONCE_KILL_ON";

/// A variable that says nothing that can be armed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such point.
    #[error(
        "{AT} is {given:?}, expected POINT or POINT:N with N from 1 and one of the points {}",
        points()
    )]
    Point {
        /// The value.
        given: String,
    },
    /// It is not a role and a key.
    #[error("{ON} is {given:?}, expected ROLE:KEY")]
    Key {
        /// The value.
        given: String,
    },
}

/// Where a process is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KillAt {
    /// The point.
    pub point: Point,
    /// Which passage of it, from 1.
    pub passage: u64,
}

impl FromStr for KillAt {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (point, passage) = text.split_once(':').unwrap_or((text, "1"));
        match (point.parse(), passage.parse()) {
            (Ok(point), Ok(passage)) if passage > 0 => Ok(Self { point, passage }),
            _ => Err(Error::Point {
                given: text.to_owned(),
            }),
        }
    }
}

/// Arms `plan` with what the variables say; `variable` returns the value of one.
///
/// # Errors
/// [`Error`] if one says nothing that can be armed.
pub fn arm(mut plan: Plan, variable: impl Fn(&str) -> Option<String>) -> Result<Plan, Error> {
    if let Some(at) = variable(AT) {
        plan.points = ending(at.parse()?);
    }
    if let Some(on) = variable(ON) {
        let Some((role, key)) = on.split_once(':') else {
            return Err(Error::Key { given: on });
        };
        plan.gates.push(Arc::new(KillOn {
            role: RoleName::new(role.to_owned()),
            key: key.to_owned(),
        }));
    }
    Ok(plan)
}

/// Points of which one ends the process.
fn ending(at: KillAt) -> Points {
    let passages = AtomicU64::new(0);
    Points::stopping(move |point| {
        if point == at.point && passages.fetch_add(1, Ordering::Relaxed) + 1 == at.passage {
            end();
        }
        false
    })
}

/// A gate that knows nothing and survives one key less than others do.
struct KillOn {
    role: RoleName,
    key: String,
}

#[async_trait]
impl Gate for KillOn {
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known> {
        if *role == self.role && keys.iter().any(|key| key.as_str() == self.key) {
            end();
        }
        vec![Known::Unknown; keys.len()]
    }

    async fn tell(&self, _: &RoleName, _: &[(&Key, Fingerprint)]) {}
}

/// Ends this process by SIGKILL.
fn end() -> ! {
    // Nothing can be done about a kill that fails; it is tried until it does not.
    loop {
        let _ = kill_process(getpid(), Signal::KILL);
        std::thread::yield_now();
    }
}

fn points() -> String {
    let names: Vec<_> = Point::iter().map(|point| point.to_string()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_named_alone_or_with_its_passage() {
        let at = |text: &str| text.parse::<KillAt>();
        let expected = |point, passage| Ok(KillAt { point, passage });
        assert_eq!(at("committed"), expected(Point::Committed, 1));
        assert_eq!(at("relay_read:12"), expected(Point::RelayRead, 12));
        for wrong in [
            "",
            "commit",
            "Committed",
            "committed:",
            "committed:0",
            "committed:x",
        ] {
            assert!(at(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_unknown_point_is_refused_with_the_points_there_are() {
        let error = "lunch".parse::<KillAt>().unwrap_err().to_string();
        assert!(
            error.starts_with("ORDERONCE_KILL_AT is \"lunch\", "),
            "{error}"
        );
        for point in Point::iter() {
            assert!(error.contains(&point.to_string()), "{error}");
        }
    }
}
