//! What can be wrong with a configuration, and where a value came from.

use std::fmt;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

/// Where a value came from. Serialized as its `Display` text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// The environment variable of this name.
    Variable(String),
    /// The command-line flag of this name.
    Flag(String),
    /// Other settings, from which it follows.
    Computed,
}

/// All that is wrong with a configuration. `Display` gives one problem per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Errors(Vec<Problem>);

/// One thing that is wrong with a configuration. Secrets are masked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum Problem {
    /// The file cannot be read.
    #[error("{origin}: cannot be read: {reason}")]
    Unreadable {
        /// The file.
        origin: Origin,
        /// What the operating system said.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{origin}{}: {reason}", .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Syntax {
        /// The file.
        origin: Origin,
        /// The line, counted from 1, if it is known.
        line: Option<usize>,
        /// What the parser said.
        reason: String,
    },
    /// No key has this name. The value is left out, as it may be a secret.
    #[error(
        "{origin}: unknown key {}{}",
        .key.escape_debug(),
        .suggestion.as_ref().map(|name| format!(", did you mean {name}?")).unwrap_or_default()
    )]
    UnknownKey {
        /// The key as it was given.
        key: String,
        /// The nearest name there is, as it would be written in the same place.
        suggestion: Option<String>,
        /// Where the key was given.
        origin: Origin,
    },
    /// The key does not accept this value.
    #[error("{origin}: {key} is `{}`, expected {expected}", .value.escape_debug())]
    WrongValue {
        /// The key.
        key: &'static str,
        /// The value as it was given.
        value: String,
        /// What the key accepts.
        expected: String,
        /// Where the value was given.
        origin: Origin,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => path.display().fmt(f),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
            Self::Computed => f.write_str("computed"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Errors {
    /// The problems, in the order in which they were found; never empty.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    pub(super) fn new(problems: Vec<Problem>) -> Self {
        Self(problems)
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Errors {}

impl Problem {
    /// Takes apart what the TOML parser says: the position, three lines that show the place, and
    /// the reason. The place is left out, as it may hold a secret.
    pub(super) fn syntax(message: &str, origin: Origin) -> Self {
        let position = message.strip_prefix("TOML parse error at line ");
        let line = position.and_then(|position| position.split(',').next()?.parse().ok());
        let skipped = if line.is_some() { 4 } else { 0 };
        let reason: Vec<_> = message.lines().skip(skipped).collect();
        Self::Syntax {
            origin,
            line,
            reason: reason.join(", "),
        }
    }
}
