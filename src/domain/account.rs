//! Accounts: what may be put on and taken off, and the points that orders earn.

use super::event::{
    AccountChange, AccountEvent, AccountMoved, AccountRejected, AccountReverse, Event, Notice,
    OrderCompleted, OrderRefunded,
};
use super::outcome::{Decision, Rejection, Verdict};
use super::{AccountKind, Key, Money, SourceId, SourceType, Token, UserId};

/// The source type of points that an order earned.
pub const SOURCE_ORDER: &str = "ORDER";

/// The source type of points that a refund took back.
pub const SOURCE_REFUND: &str = "REFUND";

/// Which points an order earns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointsRule {
    /// The kind of account that they are put on.
    pub kind: AccountKind,
    /// Points for each whole major unit that was paid and not refunded.
    pub per_major_unit: i64,
}

impl PointsRule {
    /// The points for `money`; `None` if they are beyond the range.
    fn points(&self, money: Money) -> Option<i64> {
        money.whole_major_units().checked_mul(self.per_major_unit)
    }
}

/// Identifies an account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountId {
    /// Whose.
    pub user_id: UserId,
    /// What it counts.
    pub kind: AccountKind,
}

/// Identifies a flow of one account: what caused it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// What kind of thing.
    pub source_type: SourceType,
    /// Which one.
    pub source_id: SourceId,
}

/// A row of `account`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Which account.
    pub id: AccountId,
    /// What is on it; never negative.
    pub balance: i64,
    /// Counts its flows, from 1.
    pub version: i64,
}

/// A row of `account_flow`: one change of one account. Unique by account and source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountFlow {
    /// Which account.
    pub account: AccountId,
    /// What caused it.
    pub source: Source,
    /// The credit that it takes back, for a reversal.
    pub reverses: Option<Source>,
    /// The change, signed.
    pub amount: i64,
    /// The balance after it.
    pub balance_after: i64,
}

/// The rows that an event is decided against.
#[derive(Debug, Clone, Copy, Default)]
pub struct AccountState<'a> {
    /// The account, once it is there.
    pub account: Option<&'a Account>,
    /// The flow that this event wrote before.
    pub own: Option<&'a AccountFlow>,
    /// For a reversal, the credit that it takes back.
    pub credit: Option<&'a AccountFlow>,
    /// What reversals took back of that credit so far.
    pub reversed: i64,
}

/// Rows that a decision writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountWrites {
    /// The new flow; it moves the account by its amount and one version.
    pub flow: Option<AccountFlow>,
}

type AccountDecision = Decision<AccountWrites>;

/// The account that an event moves.
#[must_use]
pub fn account_of(event: &AccountEvent, rule: &PointsRule) -> AccountId {
    let (user_id, kind) = match event {
        AccountEvent::Completed(event) => (&event.user_id, &rule.kind),
        AccountEvent::Refunded(event) => (&event.user_id, &rule.kind),
        AccountEvent::Credit(event) | AccountEvent::Debit(event) => (&event.user_id, &event.kind),
        AccountEvent::Reverse(event) => (&event.user_id, &event.kind),
    };
    AccountId {
        user_id: user_id.clone(),
        kind: kind.clone(),
    }
}

/// The source of the flow that an event writes.
#[must_use]
pub fn source_of(event: &AccountEvent) -> Source {
    match event {
        AccountEvent::Completed(event) => order_source(event.order_id.as_str()),
        AccountEvent::Refunded(event) => Source {
            source_type: SourceType::literal(SOURCE_REFUND),
            source_id: SourceId::literal(
                Key::of(&[
                    event.order_id.as_str(),
                    event.provider.as_str(),
                    event.refund_no.as_str(),
                ])
                .as_str(),
            ),
        },
        AccountEvent::Credit(event) | AccountEvent::Debit(event) => Source {
            source_type: event.source_type.clone(),
            source_id: event.source_id.clone(),
        },
        AccountEvent::Reverse(event) => Source {
            source_type: event.source_type.clone(),
            source_id: event.source_id.clone(),
        },
    }
}

/// The source of the credit that an event takes back.
#[must_use]
pub fn reversed_by(event: &AccountEvent) -> Option<Source> {
    match event {
        AccountEvent::Completed(_) | AccountEvent::Credit(_) | AccountEvent::Debit(_) => None,
        AccountEvent::Refunded(event) => Some(order_source(event.order_id.as_str())),
        AccountEvent::Reverse(event) => Some(Source {
            source_type: event.of_source_type.clone(),
            source_id: event.of_source_id.clone(),
        }),
    }
}

/// Which business action an event is.
#[must_use]
pub fn key(event: &AccountEvent, rule: &PointsRule) -> Key {
    let account = account_of(event, rule);
    let source = source_of(event);
    let action = match event {
        AccountEvent::Completed(_) | AccountEvent::Credit(_) => "credit",
        AccountEvent::Debit(_) => "debit",
        AccountEvent::Refunded(_) | AccountEvent::Reverse(_) => "reverse",
    };
    Key::of(&[
        account.user_id.as_str(),
        account.kind.as_str(),
        source.source_type.as_str(),
        source.source_id.as_str(),
        action,
    ])
}

/// The token of a credit that has been written.
#[must_use]
pub fn token(account: &AccountId, source: &Source) -> Token {
    Token::of(&[
        "flow",
        account.user_id.as_str(),
        account.kind.as_str(),
        source.source_type.as_str(),
        source.source_id.as_str(),
    ])
}

/// Decides an event against the rows of its account.
#[must_use]
pub fn decide(state: AccountState<'_>, event: &AccountEvent, rule: &PointsRule) -> AccountDecision {
    let change = Change {
        state,
        account: account_of(event, rule),
        source: source_of(event),
    };
    match event {
        AccountEvent::Completed(event) => change.earn(event, rule),
        AccountEvent::Refunded(event) => change.take_back_points(event, rule),
        AccountEvent::Credit(event) => change.credit(event),
        AccountEvent::Debit(event) => change.debit(event),
        AccountEvent::Reverse(event) => change.reverse(event),
    }
}

fn order_source(order_id: &str) -> Source {
    Source {
        source_type: SourceType::literal(SOURCE_ORDER),
        source_id: SourceId::literal(order_id),
    }
}

/// What of a payment was not given back; more than all of it cannot be.
fn kept(paid_minor: i64, refunded_minor: i64) -> i64 {
    paid_minor.saturating_sub(refunded_minor).max(0)
}

struct Change<'a> {
    state: AccountState<'a>,
    account: AccountId,
    source: Source,
}

impl Change<'_> {
    fn earn(self, event: &OrderCompleted, rule: &PointsRule) -> AccountDecision {
        let kept = kept(event.paid_minor, event.refunded_minor);
        match rule.points(Money::new(kept, event.currency)) {
            // An order that earns nothing still gets its flow, which refunds wait for.
            Some(points) => self.write(points, None, Notice::Credited),
            None => self.reject(Rejection::AmountOverflow),
        }
    }

    /// Leaves the points that the money still paid is worth. Each refund carries the running total,
    /// so refunds that overtake each other come to the same sum.
    fn take_back_points(self, event: &OrderRefunded, rule: &PointsRule) -> AccountDecision {
        if !event.completed {
            // No points had been earned; those to come are counted without this refund.
            return Decision::applied(AccountWrites::default());
        }
        let Some(credit) = self.state.credit else {
            return self.park_for(&order_source(event.order_id.as_str()));
        };
        let kept = kept(event.paid_minor, event.refunded_minor);
        let Some(points) = rule.points(Money::new(kept, event.currency)) else {
            return self.reject(Rejection::AmountOverflow);
        };
        let surplus = credit.amount - self.state.reversed - points;
        let source = credit.source.clone();
        self.write(-surplus.max(0), Some(source), Notice::Reversed)
    }

    fn credit(self, event: &AccountChange) -> AccountDecision {
        self.write(event.amount, None, Notice::Credited)
    }

    fn debit(self, event: &AccountChange) -> AccountDecision {
        self.write(-event.amount, None, Notice::Debited)
    }

    fn reverse(self, event: &AccountReverse) -> AccountDecision {
        let Some(credit) = self.state.credit else {
            return self.park_for(&Source {
                source_type: event.of_source_type.clone(),
                source_id: event.of_source_id.clone(),
            });
        };
        let left = credit.amount - self.state.reversed;
        let amount = event.amount.unwrap_or(left);
        let source = credit.source.clone();
        if self.state.own.is_none() && (left <= 0 || amount > left) {
            return self.reject(Rejection::NothingToReverse);
        }
        // A copy whose claim is gone asks for what its own flow took.
        let taken = self.state.own.filter(|_| event.amount.is_none());
        let amount = taken.map_or(amount, |own| -own.amount);
        self.write(-amount, Some(source), Notice::Reversed)
    }

    fn park_for(&self, credit: &Source) -> AccountDecision {
        if self.state.own.is_some() {
            // The flow that is there took back another credit.
            return Verdict::Conflict.into();
        }
        Verdict::Parked(token(&self.account, credit)).into()
    }

    fn write(
        self,
        amount: i64,
        reverses: Option<Source>,
        notice: fn(AccountMoved) -> Notice,
    ) -> AccountDecision {
        if let Some(own) = self.state.own {
            // What a refund takes back depends on what went before it, so any amount is its copy.
            let same = own.amount == amount || self.source.source_type.as_str() == SOURCE_REFUND;
            let same = same && own.reverses == reverses;
            return if same {
                Verdict::Duplicate
            } else {
                Verdict::Conflict
            }
            .into();
        }
        let balance = self.state.account.map_or(0, |account| account.balance);
        let Some(balance) = balance.checked_add(amount) else {
            return self.reject(Rejection::AmountOverflow);
        };
        if balance < 0 {
            return self.reject(Rejection::InsufficientBalance);
        }
        let moved = AccountMoved {
            user_id: self.account.user_id.clone(),
            kind: self.account.kind.clone(),
            source_type: self.source.source_type.clone(),
            source_id: self.source.source_id.clone(),
            amount,
            balance,
        };
        let reached = token(&self.account, &self.source);
        Decision::applied(AccountWrites {
            flow: Some(AccountFlow {
                account: self.account,
                source: self.source,
                reverses,
                amount,
                balance_after: balance,
            }),
        })
        .emit(Event::Notice(notice(moved)))
        .reach(reached)
    }

    fn reject(self, reason: Rejection) -> AccountDecision {
        AccountDecision::from(reason).emit(Event::Notice(Notice::AccountRejected(
            AccountRejected {
                user_id: self.account.user_id,
                kind: self.account.kind,
                source_type: self.source.source_type,
                source_id: self.source.source_id,
                reason,
            },
        )))
    }
}

#[cfg(test)]
mod tests;
