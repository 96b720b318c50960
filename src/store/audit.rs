//! Reconciliation: everything recomputed from the flows and compared.
//!
//! The checks are the same in every database; each adapter has one statement for each. A statement
//! sees one state of the database, so the checks may run beside the workers.

use super::Result;
use async_trait::async_trait;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What a difference is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "id")]
pub enum Subject {
    /// An order.
    Order(String),
    /// A SKU.
    Sku(String),
    /// A user's account of a kind.
    Account(String, String),
    /// A claim: role and key.
    Claim(String, String),
    /// A row of the outbox.
    Outbox(i64),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order(id) => write!(f, "order {id}"),
            Self::Sku(id) => write!(f, "SKU {id}"),
            Self::Account(user, kind) => write!(f, "account {kind} of user {user}"),
            Self::Claim(role, key) => write!(f, "claim {role}:{key}"),
            Self::Outbox(id) => write!(f, "outbox row {id}"),
        }
    }
}

/// Two figures that should be equal and are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name of the check, such as `stock_available`.
    pub check: &'static str,
    /// What it is about.
    pub subject: Subject,
    /// What it should be, recomputed.
    pub expected: String,
    /// What the row says.
    pub found: String,
    /// Where to look.
    pub look: String,
}

/// What the differences of a check are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// Orders.
    Order,
    /// SKUs.
    Sku,
    /// Accounts.
    Account,
    /// Claims.
    Claim,
    /// Rows of the outbox.
    Outbox,
}

/// One check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What its differences are about.
    pub about: About,
    /// The tables that hold the answer.
    pub tables: &'static str,
    /// What must be true.
    pub description: &'static str,
}

impl Check {
    /// The check of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        CHECKS.iter().find(|check| check.name == name)
    }

    /// A difference that this check has found.
    #[must_use]
    pub fn difference(
        &self,
        subject: Subject,
        expected: String,
        found: String,
        detail: Option<&str>,
    ) -> Difference {
        let mut look = format!("{} of {subject}", self.tables);
        if let Some(detail) = detail {
            look.push_str(", ");
            look.push_str(detail);
        }
        let explained = match &subject {
            Subject::Order(id) => Some(id.clone()),
            Subject::Claim(role, key) => Some(format!("{role}:{key}")),
            Subject::Sku(_) | Subject::Account(..) | Subject::Outbox(_) => None,
        };
        if let Some(explained) = explained {
            look.push_str("; `orderonce explain ");
            look.push_str(&quoted(&explained));
            look.push('`');
        }
        Difference {
            check: self.name,
            subject,
            expected,
            found,
            look,
        }
    }
}

/// An argument as a shell takes it.
fn quoted(argument: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:%@+,".contains(&b);
    if argument.bytes().all(plain) && !argument.starts_with('-') {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

/// Reconciliation.
#[async_trait]
pub trait Audit {
    /// The names of all checks, in the order in which they run.
    fn checks(&self) -> Vec<&'static str> {
        CHECKS.iter().map(|check| check.name).collect()
    }

    /// Runs one check and returns its differences, at most `limit`. Rows of the outbox and woken
    /// events count as stuck once they are older than `stuck_after`.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn check(
        &self,
        name: &'static str,
        stuck_after: Duration,
        limit: u32,
    ) -> Result<Vec<Difference>>;
}

/// All checks, in the order in which they run.
pub const CHECKS: &[Check] = &[
    // Stock: the flows are the truth.
    Check {
        name: "stock_available",
        about: About::Sku,
        tables: "stock and deduction_flow",
        description: "opening stock and all flows of a SKU add up to what is available",
    },
    Check {
        name: "stock_versions",
        about: About::Sku,
        tables: "stock and deduction_flow",
        description: "a SKU's version counts its flows",
    },
    Check {
        name: "stock_running",
        about: About::Sku,
        tables: "deduction_flow",
        description: "each flow of a SKU starts from what the one before it left, the first from the opening stock, and the last leaves what is available",
    },
    Check {
        name: "stock_not_negative",
        about: About::Sku,
        tables: "deduction_flow",
        description: "no flow left less than nothing",
    },
    // Reservations.
    Check {
        name: "reservation_deducted",
        about: About::Order,
        tables: "order_line and deduction_flow",
        description: "the goods of an order were deducted, each SKU by the sum of its lines",
    },
    Check {
        name: "reservation_released",
        about: About::Order,
        tables: "deduction_flow",
        description: "the flows of a released reservation add up to nothing",
    },
    Check {
        name: "reservation_rejected",
        about: About::Order,
        tables: "deduction_flow",
        description: "a rejected reservation has no flows",
    },
    Check {
        name: "returns_within_deduction",
        about: About::Order,
        tables: "deduction_flow",
        description: "no more came back than was deducted",
    },
    Check {
        name: "flows_reserved",
        about: About::Order,
        tables: "reservation",
        description: "an order whose flows moved stock has a reservation",
    },
    Check {
        name: "reservation_missing",
        about: About::Order,
        tables: "reservation",
        description: "an open order with goods has a reservation, unless its message is on its way",
    },
    Check {
        name: "closed_orders_released",
        about: About::Order,
        tables: "orders and reservation",
        description: "an order that ended before it was shipped holds no stock, unless its message is on its way",
    },
    Check {
        name: "open_orders_reserved",
        about: About::Order,
        tables: "orders and reservation",
        description: "only an order that ended before it was shipped has its reservation released",
    },
    Check {
        name: "rejected_orders_closed",
        about: About::Order,
        tables: "orders and reservation",
        description: "an order that got no stock does not wait to be paid or shipped, unless its message is on its way",
    },
    // Accounts: the flows are the truth.
    Check {
        name: "account_balance",
        about: About::Account,
        tables: "account and account_flow",
        description: "all flows of an account add up to its balance",
    },
    Check {
        name: "account_versions",
        about: About::Account,
        tables: "account and account_flow",
        description: "an account's version counts its flows",
    },
    Check {
        name: "account_running",
        about: About::Account,
        tables: "account_flow",
        description: "each flow of an account starts from the balance that the one before it left, and the last leaves the balance",
    },
    Check {
        name: "reversals_within_credit",
        about: About::Account,
        tables: "account_flow",
        description: "no more of a credit was taken back than it had put on",
    },
    Check {
        name: "points",
        about: About::Order,
        tables: "account_flow",
        description: "an order that was completed has earned its points, unless its message is on its way",
    },
    Check {
        name: "points_unearned",
        about: About::Order,
        tables: "account_flow",
        description: "an order that was never completed has earned no points",
    },
    Check {
        name: "points_taken_back",
        about: About::Order,
        tables: "account_flow",
        description: "an order that was completed and refunded in full keeps no points, unless its message is on its way",
    },
    // Orders and their histories.
    Check {
        name: "order_recorded",
        about: About::Order,
        tables: "orders",
        description: "lines, steps, payments and refunds belong to an order that is there",
    },
    Check {
        name: "order_totals",
        about: About::Order,
        tables: "order_line",
        description: "the lines of an order add up to its total",
    },
    Check {
        name: "order_versions",
        about: About::Order,
        tables: "orders and order_transition",
        description: "an order's history counts from 1 to its version without a gap",
    },
    Check {
        name: "order_history",
        about: About::Order,
        tables: "order_transition",
        description: "each step of a history starts where the one before it ended",
    },
    Check {
        name: "order_steps",
        about: About::Order,
        tables: "order_transition",
        description: "each step of a history is one that orders may take",
    },
    Check {
        name: "order_status",
        about: About::Order,
        tables: "orders and order_transition",
        description: "an order stands where its history ends",
    },
    Check {
        name: "orders_overdue",
        about: About::Order,
        tables: "orders",
        description: "no order waits for its payment long after the deadline",
    },
    // Payments and refunds against orders.
    Check {
        name: "order_paid",
        about: About::Order,
        tables: "orders and payment",
        description: "what an order was paid is the amount of its accepted payment",
    },
    Check {
        name: "order_paid_total",
        about: About::Order,
        tables: "orders",
        description: "an order that counts as paid was paid its total, one that waits was paid nothing",
    },
    Check {
        name: "payment_currency",
        about: About::Order,
        tables: "payment and refund",
        description: "accepted payments are in the currency of their order, refunds in that of their payment",
    },
    Check {
        name: "order_refunded",
        about: About::Order,
        tables: "orders and refund",
        description: "what an order was refunded is the sum of the refunds of its accepted payment",
    },
    Check {
        name: "order_refunded_status",
        about: About::Order,
        tables: "orders",
        description: "an order is REFUNDED if and only if all that was paid was given back",
    },
    Check {
        name: "refunds_within_payment",
        about: About::Order,
        tables: "payment and refund",
        description: "no more of a payment was given back than was paid",
    },
    Check {
        name: "refunds_of_payments",
        about: About::Order,
        tables: "refund",
        description: "a refund that succeeded is of a payment that is recorded",
    },
    Check {
        name: "surplus_and_late_refunded",
        about: About::Order,
        tables: "payment and refund",
        description: "a payment that the order did not need is to be given back",
    },
    Check {
        name: "closed_orders_refunded",
        about: About::Order,
        tables: "orders and refund",
        description: "what was paid for an order that was closed is to be given back",
    },
    // Claims against effects, both ways.
    Check {
        name: "claims_without_transition",
        about: About::Claim,
        tables: "order_transition",
        description: "an applied claim of the order or payment role has its step in the history",
    },
    Check {
        name: "claims_without_reservation",
        about: About::Claim,
        tables: "reservation",
        description: "an applied claim to deduct or release has its reservation",
    },
    Check {
        name: "claims_without_stock_flow",
        about: About::Claim,
        tables: "deduction_flow",
        description: "an applied claim of a return or an adjustment has its flow",
    },
    Check {
        name: "claims_without_account_flow",
        about: About::Claim,
        tables: "account_flow",
        description: "an applied claim of the account role has its flow",
    },
    Check {
        name: "transitions_without_claim",
        about: About::Order,
        tables: "order_transition and idempotent_record",
        description: "each step of a history has its claim, unless retention has removed it",
    },
    Check {
        name: "reservations_without_claim",
        about: About::Order,
        tables: "reservation and idempotent_record",
        description: "each reservation has its claim, unless retention has removed it",
    },
    Check {
        name: "stock_flows_without_claim",
        about: About::Sku,
        tables: "deduction_flow and idempotent_record",
        description: "each flow of stock has its claim, unless retention has removed it",
    },
    Check {
        name: "account_flows_without_claim",
        about: About::Account,
        tables: "account_flow and idempotent_record",
        description: "each flow of an account has its claim, unless retention has removed it",
    },
    Check {
        name: "claims_parked",
        about: About::Claim,
        tables: "parked_event",
        description: "a claim that says parked has its parked event",
    },
    Check {
        name: "parked_claims",
        about: About::Claim,
        tables: "idempotent_record",
        description: "a parked event has a claim that says so",
    },
    Check {
        name: "claims_kept",
        about: About::Claim,
        tables: "dead_letter",
        description: "a claim that was given up, or met other content, has its message kept",
    },
    // What waits.
    Check {
        name: "outbox_stuck",
        about: About::Outbox,
        tables: "outbox",
        description: "nothing waits long to be published",
    },
    Check {
        name: "parked_and_possible",
        about: About::Claim,
        tables: "parked_event",
        description: "no event stays parked once what it awaits is true",
    },
    Check {
        name: "parked_woken_stuck",
        about: About::Claim,
        tables: "parked_event",
        description: "an event that was woken is decided soon",
    },
    Check {
        name: "parked_overdue",
        about: About::Claim,
        tables: "parked_event",
        description: "no event stays parked long after its deadline",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_where_to_look() {
        let look = |subject: Subject, detail| {
            let check = Check::named("order_totals").unwrap();
            let difference = check.difference(subject, "1".into(), "2".into(), detail);
            difference.look
        };
        assert_eq!(
            look(Subject::Order("O1".into()), Some("line 3")),
            "order_line of order O1, line 3; `orderonce explain O1`"
        );
        assert_eq!(
            look(Subject::Order("it's".into()), None),
            r"order_line of order it's; `orderonce explain 'it'\''s'`"
        );
        assert_eq!(
            look(Subject::Sku("85123A".into()), None),
            "order_line of SKU 85123A"
        );
    }

    #[test]
    fn no_name_is_used_twice() {
        let names: std::collections::BTreeSet<_> = CHECKS.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), CHECKS.len());
    }
}
