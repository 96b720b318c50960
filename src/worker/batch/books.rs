//! What the outcomes of an attempt mean for claims, parked events and dead letters.

use super::unit::{Unit, Unreadable, dead_reason};
use super::work::{Fresh, Work};
use crate::domain::{DeadReason, Key, Layer, Outcome, Timestamp, Token};
use crate::store::{Conclusion, NewOutbox, NewParked, Prior};
use std::borrow::Cow;

/// What follows from the decisions beside the role's own rows.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) outbox: Vec<NewOutbox>,
    pub(super) reached: Vec<Token>,
    pub(super) problems: Vec<(usize, String)>,
}

/// What the outcomes mean for claims, parked events and dead letters.
pub(super) struct Books<'b, E> {
    pub(super) conclusions: Vec<Conclusion<'b>>,
    pub(super) unclaimed: Vec<&'b Key>,
    pub(super) parked: Vec<NewParked<'b>>,
    pub(super) unparked: Vec<&'b Key>,
    pub(super) dead: Vec<Dead<'b, E>>,
    /// The answers to what clients asked.
    pub(super) answers: Vec<Conclusion<'b>>,
    /// What clients asked and have to ask again.
    pub(super) unanswered: Vec<&'b Key>,
}

pub(super) struct Dead<'b, E> {
    pub(super) unit: &'b Unit<'b, E>,
    pub(super) key: Option<&'b Key>,
    pub(super) reason: DeadReason,
    pub(super) detail: Cow<'b, str>,
}

impl<'b, E> Books<'b, E> {
    pub(super) fn of(work: &'b Work<'_, E>, effects: &'b Effects, deadline: Timestamp) -> Self {
        let mut books = Self {
            conclusions: Vec::new(),
            unclaimed: Vec::new(),
            parked: Vec::new(),
            unparked: Vec::new(),
            dead: Vec::new(),
            answers: Vec::new(),
            unanswered: Vec::new(),
        };
        for unit in work.units {
            if let Err(Unreadable { malformed, .. }) = &unit.content {
                books.dead.push(Dead {
                    unit,
                    key: None,
                    reason: dead_reason(malformed),
                    detail: malformed.to_string().into(),
                });
            }
        }
        for (member, outcome) in work.flat.iter().zip(&work.outcomes) {
            if let Some(Outcome::Conflict) = outcome {
                books.dead.push(Dead {
                    unit: member.unit,
                    key: Some(&member.item.key),
                    reason: DeadReason::Conflict,
                    detail: "the key is taken by other content".into(),
                });
            }
        }
        for fresh in &work.fresh {
            if let Some(outcome) = &work.outcomes[fresh.member] {
                books.close(fresh, outcome, effects, deadline);
            }
        }
        for (member, outcome) in work.flat.iter().zip(&work.outcomes) {
            if let (Some(request), Some(outcome)) = (&member.unit.request, outcome) {
                books.answer(&request.key, outcome);
            }
        }
        books
    }

    /// Keeps the answer to a request with its claim, which says `applied` whatever the answer is.
    fn answer(&mut self, key: &'b Key, outcome: &Outcome) {
        match outcome {
            Outcome::Applied | Outcome::Duplicate(Layer::Request) => {}
            Outcome::Retried { .. } => self.unanswered.push(key),
            Outcome::Duplicate(_)
            | Outcome::Conflict
            | Outcome::Parked(_)
            | Outcome::Stale
            | Outcome::Rejected(_)
            | Outcome::Dead(_) => self.answers.push(Conclusion {
                key,
                from: "applied",
                to: "applied",
                detail: Some(outcome.recorded().into()),
            }),
        }
    }

    fn close(
        &mut self,
        fresh: &'b Fresh<'_, E>,
        outcome: &'b Outcome,
        effects: &'b Effects,
        deadline: Timestamp,
    ) {
        let key = &fresh.item.key;
        match outcome {
            Outcome::Duplicate(Layer::Parked) => return,
            Outcome::Retried { .. } => {
                if fresh.prior == Prior::Fresh {
                    self.unclaimed.push(key);
                }
                return;
            }
            Outcome::Conflict => return self.give_up(fresh, DeadReason::Conflict),
            Outcome::Dead(reason) => {
                self.give_up(fresh, *reason);
                let mut problems = effects.problems.iter();
                let problem = problems.find(|(member, _)| *member == fresh.member);
                self.dead.push(Dead {
                    unit: fresh.unit,
                    key: Some(key),
                    reason: *reason,
                    detail: problem.map_or("", |(_, problem)| problem).into(),
                });
                return;
            }
            Outcome::Applied
            | Outcome::Duplicate(_)
            | Outcome::Parked(_)
            | Outcome::Stale
            | Outcome::Rejected(_) => {}
        }
        // One that is parked again waits for another token, and its claim says so.
        let again = matches!(fresh.prior, Prior::Parked { .. });
        if again || outcome.name() != fresh.prior.outcome() {
            self.conclusions.push(Conclusion {
                key,
                from: fresh.prior.outcome(),
                to: outcome.name(),
                detail: outcome.detail(),
            });
        }
        if let Outcome::Parked(awaits) = outcome
            && let Ok(content) = &fresh.unit.content
        {
            self.parked.push(NewParked {
                key,
                awaits,
                message_id: &content.message_id,
                event_type: &content.event_type,
                subject: &fresh.item.subject,
                message: fresh.unit.text(),
                headers: &fresh.unit.delivery.headers,
                deadline,
            });
        } else if let Prior::Parked { .. } = fresh.prior {
            self.unparked.push(key);
        }
    }

    /// Nothing of the event was done, so the key must not say that it was, and nothing is waited for.
    pub(super) fn give_up(&mut self, fresh: &'b Fresh<'_, E>, reason: DeadReason) {
        let key = &fresh.item.key;
        match fresh.prior {
            Prior::Fresh => self.unclaimed.push(key),
            Prior::Parked { .. } => {
                self.conclusions.push(Conclusion {
                    key,
                    from: fresh.prior.outcome(),
                    to: "dead",
                    detail: Some(Cow::Borrowed(reason.into())),
                });
                self.unparked.push(key);
            }
            Prior::Dead => {}
        }
    }
}
