//! What a parked event awaits, read back from its token.

use super::account::{self, AccountId, Source};
use super::order::{self, OrderStatus};
use super::{AccountKind, OrderId, SourceId, SourceType, Token, UserId, inventory};

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// An order that has come at least as far as a status, or has ended.
    Order(OrderId, OrderStatus),
    /// A reservation, whatever became of it.
    Reservation(OrderId),
    /// A flow of an account.
    Flow(AccountId, Source),
}

impl Awaited {
    /// Reads the token of an event that is about `subject`. A token holds the hash of a long order's
    /// id; then it must be that of the subject. `None` if it is none of the built-in roles', or
    /// holds the hash of something else.
    #[must_use]
    pub fn read(token: &Token, subject: &str) -> Option<Self> {
        let parts: Vec<_> = token.as_str().split(':').collect();
        let order_id = |part: &str| {
            let is_hash = part.starts_with('~');
            let id = if is_hash { subject } else { &unescaped(part) };
            OrderId::new(id).ok()
        };
        let awaited = match parts[..] {
            ["order", id, status] => Self::Order(order_id(id)?, status.parse().ok()?),
            ["stock", id, _] => Self::Reservation(order_id(id)?),
            ["flow", user_id, kind, source_type, source_id] => Self::Flow(
                AccountId {
                    user_id: UserId::new(&unescaped(user_id)).ok()?,
                    kind: AccountKind::new(&unescaped(kind)).ok()?,
                },
                Source {
                    source_type: SourceType::new(&unescaped(source_type)).ok()?,
                    source_id: SourceId::new(&unescaped(source_id)).ok()?,
                },
            ),
            _ => return None,
        };
        // Only what gives this very token: no hash is taken for another's.
        (awaited.token() == *token).then_some(awaited)
    }

    fn token(&self) -> Token {
        match self {
            Self::Order(order_id, status) => order::token(order_id, *status),
            Self::Reservation(order_id) => inventory::token(order_id),
            Self::Flow(account, source) => account::token(account, source),
        }
    }
}

/// A part of a token without its escapes.
fn unescaped(part: &str) -> String {
    let part = part.replace("%3A", ":").replace("%7E", "~");
    part.replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(source_type: &str, source_id: &str) -> Source {
        Source {
            source_type: SourceType::new(source_type).unwrap(),
            source_id: SourceId::new(source_id).unwrap(),
        }
    }

    fn account_id(user_id: &str) -> AccountId {
        AccountId {
            user_id: UserId::new(user_id).unwrap(),
            kind: AccountKind::new("POINTS").unwrap(),
        }
    }

    #[test]
    fn a_hash_is_read_only_as_that_of_the_subject() {
        let long = "x".repeat(300);
        let order_id = OrderId::new(&long).unwrap();
        let token = order::token(&order_id, OrderStatus::Paid);
        assert!(token.as_str().contains('~'));
        let read = Awaited::read(&token, &long);
        assert_eq!(read, Some(Awaited::Order(order_id, OrderStatus::Paid)));
        assert_eq!(Awaited::read(&token, "O1"), None);
        let flow = account::token(&account_id(&long), &source("ORDER", "O1"));
        assert_eq!(Awaited::read(&flow, &long), None);
    }

    #[test]
    fn a_token_of_another_team_says_nothing() {
        for parts in [
            &["order", "O1"][..],
            &["order", "O1", "LOST"],
            &["stock", "O1", "RELEASED"],
            &["flow", "U1", "POINTS", "ORDER"],
            &["coupon", "C1", "USED"],
        ] {
            let token = Token::new(parts).unwrap();
            assert_eq!(Awaited::read(&token, "O1"), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn every_token_is_read_back(id in "[a%~:/237AE5]{1,8}", of in "[a%~:/]{1,8}") {
            let order_id = OrderId::new(&id).unwrap();
            let all = [
                Awaited::Order(order_id.clone(), OrderStatus::Shipped),
                Awaited::Reservation(order_id),
                Awaited::Flow(account_id(&id), source("ORDER", &of)),
            ];
            for awaited in all {
                prop_assert_eq!(Awaited::read(&awaited.token(), "O1"), Some(awaited));
            }
        }
    }
}
