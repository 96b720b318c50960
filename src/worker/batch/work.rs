//! What one attempt works on: copies brought together by key, and what is decided of each event.

use super::unit::{Item, Unit, dead_reason};
use crate::domain::{Key, Layer, Outcome};
use crate::store::{Claimed, Prior};
use std::collections::{BTreeMap, BTreeSet};

/// What one attempt works on. Copies are brought together by key; whatever is decided of an event
/// stands in `outcomes`, in the order of `flat`.
pub(super) struct Work<'w, E> {
    pub(super) units: &'w [Unit<'w, E>],
    pub(super) flat: Vec<Member<'w, E>>,
    /// In the order of their keys, which is the order in which rows are locked.
    pub(super) groups: Vec<Group<'w>>,
    /// Claimed and to be decided, in order of arrival.
    pub(super) fresh: Vec<Fresh<'w, E>>,
    pub(super) outcomes: Vec<Option<Outcome>>,
    /// Duplicates of claims that had expired.
    pub(super) late: u64,
}

/// An event with the delivery that brought it.
pub(super) struct Member<'w, E> {
    pub(super) unit: &'w Unit<'w, E>,
    pub(super) item: &'w Item<E>,
}

/// All events of an attempt that have one key, in order of arrival.
pub(super) struct Group<'w> {
    pub(super) key: &'w Key,
    pub(super) members: Vec<usize>,
    /// Whether a gate has said that those behind it need not be asked.
    pub(super) is_absent: bool,
}

/// An event to be decided.
pub(super) struct Fresh<'w, E> {
    pub(super) member: usize,
    pub(super) unit: &'w Unit<'w, E>,
    pub(super) item: &'w Item<E>,
    pub(super) prior: Prior,
}

impl<'w, E> Work<'w, E> {
    pub(super) fn of(units: &'w [Unit<'w, E>]) -> Self {
        let members = |unit: &'w Unit<'w, E>| {
            let items = unit.items().iter();
            items.map(move |item| Member { unit, item })
        };
        let flat: Vec<_> = units.iter().flat_map(members).collect();
        let mut order: Vec<usize> = (0..flat.len()).collect();
        order.sort_by_key(|&member| &flat[member].item.key);
        let groups = order.chunk_by(|&a, &b| flat[a].item.key == flat[b].item.key);
        let groups = groups.map(|members| Group {
            key: &flat[members[0]].item.key,
            members: members.to_vec(),
            is_absent: false,
        });
        Self {
            units,
            groups: groups.collect(),
            fresh: Vec::with_capacity(flat.len()),
            outcomes: vec![None; flat.len()],
            late: 0,
            flat,
        }
    }

    /// What was asked for, by member, in the order of the requests' keys.
    pub(super) fn requests(&self) -> BTreeMap<&'w Key, Vec<usize>> {
        let mut requests: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (member, Member { unit, .. }) in self.flat.iter().enumerate() {
            if let Some(request) = &unit.request {
                requests.entry(&request.key).or_default().push(member);
            }
        }
        requests
    }

    /// Takes out what was asked for before: the answer stands with the request.
    pub(super) fn repeat(&mut self, repeated: &BTreeSet<usize>) {
        for group in &mut self.groups {
            group.members.retain(|member| !repeated.contains(member));
        }
        self.groups.retain(|group| !group.members.is_empty());
        for &member in repeated {
            self.outcomes[member] = Some(Outcome::Duplicate(Layer::Request));
        }
    }

    /// Whether nothing is left for the database.
    pub(super) fn is_settled(&self) -> bool {
        self.groups.is_empty() && self.units.iter().all(|unit| unit.content.is_ok())
    }

    /// Takes the answers to the claims of all groups: of the copies that are equal to what took the
    /// key, the first of an unsettled key is decided; those that differ from it are conflicts.
    pub(super) fn answer(&mut self, answers: Vec<Claimed>) {
        for (group, answer) in self.groups.iter().zip(answers) {
            let is_late = matches!(
                answer,
                Claimed::Done {
                    is_expired: true,
                    ..
                }
            );
            let (fingerprint, mut prior) = match answer {
                Claimed::Fresh => {
                    let first = &self.flat[group.members[0]];
                    (first.item.fingerprint, Some(Prior::Fresh))
                }
                Claimed::Open { prior, fingerprint } => (fingerprint, Some(prior)),
                Claimed::Done { fingerprint, .. } => (fingerprint, None),
            };
            let mut layer = Layer::Claim;
            for &member in &group.members {
                let Member { unit, item } = self.flat[member];
                self.outcomes[member] = if item.fingerprint != fingerprint {
                    Some(Outcome::Conflict)
                } else if let Some(prior) = prior.take() {
                    layer = Layer::Batch;
                    self.fresh.push(Fresh {
                        member,
                        unit,
                        item,
                        prior,
                    });
                    None
                } else {
                    self.late += u64::from(is_late);
                    Some(Outcome::Duplicate(layer))
                };
            }
        }
        self.fresh.sort_by_key(|fresh| fresh.member);
    }

    /// The outcomes of each delivery's events, in order; that of a delivery without events is that
    /// it could not be read.
    pub(super) fn outcomes_by_unit(self) -> Vec<Vec<Outcome>> {
        let mut outcomes = self.outcomes.into_iter();
        let of_unit = |unit: &Unit<'_, E>| match &unit.content {
            Ok(content) => {
                let outcomes = outcomes.by_ref().take(content.items.len());
                // Every member is answered, and every fresh one decided, before this is called.
                outcomes
                    .map(|outcome| outcome.unwrap_or(Outcome::Conflict))
                    .collect()
            }
            Err(unreadable) => vec![Outcome::Dead(dead_reason(&unreadable.malformed))],
        };
        self.units.iter().map(of_unit).collect()
    }
}
