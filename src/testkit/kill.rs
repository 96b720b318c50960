//! Kill points: a test tells the real binary where to end itself by SIGKILL, or to stand still.
//!
//! What lives here: three environment variables of `orderonce serve`, and what they arm. The process
//! ends where it stands, as if the power had been cut; nothing is rolled back, closed or told. Or it
//! stops where it stands by SIGSTOP, so that the test can do something to its servers, and goes on
//! by SIGCONT.

use crate::domain::{Key, RoleName};
use crate::gate::{Gate, Known, Told};
use crate::worker::supervisor::Plan;
use crate::worker::{Point, Points};
use async_trait::async_trait;
use rustix::process::{Signal, getpid, kill_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use strum::IntoEnumIterator;

/// The variable that names a [`Point`] and, after a colon, which passage of it is the last:
/// `committed`, `relay_read:3`.
pub const AT: &str = "ORDERONCE_KILL_AT";

/// The variable that names a [`Point`] as [`AT`] does, where the process stops and waits for SIGCONT.
pub const STOP_AT: &str = "ORDERONCE_STOP_AT";

/// The variable that names a key, as `ROLE:KEY`. The process ends whenever a batch of the role has
/// an event with this key, as a message does that its worker cannot survive.
pub const ON: &str = "ORDERONCE_KILL_ON";

/// A variable that says nothing that can be armed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such point.
    #[error(
        "{variable} is {given:?}, expected POINT or POINT:N with N from 1 and one of the points {}",
        points()
    )]
    Point {
        /// Its name.
        variable: &'static str,
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

/// Where a process is to end or to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// The point.
    pub point: Point,
    /// Which passage of it, from 1.
    pub passage: u64,
}

impl Passage {
    fn read(variable: &'static str, text: &str) -> Result<Self, Error> {
        let (point, passage) = text.split_once(':').unwrap_or((text, "1"));
        match (point.parse(), passage.parse()) {
            (Ok(point), Ok(passage)) if passage > 0 => Ok(Self { point, passage }),
            _ => Err(Error::Point {
                variable,
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
    let passage = |name| variable(name).map(|text| Passage::read(name, &text));
    let (end_at, stop_at) = (passage(AT).transpose()?, passage(STOP_AT).transpose()?);
    if end_at.is_some() || stop_at.is_some() {
        plan.points = armed(end_at, stop_at);
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

/// Points of which one ends and one stops the process.
fn armed(end_at: Option<Passage>, stop_at: Option<Passage>) -> Points {
    let (end_at, stop_at) = (Countdown::new(end_at), Countdown::new(stop_at));
    Points::stopping(move |point| {
        if end_at.is_over(point) {
            end();
        }
        if stop_at.is_over(point) {
            // If it cannot be sent, the test finds a process that did not stop.
            let _ = kill_process(getpid(), Signal::STOP);
        }
        false
    })
}

/// Counts the passages of a point.
struct Countdown {
    at: Option<Passage>,
    passages: AtomicU64,
}

impl Countdown {
    fn new(at: Option<Passage>) -> Self {
        Self {
            at,
            passages: AtomicU64::new(0),
        }
    }

    /// Whether this passage of a point is the one.
    fn is_over(&self, point: Point) -> bool {
        self.at.is_some_and(|at| {
            at.point == point && self.passages.fetch_add(1, Ordering::Relaxed) + 1 == at.passage
        })
    }
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

    async fn tell(&self, _: &RoleName, _: &[Told<'_>]) {}
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
        let at = |text: &str| Passage::read(AT, text);
        let expected = |point, passage| Ok(Passage { point, passage });
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
        let error = Passage::read(AT, "lunch").unwrap_err().to_string();
        assert!(
            error.starts_with("ORDERONCE_KILL_AT is \"lunch\", "),
            "{error}"
        );
        for point in Point::iter() {
            assert!(error.contains(&point.to_string()), "{error}");
        }
    }
}
