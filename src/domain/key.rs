//! Business idempotency keys, their fingerprints, and the tokens that parked events await.

use super::text::impl_text;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Longest key, in bytes: what an index of every supported database takes.
pub const MAX_BYTES: usize = 191;

/// Bytes of a hashed part: the mark and 43 characters of base64url without padding.
const HASHED_BYTES: usize = 44;

/// Says *which business action* an event is: the same for every copy of it, different for every
/// other action. A key is scoped by the role that takes it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

/// A part of a key was empty, or there was no part at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a key needs at least one part and no empty one, got {parts:?}")]
pub struct EmptyPart {
    /// The parts as they were given.
    pub parts: Vec<String>,
}

impl Key {
    /// Builds a key from named parts. Two different lists of parts never give the same key.
    ///
    /// Parts are joined with `/`, after `%`, `/` and `~` in them were escaped as `%25`, `%2F` and
    /// `%7E`. If the whole is longer than [`MAX_BYTES`], each part that is longer than a hash is
    /// replaced by `~` and its SHA-256; if it still is, the whole is.
    ///
    /// # Errors
    /// [`EmptyPart`] if a part, or the list, is empty.
    pub fn new(parts: &[&str]) -> Result<Self, EmptyPart> {
        join(parts, '/').map(|text| Self(text.into()))
    }

    /// From parts that are known not to be empty.
    pub(crate) fn of(parts: &[&str]) -> Self {
        debug_assert!(parts.iter().all(|part| !part.is_empty()));
        Self(joined(parts, '/').into())
    }

    /// The key of the same action when an operator has it decided anew.
    #[must_use]
    pub fn anew(&self, anew: Anew) -> Self {
        let suffix = format!("/~anew-{anew}");
        if self.0.len() + suffix.len() <= MAX_BYTES {
            Self(format!("{}{suffix}", self.0).into())
        } else {
            Self(format!("~{}{suffix}", hash(&self.0)).into())
        }
    }

    /// A key that was stored before.
    pub(crate) fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The text that is stored and compared, byte by byte.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which decision anew of a key it is: the dead letter that was replayed, and the how manyth death
/// of it. So a replay that comes twice is decided once, and a second replay is decided again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anew {
    /// The dead letter's number.
    pub letter: u64,
    /// How often it had died, from 1.
    pub deaths: u32,
}

/// `5`, or `5-2` for the second death.
impl fmt::Display for Anew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.deaths {
            1 => write!(f, "{}", self.letter),
            deaths => write!(f, "{}-{deaths}", self.letter),
        }
    }
}

/// The text is not the number of a decision anew, such as `5` or `5-2`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not the number of a decision anew, such as 5 or 5-2")]
pub struct NotAnew;

impl std::str::FromStr for Anew {
    type Err = NotAnew;

    fn from_str(text: &str) -> Result<Self, NotAnew> {
        let (letter, deaths) = text.split_once('-').unwrap_or((text, "1"));
        let anew = Self {
            letter: letter.parse().map_err(|_| NotAnew)?,
            deaths: deaths.parse().map_err(|_| NotAnew)?,
        };
        // Only what `Display` writes, so that one decision has one key.
        (anew.to_string() == text).then_some(anew).ok_or(NotAnew)
    }
}

/// What a parked event waits for, such as `order:O1:PAID`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(Arc<str>);

impl Token {
    /// Builds a token from parts, escaped as those of a [`Key`] are, joined with `:`.
    ///
    /// # Errors
    /// [`EmptyPart`] if a part, or the list, is empty.
    pub fn new(parts: &[&str]) -> Result<Self, EmptyPart> {
        join(parts, ':').map(|text| Self(text.into()))
    }

    /// From parts that are known not to be empty.
    pub(crate) fn of(parts: &[&str]) -> Self {
        debug_assert!(parts.iter().all(|part| !part.is_empty()));
        Self(joined(parts, ':').into())
    }

    /// A token that was stored before.
    pub(crate) fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The text that is stored and compared, byte by byte.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl_text! { Key Token }

fn join(parts: &[&str], separator: char) -> Result<String, EmptyPart> {
    if parts.is_empty() || parts.iter().any(|part| part.is_empty()) {
        return Err(EmptyPart {
            parts: parts.iter().map(|&part| part.to_owned()).collect(),
        });
    }
    Ok(joined(parts, separator))
}

fn joined(parts: &[&str], separator: char) -> String {
    let whole = join_with(parts, separator, usize::MAX);
    if whole.len() <= MAX_BYTES {
        return whole;
    }
    let shorter = join_with(parts, separator, HASHED_BYTES);
    if shorter.len() <= MAX_BYTES {
        return shorter;
    }
    format!("~{}", hash(&whole))
}

/// Joins the escaped parts; those longer than `longest` bytes are replaced by their hash. A literal
/// `~` is escaped, so a hash is never taken for a part.
fn join_with(parts: &[&str], separator: char, longest: usize) -> String {
    let mut text = String::with_capacity(64);
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            text.push(separator);
        }
        let start = text.len();
        for c in part.chars() {
            match c {
                '%' => text.push_str("%25"),
                '~' => text.push_str("%7E"),
                '/' if separator == '/' => text.push_str("%2F"),
                ':' if separator == ':' => text.push_str("%3A"),
                c => text.push(c),
            }
        }
        if text.len() - start > longest {
            let hashed = hash(&text[start..]);
            text.truncate(start);
            text.push('~');
            text.push_str(&hashed);
        }
    }
    text
}

/// SHA-256 in base64url without padding: 43 characters.
fn hash(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digest = Sha256::digest(text.as_bytes());
    digest
        .chunks(3)
        .flat_map(|chunk| {
            let bits = chunk
                .iter()
                .chain([0, 0].iter())
                .take(3)
                .fold(0usize, |bits, &byte| bits << 8 | usize::from(byte));
            (0..=chunk.len()).map(move |i| char::from(ALPHABET[bits >> (18 - 6 * i) & 63]))
        })
        .collect()
}

/// A hash of an event's business content: equal for copies, different for another request that
/// reuses the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Hashes the type's name and the content's JSON. Field order is that of the type, and unknown
    /// fields were never read, so ids, times and trace headers of an envelope do not take part.
    pub fn of(kind: &str, content: &impl Serialize) -> Self {
        let mut sink = Sink(Sha256::new());
        sink.0.update(kind.as_bytes());
        sink.0.update([0]);
        // Writing to a hash cannot fail, and the contents are structs with text keys.
        let written = serde_json::to_writer(&mut sink, content);
        debug_assert!(written.is_ok());
        Self(sink.0.finalize().into())
    }

    /// 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// A fingerprint that was stored before; `None` unless it is 32 bytes long.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

struct Sink(Sha256);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn parts_are_joined_and_escaped() {
        let key = |parts: &[&str]| Key::new(parts).unwrap().to_string();
        assert_eq!(key(&["O1", "order.cancel"]), "O1/order.cancel");
        assert_eq!(key(&["a/b", "c"]), "a%2Fb/c");
        assert_eq!(key(&["50%", "~x"]), "50%25/%7Ex");
        let token = Token::new(&["order", "O:1", "PAID"]).unwrap();
        assert_eq!(token.as_str(), "order:O%3A1:PAID");
    }

    #[test]
    fn an_empty_part_is_refused() {
        assert!(Key::new(&[]).is_err());
        assert!(Key::new(&["a", ""]).is_err());
        assert!(Token::new(&["order", ""]).is_err());
    }

    // B39: ids longer than the column.
    #[test]
    fn long_ids_that_share_their_beginning_have_different_keys() {
        let a = format!("{}a", "x".repeat(299));
        let b = format!("{}b", "x".repeat(299));
        let (ka, kb) = (
            Key::new(&[&a, "order.create"]).unwrap(),
            Key::new(&[&b, "order.create"]).unwrap(),
        );
        assert_ne!(ka, kb);
        assert!(ka.as_str().len() <= MAX_BYTES);
        assert!(ka.as_str().starts_with('~') && ka.as_str().ends_with("/order.create"));
    }

    #[test]
    fn the_hash_is_base64url() {
        // The SHA-256 of the empty text.
        assert_eq!(hash(""), "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU");
    }

    #[test]
    fn anew_differs_and_fits() {
        let anew = |letter, deaths| Anew { letter, deaths };
        let key = Key::new(&[&"x".repeat(190)]).unwrap();
        assert!(key.anew(anew(1, 1)).as_str().len() <= MAX_BYTES);
        assert_ne!(key.anew(anew(1, 1)), key.anew(anew(2, 1)));
        let short = Key::new(&["O1", "order.cancel"]).unwrap();
        let first = short.anew(anew(1, 1));
        assert_eq!(first.as_str(), "O1/order.cancel/~anew-1");
        assert_eq!(short.anew(anew(1, 2)).as_str(), "O1/order.cancel/~anew-1-2");
        let literal = Key::new(&["O1", "order.cancel", "~anew-1"]).unwrap();
        assert_ne!(literal, first);
    }

    #[test]
    fn a_decision_anew_is_written_in_one_way_only() {
        for text in ["1", "5-2", "18446744073709551615-4294967295"] {
            assert_eq!(text.parse::<Anew>().unwrap().to_string(), text);
        }
        for text in ["", "-", "5-1", "05", "5-", "-2", "+5", "5-2-3", "a", "5 "] {
            assert_eq!(text.parse::<Anew>(), Err(NotAnew), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn different_parts_never_give_the_same_key(
            lists in proptest::collection::vec(
                proptest::collection::vec("[ab/%~:]{1,3}|[a/~]{40,200}", 1..5), 2..40)
        ) {
            let mut seen: HashMap<Key, Vec<String>> = HashMap::new();
            for parts in lists {
                let borrowed: Vec<&str> = parts.iter().map(String::as_str).collect();
                let key = Key::new(&borrowed).unwrap();
                prop_assert!(key.as_str().len() <= MAX_BYTES);
                let before = seen.insert(key, parts.clone());
                prop_assert!(before.is_none_or(|before| before == parts));
            }
        }
    }
}
