//! What a setting may be: limits, types, and how a value is shown.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::domain::id::AccountKind;

/// The values that a key accepts. `Display` says what is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer within limits.
    Integer(RangeInclusive<u64>),
    /// A time in seconds within limits; a fraction is allowed.
    Seconds(RangeInclusive<Duration>),
    /// One of these times, in seconds.
    SecondsOneOf(&'static [Duration]),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A URL of one of these forms; from the first upper-case letter on, a form is for the user to
    /// fill in. An empty form stands for no URL. A password in it is masked wherever it is shown.
    Url(&'static [&'static str]),
    /// Any text.
    Text,
    /// An IP address with a port, or nothing.
    Listen,
    /// 1 to 64 ASCII letters, digits, underscores, hyphens or dots.
    Name,
    /// Directives of [`EnvFilter`].
    Filter,
}

/// How log events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum LogFormat {
    /// A line of text, with colours on a terminal.
    Pretty,
    /// A JSON object.
    Json,
}

/// A URL whose password appears in neither `Debug` nor `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl Kind {
    pub(super) fn accepts(&self, text: &str) -> bool {
        match self {
            Self::Bool => text.parse::<bool>().is_ok(),
            Self::Integer(limits) => text.parse().is_ok_and(|number| limits.contains(&number)),
            Self::Seconds(limits) => seconds(text).is_some_and(|time| limits.contains(&time)),
            Self::SecondsOneOf(times) => seconds(text).is_some_and(|time| times.contains(&time)),
            Self::OneOf(words) => words.contains(&text),
            Self::Url(forms) => forms.iter().any(|form| {
                let open = form.find(|c: char| c.is_ascii_uppercase());
                let (prefix, open) = form.split_at(open.unwrap_or(form.len()));
                text.strip_prefix(prefix)
                    .is_some_and(|rest| rest.is_empty() == open.is_empty())
            }),
            Self::Text => true,
            Self::Listen => text.is_empty() || text.parse::<SocketAddr>().is_ok(),
            Self::Name => {
                (1..=64).contains(&text.len())
                    && text
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
            }
            // `EnvFilter` takes a misspelt level for the name of a target and then logs nothing.
            Self::Filter => {
                let is_spelt_out = |part: &str| part.contains(['=', '[']);
                let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
                text.split(',')
                    .all(|part| is_spelt_out(part) || is_level(part))
                    && EnvFilter::try_new(text).is_ok()
            }
        }
    }

    pub(super) fn mask(&self, text: &str) -> String {
        match self {
            Self::Url(_) => Url(text.to_owned()).to_string(),
            Self::Bool
            | Self::Integer(_)
            | Self::Seconds(_)
            | Self::SecondsOneOf(_)
            | Self::OneOf(_)
            | Self::Text
            | Self::Listen
            | Self::Name
            | Self::Filter => text.to_owned(),
        }
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(
            self,
            Self::OneOf(_) | Self::Url(_) | Self::Text | Self::Listen | Self::Name | Self::Filter
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("true or false"),
            Self::Integer(limits) => {
                write!(f, "an integer from {} to {}", limits.start(), limits.end())
            }
            Self::Seconds(limits) => {
                let (from, to) = (limits.start().as_secs_f64(), limits.end().as_secs_f64());
                write!(f, "a number of seconds from {from} to {to}")
            }
            Self::SecondsOneOf(times) => {
                let times: Vec<_> = times
                    .iter()
                    .map(|time| time.as_secs_f64().to_string())
                    .collect();
                write!(f, "one of these numbers of seconds: {}", times.join(", "))
            }
            Self::OneOf(words) => f.write_str(&words.join(" or ")),
            Self::Url(forms) => {
                let named: Vec<_> = forms
                    .iter()
                    .copied()
                    .filter(|form| !form.is_empty())
                    .collect();
                let or_nothing = if named.len() < forms.len() {
                    ", or nothing"
                } else {
                    ""
                };
                write!(f, "a URL of the form {}{or_nothing}", named.join(" or "))
            }
            Self::Text => f.write_str("a text"),
            Self::Listen => {
                f.write_str("an IP address with a port, such as 127.0.0.1:8080, or nothing")
            }
            Self::Name => {
                f.write_str("1 to 64 ASCII letters, digits, underscores, hyphens or dots")
            }
            Self::Filter => f.write_str("a level or directives, such as info,orderonce=debug"),
        }
    }
}

impl Url {
    /// Wraps a URL that is known to be right.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URLs, if it is several with commas between them. A comma may be part of a password: the next
    /// URL begins where a scheme follows it.
    pub fn split(&self) -> impl Iterator<Item = &str> {
        let scheme = self.0.split_once("://").map(|(scheme, _)| scheme);
        let begins = move |at: &usize| {
            scheme.is_some_and(|scheme| {
                let rest = self.0[at + 1..].trim_start();
                let rest = rest.strip_prefix(scheme.trim_end_matches('s'));
                rest.is_some_and(|rest| rest.trim_start_matches('s').starts_with("://"))
            })
        };
        let commas = self.0.match_indices(',').map(|(at, _)| at);
        let ends = commas.filter(begins).chain([self.0.len()]);
        let mut start = 0;
        ends.map(move |end| {
            let url = self.0[start..end].trim();
            start = (end + 1).min(self.0.len());
            url
        })
    }

    /// The whole URL, with its password: not for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Url {
    /// Writes `***` in place of a password, even if the URL is malformed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, url) in self.split().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(f, "{comma}{}", masked(url))?;
        }
        Ok(())
    }
}

fn masked(url: &str) -> String {
    let masked = match url.split_once("password=") {
        Some((before, after)) => {
            let others = after.find('&').map_or("", |at| &after[at..]);
            format!("{before}password=***{others}")
        }
        None => url.to_owned(),
    };
    let start = masked.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = masked.split_at(start);
    match rest.rsplit_once('@') {
        Some((login, host)) => {
            let user = login.split_once(':').map(|(user, _)| format!("{user}:***"));
            format!("{scheme}{}@{host}", user.as_deref().unwrap_or(login))
        }
        None => masked,
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

/// A type that a setting may have. Limits are the business of [`Kind`].
pub(super) trait FromText: Sized {
    fn from_text(text: &str) -> Option<Self>;
}

macro_rules! from_text {
    ($($Type:ty: $parse:expr,)+) => {$(
        impl FromText for $Type {
            fn from_text(text: &str) -> Option<Self> {
                $parse(text)
            }
        }
    )+};
}

from_text! {
    bool: |text: &str| text.parse().ok(),
    u32: |text: &str| text.parse().ok(),
    u64: |text: &str| text.parse().ok(),
    usize: |text: &str| text.parse().ok(),
    AccountKind: |text: &str| text.parse().ok(),
    LogFormat: |text: &str| text.parse().ok(),
    String: |text: &str| Some(text.to_owned()),
    Url: |text: &str| Some(Url::new(text)),
    Duration: seconds,
}

pub(super) fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_never_shows_its_password() {
        let table = [
            ("sqlite://a/b.db", "sqlite://a/b.db"),
            ("embedded:", "embedded:"),
            ("mysql://app:hunter2@db:3306/o", "mysql://app:***@db:3306/o"),
            ("mysql://app:hun/t@r2@db/o", "mysql://app:***@db/o"),
            ("mysql://:hunter2@db/o", "mysql://:***@db/o"),
            ("mysql://app@db/o", "mysql://app@db/o"),
            ("mysql:app:hunter2@db", "mysql:***@db"),
            (
                "pg://db/o?password=hunter2&x=1",
                "pg://db/o?password=***&x=1",
            ),
            ("pg://db/o?password=hun@ter2", "pg://db/o?password=***"),
            (
                "amqp://app:hunter2@a/v,amqps://app:hun,ter2@b/v",
                "amqp://app:***@a/v,amqps://app:***@b/v",
            ),
        ];
        for (url, shown) in table {
            assert_eq!(Url::new(url).to_string(), shown);
            assert_eq!(format!("{:?}", Url::new(url)), format!("Url({shown})"));
        }
    }
}
