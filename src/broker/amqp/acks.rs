//! Which frames acknowledge a set of deliveries.

use std::collections::BTreeSet;

/// One acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ack {
    pub(super) tag: u64,
    /// Whether it means every outstanding delivery up to this one.
    pub(super) multiple: bool,
}

/// The fewest frames that acknowledge `settled` and nothing else of what is `outstanding`, which is
/// in order and includes it.
pub(super) fn acks(outstanding: impl Iterator<Item = u64>, settled: &BTreeSet<u64>) -> Vec<Ack> {
    let run = outstanding.take_while(|tag| settled.contains(tag)).count();
    let run_end = run.checked_sub(1).and_then(|n| settled.iter().nth(n));
    let multiple = run > 1;
    let first = run_end.map(|&tag| Ack { tag, multiple });
    let alone = settled.iter().skip(run);
    let alone = alone.map(|&tag| Ack {
        tag,
        multiple: false,
    });
    first.into_iter().chain(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(outstanding: &[u64], settled: &[u64]) -> Vec<(u64, bool)> {
        let settled = settled.iter().copied().collect();
        let acks = acks(outstanding.iter().copied(), &settled);
        acks.iter().map(|ack| (ack.tag, ack.multiple)).collect()
    }

    #[test]
    fn a_run_from_the_oldest_is_one_frame() {
        assert_eq!(frames(&[3, 4, 5, 9], &[3, 4, 5]), [(5, true)]);
        assert_eq!(frames(&[3, 4, 5], &[3]), [(3, false)]);
        assert_eq!(frames(&[3, 4, 5], &[]), []);
    }

    #[test]
    fn what_lies_behind_a_held_delivery_is_settled_alone() {
        assert_eq!(frames(&[3, 4, 5], &[4, 5]), [(4, false), (5, false)]);
        assert_eq!(frames(&[1, 2, 3, 4], &[1, 2, 4]), [(2, true), (4, false)]);
    }

    proptest! {
        /// The server's rules: a frame must name an outstanding tag.
        #[test]
        fn the_server_settles_what_was_meant_and_nothing_else(
            held in proptest::collection::vec((1_u64..100, any::<bool>()), 0..40)
        ) {
            let mut outstanding: BTreeSet<u64> = held.iter().map(|&(tag, _)| tag).collect();
            let settled: BTreeSet<u64> = held
                .iter()
                .filter(|(_, settled)| *settled)
                .map(|&(tag, _)| tag)
                .collect();
            let left: BTreeSet<u64> = outstanding.difference(&settled).copied().collect();
            for ack in acks(outstanding.iter().copied(), &settled) {
                prop_assert!(outstanding.contains(&ack.tag), "unknown tag {ack:?}");
                match ack.multiple {
                    true => outstanding.retain(|&tag| tag > ack.tag),
                    false => { outstanding.remove(&ack.tag); }
                }
            }
            prop_assert_eq!(outstanding, left);
        }
    }
}
