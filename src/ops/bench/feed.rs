//! Deliveries from memory, shared by the workers of one run.

use crate::broker::{Consumer, Delivery, Result, Settlement, Tag};
use async_trait::async_trait;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A queue that nobody adds to.
pub(super) struct Feed {
    /// Each with its place here as its tag.
    deliveries: Vec<Delivery>,
    next: AtomicUsize,
    /// Those that were not decided, and come again once the others have come.
    again: Mutex<Vec<Delivery>>,
}

impl Feed {
    pub(super) fn new(deliveries: Vec<Delivery>) -> Arc<Self> {
        Arc::new(Self {
            deliveries,
            next: AtomicUsize::new(0),
            again: Mutex::default(),
        })
    }

    /// How many deliveries it began with.
    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.deliveries.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn consumer(self: &Arc<Self>) -> Box<dyn Consumer> {
        Box::new(FeedConsumer(Arc::clone(self)))
    }

    fn take(&self, max: usize) -> Vec<Delivery> {
        let start = self.next.fetch_add(max, Ordering::Relaxed);
        let start = start.min(self.deliveries.len());
        let end = start.saturating_add(max).min(self.deliveries.len());
        if start < end {
            return self.deliveries[start..end].to_vec();
        }
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = max.min(again.len());
        again.drain(..rest).collect()
    }

    /// At once: no delay is waited for.
    fn put_back(&self, tag: Tag, counted: bool) {
        let place = usize::try_from(tag.id).unwrap_or(usize::MAX);
        let Some(delivery) = self.deliveries.get(place) else {
            return;
        };
        let failed = u32::try_from(tag.fence).unwrap_or(0) + u32::from(counted);
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        again.push(Delivery {
            tag: Tag {
                id: tag.id,
                fence: failed.into(),
            },
            attempt: failed,
            ..delivery.clone()
        });
    }
}

/// The fence of its tags is the number of failed attempts.
struct FeedConsumer(Arc<Feed>);

#[async_trait]
impl Consumer for FeedConsumer {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>> {
        let deliveries = self.0.take(max);
        if deliveries.is_empty() {
            // Nothing will ever arrive.
            std::future::pending::<()>().await;
        }
        Ok(deliveries)
    }

    async fn try_receive(&mut self, max: usize) -> Result<Vec<Delivery>> {
        Ok(self.0.take(max))
    }

    async fn settle(&mut self, settlements: &[(Tag, Settlement)]) -> Result<usize> {
        for (tag, settlement) in settlements {
            match settlement {
                Settlement::Ack => {}
                Settlement::Retry(_) => self.0.put_back(*tag, true),
                Settlement::Release | Settlement::Later(_) => self.0.put_back(*tag, false),
            }
        }
        Ok(0)
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Headers;
    use std::time::Duration;

    fn feed(count: i64) -> Arc<Feed> {
        let delivery = |id| Delivery {
            tag: Tag { id, fence: 0 },
            message: id.to_string().into(),
            headers: Headers::new(),
            attempt: 0,
            deliveries: 1,
        };
        Feed::new((0..count).map(delivery).collect())
    }

    fn ids(deliveries: &[Delivery]) -> Vec<i64> {
        deliveries.iter().map(|delivery| delivery.tag.id).collect()
    }

    #[tokio::test]
    async fn workers_share_the_deliveries_and_each_comes_to_one() {
        let feed = feed(5);
        let (mut one, mut other) = (feed.consumer(), feed.consumer());
        assert_eq!(ids(&one.try_receive(2).await.unwrap()), [0, 1]);
        assert_eq!(ids(&other.try_receive(2).await.unwrap()), [2, 3]);
        assert_eq!(ids(&one.try_receive(2).await.unwrap()), [4]);
        assert!(other.try_receive(2).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_was_not_decided_comes_again_after_the_rest() {
        let feed = feed(4);
        let mut consumer = feed.consumer();
        let first = consumer.try_receive(3).await.unwrap();
        let told = [
            (first[0].tag, Settlement::Ack),
            (first[1].tag, Settlement::Retry(Duration::from_secs(10))),
            (first[2].tag, Settlement::Release),
        ];
        assert_eq!(consumer.settle(&told).await.unwrap(), 0);
        assert_eq!(ids(&consumer.try_receive(3).await.unwrap()), [3]);
        let again = consumer.try_receive(3).await.unwrap();
        assert_eq!(ids(&again), [1, 2]);
        assert_eq!((again[0].attempt, again[1].attempt), (1, 0));
        assert_eq!(again[0].message, "1");
        consumer
            .settle(&[(again[0].tag, Settlement::Retry(Duration::ZERO))])
            .await
            .unwrap();
        assert_eq!(consumer.try_receive(3).await.unwrap()[0].attempt, 2);
        assert!(consumer.try_receive(3).await.unwrap().is_empty());
    }
}
