//! What holds after any sequence of events of one account.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{HashMap, HashSet};

/// Events of one account, no two of them with one source.
fn different_events() -> impl Strategy<Value = Vec<AccountEvent>> {
    let credits = proptest::collection::vec(1_i64..30, 1..4);
    let debits = proptest::collection::vec(1_i64..30, 0..4);
    let part = proptest::option::of(1_i64..20);
    let reversals = proptest::collection::vec((0_usize..4, part), 0..6);
    let refunds = proptest::collection::vec((0_i64..2100, any::<bool>()), 0..4);
    (credits, debits, reversals, refunds).prop_map(|(credits, debits, reversals, refunds)| {
        let mut events = vec![completed(1999, 0)];
        for (n, amount) in credits.into_iter().enumerate() {
            events.push(AccountEvent::Credit(change(&format!("G{n}"), amount)));
        }
        for (n, amount) in debits.into_iter().enumerate() {
            events.push(AccountEvent::Debit(change(&format!("D{n}"), amount)));
        }
        for (n, (of, part)) in reversals.into_iter().enumerate() {
            events.push(reverse(&format!("M{n}"), &format!("G{of}"), part));
        }
        for (n, (sum, completed)) in refunds.into_iter().enumerate() {
            events.push(refunded(&format!("R{n}"), sum, completed));
        }
        events
    })
}

/// Those events, most of them more than once, in any order.
fn sequences() -> impl Strategy<Value = Vec<AccountEvent>> {
    different_events().prop_flat_map(|events| {
        let picks = proptest::collection::vec(any::<Index>(), 0..20);
        let all = [events.clone(), events.clone()].concat();
        (Just(events), Just(all).prop_shuffle(), picks).prop_map(|(events, mut all, picks)| {
            all.extend(picks.iter().map(|pick| pick.get(&events).clone()));
            all
        })
    })
}

fn assert_sound(rows: &AccountRows) {
    for (account, row) in &rows.accounts {
        let flows = rows.flows.iter().filter(|flow| flow.account == *account);
        assert!(row.balance >= 0);
        assert_eq!(
            row.balance,
            flows.clone().map(|flow| flow.amount).sum::<i64>()
        );
        assert_eq!(i64::try_from(flows.count()), Ok(row.version));
    }
    let mut taken: HashMap<&Source, i64> = HashMap::new();
    for flow in &rows.flows {
        if let Some(source) = &flow.reverses {
            *taken.entry(source).or_default() -= flow.amount;
        }
    }
    for (source, taken) in taken {
        let credit = rows.flows.iter().find(|flow| flow.source == *source);
        let credited = credit.expect("a credit for each reversal").amount;
        assert!((0..=credited).contains(&taken), "{taken} of {credited}");
    }
}

proptest! {
    #[test]
    fn a_balance_is_the_sum_of_its_flows_and_never_negative(events in sequences()) {
        let mut rows = AccountRows::default();
        for event in &events {
            rows.handle(event);
            assert_sound(&rows);
        }
    }

    #[test]
    fn a_replay_changes_nothing_even_without_claims(events in sequences()) {
        let mut rows = AccountRows::default();
        let mut applied = HashSet::new();
        for event in &events {
            let before = rows.clone();
            let key = key(event, &points_rule());
            let decision = rows.handle(event);
            if applied.contains(&key) {
                prop_assert_eq!(&rows, &before);
                prop_assert_eq!(&decision.emits, &[]);
            } else if decision.verdict == Verdict::Applied {
                applied.insert(key);
            }
        }
    }

    #[test]
    fn refunds_come_to_the_same_points_in_any_order(
        (last, shuffled) in proptest::collection::vec(1_i64..=1999, 1..7).prop_flat_map(|mut sums| {
            sums.sort_unstable();
            let last = sums[sums.len() - 1];
            // The first of them came before the order was complete.
            let mut events = vec![completed(1999, sums[0]), refunded("R0", sums[0], false)];
            for (n, &sum) in sums.iter().enumerate().skip(1) {
                events.push(refunded(&format!("R{n}"), sum, true));
            }
            (Just(last), Just(events).prop_shuffle())
        })
    ) {
        let mut rows = AccountRows::default();
        let mut parked = Vec::new();
        for event in &shuffled {
            if let Verdict::Parked(token) = rows.handle(event).verdict {
                prop_assert!(token.as_str().ends_with(":ORDER:O1"));
                parked.push(event);
            }
        }
        for event in parked {
            prop_assert_eq!(rows.handle(event).verdict, Verdict::Applied);
        }
        prop_assert_eq!(rows.balance("U1", "POINTS"), (1999 - last) / 100);
    }
}
