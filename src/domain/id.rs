//! Identifiers that other systems chose: opaque, compared byte by byte.

use super::text::impl_text;
use std::sync::Arc;

/// Longest identifier, in bytes. Longer than any provider's, short enough for every database's
/// index.
pub const MAX_BYTES: usize = 512;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing, or white space alone.
    #[error("is empty")]
    Empty,
    /// More than [`MAX_BYTES`] bytes.
    #[error("has {0} bytes, at most {MAX_BYTES} are allowed")]
    TooLong(usize),
    /// A control character such as NUL or a line break.
    #[error("holds the control character U+{0:04X}")]
    Control(u32),
}

fn check(text: &str) -> Result<(), IdError> {
    if text.trim().is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > MAX_BYTES {
        return Err(IdError::TooLong(text.len()));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(IdError::Control(c.into())),
        None => Ok(()),
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes a text as it is, without trimming or folding.
            ///
            /// # Errors
            /// [`IdError`] if it is empty, too long or holds a control character.
            pub fn new(text: &str) -> Result<Self, IdError> {
                check(text)?;
                Ok(Self::literal(text))
            }

            /// A text that is known to be an identifier.
            pub(crate) fn literal(text: &str) -> Self {
                debug_assert_eq!(check(text), Ok(()));
                Self(text.into())
            }

            /// The text, byte for byte as it came.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl_text! { $name }
    )*};
}

ids! {
    /// An order, as the shop numbers it.
    OrderId
    /// A stock keeping unit. `85123A` and `85123a` are two.
    SkuId
    /// A customer.
    UserId
    /// A payment provider, such as `alipay`.
    Provider
    /// The provider's number of one payment.
    TradeNo
    /// The number of one refund, ours or the provider's.
    RefundNo
    /// One request for money of an order to be given back.
    RefundId
    /// What an account counts, such as `POINTS` or `BALANCE`.
    AccountKind
    /// What kind of thing caused an account flow, such as `ORDER`.
    SourceType
    /// Which thing of its [`SourceType`] caused an account flow.
    SourceId
    /// One return of goods.
    ReturnId
    /// One correction of stock by hand.
    AdjustmentId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_keeps_its_bytes() {
        for text in ["Ab1", "aB1", "é1", "M1 ", " M1", "85123a"] {
            assert_eq!(OrderId::new(text).unwrap().as_str(), text);
        }
        assert_ne!(SkuId::new("M1").unwrap(), SkuId::new("M1 ").unwrap());
    }

    #[test]
    fn empty_long_and_control_are_refused() {
        assert_eq!(OrderId::new(""), Err(IdError::Empty));
        assert_eq!(OrderId::new(" \t "), Err(IdError::Empty));
        assert_eq!(OrderId::new(&"x".repeat(513)), Err(IdError::TooLong(513)));
        assert!(OrderId::new(&"x".repeat(512)).is_ok());
        assert_eq!(OrderId::new("a\u{0}b"), Err(IdError::Control(0)));
        assert_eq!(OrderId::new("a\nb"), Err(IdError::Control(10)));
    }
}
