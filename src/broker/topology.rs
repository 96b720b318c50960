//! Which types of events go to which role's queue.

use crate::domain::{EventType, RoleName};
use std::collections::{BTreeMap, BTreeSet};
use strum::IntoEnumIterator;

/// Queues and their bindings, as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    queues: BTreeMap<RoleName, BTreeSet<String>>,
}

/// The four built-in roles, each bound to the types that it consumes.
impl Default for Topology {
    fn default() -> Self {
        let mut topology = Self {
            queues: BTreeMap::new(),
        };
        for event_type in EventType::iter() {
            if let Some(role) = event_type.consumer() {
                topology.bind(&role, event_type.name());
            }
        }
        topology
    }
}

impl Topology {
    /// Adds a type to the queue of a role, which need not be a built-in one.
    pub fn bind(&mut self, role: &RoleName, event_type: &str) {
        let types = self.queues.entry(role.clone()).or_default();
        types.insert(event_type.to_owned());
    }

    /// The roles that have a queue.
    pub fn roles(&self) -> impl Iterator<Item = &RoleName> {
        self.queues.keys()
    }

    /// Whether a role has a queue.
    #[must_use]
    pub fn has_queue(&self, role: &RoleName) -> bool {
        self.queues.contains_key(role)
    }

    /// The types that go to the queue of a role.
    pub fn types(&self, role: &RoleName) -> impl Iterator<Item = &str> {
        let types = self.queues.get(role).into_iter().flatten();
        types.map(String::as_str)
    }

    /// The roles whose queues a message of this type goes to.
    pub fn routes(&self, event_type: &str) -> impl Iterator<Item = &RoleName> {
        self.queues
            .iter()
            .filter(move |(_, types)| types.contains(event_type))
            .map(|(role, _)| role)
    }

    /// Whether a message of this type must find a queue: it is a built-in event that a role
    /// consumes, or of a type that nobody has heard of. Notices may find none.
    #[must_use]
    pub fn mandatory(&self, event_type: &str) -> bool {
        match event_type.parse::<EventType>() {
            Ok(event_type) => event_type.consumer().is_some(),
            Err(_) => true,
        }
    }
}
