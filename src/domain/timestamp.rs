//! Points in time, as the database's clock tells them.

use serde::Serialize;
use std::fmt;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The moment `duration` later; the end of time if that cannot be represented.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let milliseconds = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(milliseconds))
    }

    /// The moment `duration` earlier; the beginning of time if that cannot be represented.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        let milliseconds = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(milliseconds))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        let milliseconds = self.0.saturating_sub(earlier.0);
        Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0))
    }

    /// Reads an RFC 3339 time such as `2010-12-01T08:26:00Z`.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(moment.unix_timestamp_nanos() / 1_000_000)
            .ok()
            .map(Self)
    }
}

/// RFC 3339 in UTC with milliseconds; the bare number where the year is beyond 9999.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000);
        match moment.map(|m| m.format(&Rfc3339)) {
            Ok(Ok(text)) => f.write_str(&text),
            _ => write!(f, "{}ms", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_and_parse_agree() {
        let t = Timestamp(1_291_191_960_123);
        assert_eq!(t.to_string(), "2010-12-01T08:26:00.123Z");
        assert_eq!(Timestamp::parse_rfc3339(&t.to_string()), Some(t));
        assert_eq!(Timestamp::parse_rfc3339("yesterday"), None);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp(i64::MAX).plus(Duration::MAX), Timestamp(i64::MAX));
        assert_eq!(Timestamp(1).since(Timestamp(5)), Duration::ZERO);
        assert!(!Timestamp(i64::MAX).to_string().is_empty());
    }
}
