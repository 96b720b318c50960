//! Messages that were set aside.

use super::Shared;
use super::acks::acks;
use super::burst::send_acks;
use super::wire::Held;
use crate::broker::{Delivery, Result, Tag};
use lapin::Channel;
use lapin::options::BasicGetOptions;
use lapin::types::ShortString;
use std::collections::{BTreeMap, BTreeSet};

/// What this process has taken of one role's crash queue and not forgotten. It stays unacknowledged,
/// so that it comes again if the process ends or puts it back.
#[derive(Debug, Default)]
pub(super) struct Taken {
    channel: Option<Channel>,
    epoch: i64,
    deliveries: BTreeMap<u64, Delivery>,
}

impl Taken {
    pub(super) fn count(&self) -> u64 {
        self.deliveries.len().try_into().unwrap_or(u64::MAX)
    }

    /// Takes more until there are `max`, and returns all.
    pub(super) async fn take(
        &mut self,
        shared: &Shared,
        queue: &ShortString,
        max: usize,
    ) -> Result<Vec<Delivery>> {
        let link = &shared.consuming;
        let channel = match &self.channel {
            Some(channel) if channel.status().connected() => channel,
            _ => {
                // What the old channel held comes again.
                self.deliveries.clear();
                self.epoch = shared.next_epoch();
                self.channel.insert(link.channel().await?)
            }
        };
        while self.deliveries.len() < max {
            let options = BasicGetOptions { no_ack: false };
            let got = channel.basic_get(queue.clone(), options).await;
            let Some(got) = got.map_err(|error| link.unavailable(&error))? else {
                break;
            };
            let id = got.delivery.delivery_tag;
            let tag = Tag {
                id: i64::try_from(id).unwrap_or(i64::MAX),
                fence: self.epoch,
            };
            let held = Held::of(got.delivery);
            let delivery = held.set_aside(tag, shared.delivery_limit);
            self.deliveries.insert(id, delivery);
        }
        Ok(self.deliveries.values().take(max).cloned().collect())
    }

    /// Returns what was taken and not forgotten to its queue.
    pub(super) async fn put_back(&mut self) {
        if self.deliveries.is_empty() {
            return;
        }
        self.deliveries.clear();
        if let Some(channel) = self.channel.take() {
            // If it cannot be closed it is gone, with the same effect.
            let _ = channel.close(200, "OK".into()).await;
        }
    }

    /// Acknowledges what was taken; what was not, or by a channel that is gone, is passed over.
    pub(super) async fn forget(&mut self, tags: &[Tag]) {
        let ours = tags.iter().filter(|tag| tag.fence == self.epoch);
        let ids = ours.filter_map(|tag| u64::try_from(tag.id).ok());
        let ids: BTreeSet<u64> = ids.filter(|id| self.deliveries.contains_key(id)).collect();
        if let Some(channel) = &self.channel
            && !ids.is_empty()
        {
            let acks = acks(self.deliveries.keys().copied(), &ids);
            // If they are not written the messages come again, which their keeper bears.
            send_acks(channel, &acks).await;
            self.deliveries.retain(|id, _| !ids.contains(id));
        }
    }
}
