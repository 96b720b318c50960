//! Every way in which a message can be malformed.

use strum::IntoStaticStr;

/// Why bytes are not a message that a role can read. One variant per cause; the field is named by
/// its path, such as `data.lines[2].qty`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Malformed {
    /// More bytes than allowed.
    #[error("the message has {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// It begins with a byte order mark, which RFC 8259 forbids in JSON that is sent.
    #[error("the message begins with a byte order mark, expected UTF-8 without one")]
    ByteOrderMark,
    /// Its bytes are not UTF-8.
    #[error("byte {at} of the message is not UTF-8")]
    NotUtf8 {
        /// Offset of the first wrong byte.
        at: usize,
    },
    /// It is not JSON.
    #[error("{path} is not JSON: {problem}")]
    NotJson {
        /// What was read.
        path: String,
        /// What the parser says.
        problem: String,
    },
    /// Objects and arrays are nested deeper than allowed.
    #[error("objects and arrays are nested deeper than {max} levels")]
    TooDeep {
        /// Levels allowed.
        max: usize,
    },
    /// A required field is not there, or null.
    #[error("{field} is missing")]
    MissingField {
        /// The field.
        field: String,
    },
    /// A field that says nothing: an empty text or list, or white space alone.
    #[error("{field} is empty")]
    EmptyField {
        /// The field.
        field: String,
    },
    /// A field stands twice in its object.
    #[error("{field} is there twice")]
    DuplicateField {
        /// The field.
        field: String,
    },
    /// A field is of another type.
    #[error("{field} is {found}, expected {expected}")]
    WrongType {
        /// The field.
        field: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A number is too small or too large.
    #[error("{field} is {value}, expected {expected}")]
    OutOfRange {
        /// The field.
        field: String,
        /// The number as it stands.
        value: String,
        /// The range.
        expected: String,
    },
    /// A field's value is not one that makes sense.
    #[error("{field} {problem}, got {value:?}")]
    Invalid {
        /// The field.
        field: String,
        /// Its value, shortened.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The type is not one that the role consumes.
    #[error("type is {found:?}, which this role does not consume")]
    UnknownType {
        /// The type.
        found: String,
    },
}

impl Malformed {
    /// A short name for metrics, such as `missing_field`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.into()
    }
}
