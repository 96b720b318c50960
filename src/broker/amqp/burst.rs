//! Frames that are written in one go.

use super::acks::Ack;
use futures_util::future::{MaybeDone, maybe_done};
use lapin::Channel;
use lapin::options::BasicAckOptions;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Something that has begun to be written.
pub(super) type Begun<F> = Pin<Box<MaybeDone<F>>>;

/// Begins to write something and does not wait for its end, so that what is begun next is written in
/// the same go.
pub(super) async fn begin<F: Future>(write: F) -> Begun<F> {
    let mut write = Box::pin(maybe_done(write));
    poll_fn(|context| {
        // What comes of it is asked for later.
        let _ = write.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
    write
}

/// Waits until it is written, or cannot be.
pub(super) async fn end<F: Future>(mut write: Begun<F>) -> Option<F::Output> {
    write.as_mut().await;
    write.as_mut().take_output()
}

/// Sends acknowledgements. Returns whether all were written; if not, the channel is gone.
pub(super) async fn send_acks(channel: &Channel, acks: &[Ack]) -> bool {
    let mut writing = Vec::with_capacity(acks.len());
    for &Ack { tag, multiple } in acks {
        let ack = channel.basic_ack(tag, BasicAckOptions { multiple });
        writing.push(begin(ack).await);
    }
    let mut written = true;
    for write in writing {
        written &= matches!(end(write).await, Some(Ok(())));
    }
    written
}
