//! The accounts' table: every event in every situation that its rows can be in.

mod properties;

use super::*;
use crate::domain::testing::{AccountRows, check_table, id, points_rule, show_rest, show_verdict};
use crate::domain::{Currency, EventType, RoleName};
use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};

/// What rows there are before the event. Where there is an account, it has a balance of 100.
#[derive(Debug, Clone, Copy, PartialEq, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
enum Situation {
    /// No account.
    Empty,
    /// An account.
    Balance,
    /// An account with the credit of 19 that a reversal names.
    Credited,
    /// That credit and a balance of 3.
    Spent,
    /// That credit, of which reversals took 16.
    TakenInPart,
    /// That credit, all of which reversals took.
    Taken,
    /// That credit and the flow that the event wrote before.
    Own,
    /// That credit and a flow of the event's source with another amount.
    OwnOtherAmount,
    /// That credit and a flow of the event's source that took back another one.
    OwnOtherCredit,
    /// A flow of the event's source that took back another credit than the one it names.
    OwnNoCredit,
}

pub(super) fn completed(paid_minor: i64, refunded_minor: i64) -> AccountEvent {
    AccountEvent::Completed(OrderCompleted {
        order_id: id("O1"),
        user_id: id("U1"),
        currency: Currency::GBP,
        paid_minor,
        refunded_minor,
    })
}

/// A refund after which `refunded_minor` of 19.99 have been given back.
pub(super) fn refunded(refund_no: &str, refunded_minor: i64, completed: bool) -> AccountEvent {
    AccountEvent::Refunded(OrderRefunded {
        order_id: id("O1"),
        user_id: id("U1"),
        provider: id("alipay"),
        refund_no: id(refund_no),
        currency: Currency::GBP,
        amount_minor: 1,
        paid_minor: 1999,
        refunded_minor,
        completed,
    })
}

pub(super) fn change(source_id: &str, amount: i64) -> AccountChange {
    AccountChange {
        user_id: id("U1"),
        kind: id("POINTS"),
        source_type: id("GIFT"),
        source_id: id(source_id),
        amount,
    }
}

pub(super) fn reverse(source_id: &str, of_source_id: &str, amount: Option<i64>) -> AccountEvent {
    AccountEvent::Reverse(AccountReverse {
        user_id: id("U1"),
        kind: id("POINTS"),
        source_type: id("MISTAKE"),
        source_id: id(source_id),
        of_source_type: id("GIFT"),
        of_source_id: id(of_source_id),
        amount,
    })
}

/// Every event with its variants.
#[rustfmt::skip]
fn events() -> Vec<(&'static str, AccountEvent)> {
    use AccountEvent::{Credit, Debit};
    vec![
        ("order.completed", completed(1999, 0)),
        ("order.completed, refunded in part", completed(1999, 500)),
        ("order.completed, nothing kept", completed(1999, 1999)),
        ("order.completed, more refunded than paid", completed(500, 1999)),
        ("order.refunded, before completion", refunded("R1", 500, false)),
        ("order.refunded, part", refunded("R1", 500, true)),
        ("order.refunded, less than a point", refunded("R1", 99, true)),
        ("order.refunded, all", refunded("R1", 1999, true)),
        ("order.refunded, more than paid", refunded("R1", 9999, true)),
        ("account.credit", Credit(change("G2", 10))),
        ("account.credit, beyond the range", Credit(change("G2", i64::MAX))),
        ("account.debit", Debit(change("G2", 3))),
        ("account.debit, all there is", Debit(change("G2", 100))),
        ("account.debit, more than there is", Debit(change("G2", 101))),
        ("account.reverse, all that is left", reverse("M1", "G1", None)),
        ("account.reverse, part", reverse("M1", "G1", Some(3))),
        ("account.reverse, all", reverse("M1", "G1", Some(19))),
        ("account.reverse, more than was credited", reverse("M1", "G1", Some(20))),
    ]
}

/// The flow's change and the balance after it; `+` events; `!` tokens reached.
const TABLE: &str = "
order.completed
    EMPTY: 19 = 19 +account.credited !own
    BALANCE CREDITED TAKEN_IN_PART TAKEN: 19 = 119 +account.credited !own
    SPENT: 19 = 22 +account.credited !own
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
order.completed, refunded in part
    EMPTY: 14 = 14 +account.credited !own
    BALANCE CREDITED TAKEN_IN_PART TAKEN: 14 = 114 +account.credited !own
    SPENT: 14 = 17 +account.credited !own
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
order.completed, nothing kept
    EMPTY: 0 = 0 +account.credited !own
    BALANCE CREDITED TAKEN_IN_PART TAKEN: 0 = 100 +account.credited !own
    SPENT: 0 = 3 +account.credited !own
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
order.completed, more refunded than paid
    EMPTY: 0 = 0 +account.credited !own
    BALANCE CREDITED TAKEN_IN_PART TAKEN: 0 = 100 +account.credited !own
    SPENT: 0 = 3 +account.credited !own
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict

order.refunded, before completion
    EMPTY BALANCE CREDITED SPENT TAKEN_IN_PART TAKEN OWN OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: nothing
order.refunded, part
    EMPTY BALANCE: park credit
    CREDITED: -5 = 95 +account.reversed !own
    SPENT: rejected insufficient_balance +account.rejected
    TAKEN_IN_PART TAKEN: 0 = 100 +account.reversed !own
    OWN OWN_OTHER_AMOUNT: duplicate
    OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
order.refunded, less than a point
    EMPTY BALANCE: park credit
    SPENT: 0 = 3 +account.reversed !own
    CREDITED TAKEN_IN_PART TAKEN: 0 = 100 +account.reversed !own
    OWN OWN_OTHER_AMOUNT: duplicate
    OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
order.refunded, all
    EMPTY BALANCE: park credit
    CREDITED: -19 = 81 +account.reversed !own
    SPENT: rejected insufficient_balance +account.rejected
    TAKEN_IN_PART: -3 = 97 +account.reversed !own
    TAKEN: 0 = 100 +account.reversed !own
    OWN OWN_OTHER_AMOUNT: duplicate
    OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
order.refunded, more than paid
    EMPTY BALANCE: park credit
    CREDITED: -19 = 81 +account.reversed !own
    SPENT: rejected insufficient_balance +account.rejected
    TAKEN_IN_PART: -3 = 97 +account.reversed !own
    TAKEN: 0 = 100 +account.reversed !own
    OWN OWN_OTHER_AMOUNT: duplicate
    OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict

account.credit
    EMPTY: 10 = 10 +account.credited !own
    BALANCE CREDITED TAKEN_IN_PART TAKEN: 10 = 110 +account.credited !own
    SPENT: 10 = 13 +account.credited !own
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
account.credit, beyond the range
    EMPTY: 9223372036854775807 = 9223372036854775807 +account.credited !own
    BALANCE CREDITED SPENT TAKEN_IN_PART TAKEN: rejected amount_overflow +account.rejected
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
account.debit
    EMPTY: rejected insufficient_balance +account.rejected
    BALANCE CREDITED TAKEN_IN_PART TAKEN: -3 = 97 +account.debited !own
    SPENT: -3 = 0 +account.debited !own
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
account.debit, all there is
    EMPTY SPENT: rejected insufficient_balance +account.rejected
    BALANCE CREDITED TAKEN_IN_PART TAKEN: -100 = 0 +account.debited !own
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
account.debit, more than there is
    EMPTY BALANCE CREDITED SPENT TAKEN_IN_PART TAKEN: rejected insufficient_balance +account.rejected
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict

account.reverse, all that is left
    EMPTY BALANCE: park credit
    CREDITED: -19 = 81 +account.reversed !own
    SPENT: rejected insufficient_balance +account.rejected
    TAKEN_IN_PART: -3 = 97 +account.reversed !own
    TAKEN: rejected nothing_to_reverse +account.rejected
    OWN OWN_OTHER_AMOUNT: duplicate
    OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
account.reverse, part
    EMPTY BALANCE: park credit
    CREDITED TAKEN_IN_PART: -3 = 97 +account.reversed !own
    SPENT: -3 = 0 +account.reversed !own
    TAKEN: rejected nothing_to_reverse +account.rejected
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
account.reverse, all
    EMPTY BALANCE: park credit
    CREDITED: -19 = 81 +account.reversed !own
    SPENT: rejected insufficient_balance +account.rejected
    TAKEN_IN_PART TAKEN: rejected nothing_to_reverse +account.rejected
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
account.reverse, more than was credited
    EMPTY BALANCE: park credit
    CREDITED SPENT TAKEN_IN_PART TAKEN: rejected nothing_to_reverse +account.rejected
    OWN: duplicate
    OWN_OTHER_AMOUNT OWN_OTHER_CREDIT OWN_NO_CREDIT: conflict
";

/// The change that the event makes where nothing stands in its way.
fn amount_of(name: &str, event: &AccountEvent) -> i64 {
    match event {
        AccountEvent::Completed(event) => (event.paid_minor - event.refunded_minor).max(0) / 100,
        AccountEvent::Refunded(_) => -5,
        AccountEvent::Credit(event) => event.amount,
        AccountEvent::Debit(event) => -event.amount,
        AccountEvent::Reverse(event) => -event.amount.unwrap_or_else(|| {
            assert!(name.ends_with("all that is left"));
            19
        }),
    }
}

/// Decides an event against the rows of a situation.
fn decide_in(situation: Situation, name: &str, event: &AccountEvent) -> AccountDecision {
    use Situation::{
        Balance, Credited, Empty, Own, OwnNoCredit, OwnOtherAmount, OwnOtherCredit, Spent, Taken,
        TakenInPart,
    };

    let rule = points_rule();
    let id = account_of(event, &rule);
    let flow = |source: Source, reverses, amount| AccountFlow {
        account: id.clone(),
        source,
        reverses,
        amount,
        balance_after: 100,
    };
    let account = Account {
        id: id.clone(),
        balance: if situation == Spent { 3 } else { 100 },
        version: 9,
    };
    let reverses = reversed_by(event);
    let credit = reverses.clone().map(|source| flow(source, None, 19));
    let no_credit = matches!(situation, Empty | Balance | OwnNoCredit);
    let amount = amount_of(name, event);
    let (own, reversed) = match situation {
        Empty | Balance | Credited | Spent => (None, 0),
        TakenInPart => (None, 16),
        Taken => (None, 19),
        Own => (Some((reverses, amount)), -amount),
        OwnOtherAmount => (Some((reverses, amount - 1)), 1 - amount),
        OwnOtherCredit | OwnNoCredit => (Some((Some(order_source("O9")), amount)), 0),
    };
    let own = own.map(|(reverses, amount)| flow(source_of(event), reverses, amount));
    let state = AccountState {
        account: (situation != Empty).then_some(&account),
        own: own.as_ref(),
        credit: credit.as_ref().filter(|_| !no_credit),
        reversed,
    };
    decide(state, event, &rule)
}

fn show(event: &AccountEvent, decision: &AccountDecision) -> String {
    let flow = decision.writes.flow.as_ref();
    let applied = flow.map_or("nothing".to_owned(), |flow| {
        assert_eq!(flow.source, source_of(event));
        assert_eq!(flow.reverses, reversed_by(event));
        format!("{} = {}", flow.amount, flow.balance_after)
    });
    let account = account_of(event, &points_rule());
    let awaited = reversed_by(event).map(|source| token(&account, &source));
    let own = token(&account, &source_of(event));
    let mut text = show_verdict(&decision.verdict, applied, "") + &show_rest(decision, "");
    if let Some(awaited) = awaited {
        text = text.replace(awaited.as_str(), "credit");
    }
    text = text.replace(own.as_str(), "own");
    text
}

#[test]
fn every_event_in_every_situation_is_decided_as_the_table_says() {
    let events = events();
    let rows: Vec<&str> = events.iter().map(|&(name, _)| name).collect();
    let situations: Vec<Situation> = Situation::iter().collect();
    let names: Vec<&str> = situations.iter().map(Into::into).collect();
    check_table(TABLE, &rows, &names, |row, column| {
        let (name, event) = &events[row];
        show(event, &decide_in(situations[column], name, event))
    });
}

#[test]
fn the_table_has_every_event_of_the_accounts() {
    for (name, event) in events() {
        assert_eq!(name.split(',').next(), Some(event.event_type().name()));
    }
    for kind in EventType::iter() {
        let consumed = kind.consumer() == Some(RoleName::ACCOUNT);
        let listed = events().iter().any(|(_, event)| event.event_type() == kind);
        assert_eq!(consumed, listed, "{kind}");
    }
}

#[test]
fn points_beyond_the_range_are_rejected() {
    let rule = PointsRule {
        per_major_unit: i64::MAX,
        ..points_rule()
    };
    let decision = decide(AccountState::default(), &completed(1999, 0), &rule);
    let overflow = Verdict::Rejected(Rejection::AmountOverflow);
    assert_eq!(decision.verdict, overflow);
    let credit = AccountFlow {
        account: account_of(&completed(1999, 0), &rule),
        source: order_source("O1"),
        reverses: None,
        amount: 19,
        balance_after: 19,
    };
    let state = AccountState {
        credit: Some(&credit),
        ..AccountState::default()
    };
    assert_eq!(
        decide(state, &refunded("R1", 5, true), &rule).verdict,
        overflow
    );
}
