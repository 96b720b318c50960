//! Reads the fields of a JSON object one by one, so that each thing that can be wrong has its own
//! reason. Values stay slices of the message until they are asked for.

use super::{Limits, Malformed, text_within};
use crate::domain::{Currency, IdError};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

/// Where an object stands in the message; becomes text only in an error.
#[derive(Debug, Clone)]
pub(super) enum Path {
    Root(&'static str),
    Item(String, usize),
}

impl Path {
    fn field(&self, name: &str) -> String {
        match self {
            Self::Root("message" | "body") => name.to_owned(),
            Self::Root(root) => format!("{root}.{name}"),
            Self::Item(list, index) => format!("{list}[{index}].{name}"),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(root) => f.write_str(root),
            Self::Item(list, index) => write!(f, "{list}[{index}]"),
        }
    }
}

/// The fields of one JSON object. A field that is `null` counts as missing.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    json: &'a str,
    path: Path,
    entries: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> Fields<'a> {
    /// The fields of an object that has no envelope, such as the body of a request.
    ///
    /// # Errors
    /// [`Malformed`]: the first thing that is wrong with it.
    pub fn of_body(bytes: &'a [u8], limits: &Limits) -> Result<Self, Malformed> {
        Self::parse(text_within(bytes, limits)?, Path::Root("body"))
    }

    /// The same with one field more, which must not be there.
    ///
    /// # Errors
    /// [`Malformed::Invalid`] if it is.
    pub fn with(mut self, name: &'static str, value: &'a RawValue) -> Result<Self, Malformed> {
        if let Some(given) = self.optional(name) {
            let problem = format!("is given by the address, which says {value}");
            return Err(self.invalid(name, given.get(), &problem));
        }
        self.entries.retain(|(entry, _)| entry != name);
        self.entries.push((name.into(), value));
        Ok(self)
    }

    /// Whether a field is there, and not null.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.optional(name).is_some()
    }

    pub(super) fn parse(json: &'a str, path: Path) -> Result<Self, Malformed> {
        if !json.trim_start().starts_with('{') {
            // Tell what is not JSON at all from what is no object.
            let value: &RawValue = parse_json(json, &path)?;
            return Err(Malformed::WrongType {
                field: path.to_string(),
                expected: "an object",
                found: kind(value),
            });
        }
        let Entries(entries) = parse_json(json, &path)?;
        if let Some(name) = first_twice(&entries) {
            return Err(Malformed::DuplicateField {
                field: path.field(name),
            });
        }
        Ok(Self {
            json,
            path,
            entries,
        })
    }

    /// The whole object, as a type of the caller's.
    ///
    /// # Errors
    /// [`Malformed::Invalid`] with what the type says is wrong.
    pub fn deserialize<T: Deserialize<'a>>(&self) -> Result<T, Malformed> {
        serde_json::from_str(self.json)
            .map_err(|error| self.unusable(&format!("cannot be read: {error}")))
    }

    /// The object as a whole makes no sense, and why.
    #[must_use]
    pub fn unusable(&self, problem: &str) -> Malformed {
        Malformed::Invalid {
            field: self.path.to_string(),
            value: shorten(self.json),
            problem: problem.to_owned(),
        }
    }

    pub(super) fn optional(&self, name: &str) -> Option<&'a RawValue> {
        let mut entries = self.entries.iter();
        let (_, value) = entries.find(|(entry, _)| entry == name)?;
        (value.get() != "null").then_some(*value)
    }

    pub(super) fn required(&self, name: &str) -> Result<&'a RawValue, Malformed> {
        self.optional(name).ok_or_else(|| Malformed::MissingField {
            field: self.path.field(name),
        })
    }

    pub(super) fn invalid(&self, name: &str, value: &str, problem: &str) -> Malformed {
        Malformed::Invalid {
            field: self.path.field(name),
            value: shorten(value),
            problem: problem.to_owned(),
        }
    }

    fn wrong_type(&self, name: &str, expected: &'static str, value: &RawValue) -> Malformed {
        Malformed::WrongType {
            field: self.path.field(name),
            expected,
            found: kind(value),
        }
    }

    fn text_of(&self, name: &str, value: &'a RawValue) -> Result<Cow<'a, str>, Malformed> {
        if !value.get().starts_with('"') {
            return Err(self.wrong_type(name, "a text", value));
        }
        // `RawValue` has checked the syntax; what is left are lone surrogates.
        let Text(text) = parse_json(value.get(), &Path::Root("a text"))
            .map_err(|_| self.invalid(name, value.get(), "is not valid Unicode"))?;
        Ok(text)
    }

    /// A text that is neither empty nor white space alone.
    ///
    /// # Errors
    /// [`Malformed`] if it is missing, empty or no text.
    pub fn text(&self, name: &str) -> Result<Cow<'a, str>, Malformed> {
        let text = self.text_of(name, self.required(name)?)?;
        if text.trim().is_empty() {
            return Err(Malformed::EmptyField {
                field: self.path.field(name),
            });
        }
        Ok(text)
    }

    /// An attribute of an envelope: a text without control characters, which CloudEvents forbids in
    /// them and not every database and protocol can carry.
    pub(super) fn attribute(&self, name: &str) -> Result<Cow<'a, str>, Malformed> {
        let text = self.text(name)?;
        match text.chars().find(|c| c.is_control()) {
            Some(c) => Err(self.invalid(name, &text, &IdError::Control(c.into()).to_string())),
            None => Ok(text),
        }
    }

    pub(super) fn optional_attribute(&self, name: &str) -> Result<Option<Cow<'a, str>>, Malformed> {
        self.optional(name)
            .map(|_| self.attribute(name))
            .transpose()
    }

    /// A text that may be missing, but if it is there says something.
    ///
    /// # Errors
    /// [`Malformed`] if it is empty or no text.
    pub fn optional_text(&self, name: &str) -> Result<Option<Cow<'a, str>>, Malformed> {
        self.optional(name).map(|_| self.text(name)).transpose()
    }

    /// A remark of a person or a provider. NUL, which not every database stores, becomes U+FFFD; an
    /// empty remark counts as none.
    ///
    /// # Errors
    /// [`Malformed`] if it is no text.
    pub fn remark(&self, name: &str) -> Result<Option<String>, Malformed> {
        let Some(value) = self.optional(name) else {
            return Ok(None);
        };
        let text = self.text_of(name, value)?;
        let text = text.replace('\0', "\u{FFFD}");
        Ok((!text.trim().is_empty()).then_some(text))
    }

    /// An identifier: a text, or an integer of any length, taken digit by digit.
    ///
    /// # Errors
    /// [`Malformed`] if it is missing, empty, of another type, or not an identifier.
    pub fn id<T>(
        &self,
        name: &str,
        new: impl Fn(&str) -> Result<T, IdError>,
    ) -> Result<T, Malformed> {
        let value = self.required(name)?;
        let digits = value.get();
        let text = if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            Cow::Borrowed(digits)
        } else if digits.starts_with('"') {
            self.text_of(name, value)?
        } else {
            return Err(self.wrong_type(name, "a text or an integer without a sign", value));
        };
        new(&text).map_err(|error| match error {
            IdError::Empty => Malformed::EmptyField {
                field: self.path.field(name),
            },
            IdError::TooLong(_) | IdError::Control(_) => {
                self.invalid(name, &text, &error.to_string())
            }
        })
    }

    /// An identifier that may be missing.
    ///
    /// # Errors
    /// As [`Self::id`], if it is there.
    pub fn optional_id<T>(
        &self,
        name: &str,
        new: impl Fn(&str) -> Result<T, IdError>,
    ) -> Result<Option<T>, Malformed> {
        self.optional(name).map(|_| self.id(name, new)).transpose()
    }

    /// An exact integer within `range`. `1.0` and `1e3` are not integers.
    ///
    /// # Errors
    /// [`Malformed`] if it is missing, no integer or out of range.
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<i64, Malformed> {
        let value = self.required(name)?;
        let digits = value.get();
        let unsigned = digits.strip_prefix('-').unwrap_or(digits);
        if !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.wrong_type(name, "an integer", value));
        }
        match digits.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(Malformed::OutOfRange {
                field: self.path.field(name),
                value: shorten(digits),
                expected: describe(&range),
            }),
        }
    }

    /// An integer that may be missing.
    ///
    /// # Errors
    /// As [`Self::integer`], if it is there.
    pub fn optional_integer(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Malformed> {
        self.optional(name)
            .map(|_| self.integer(name, range))
            .transpose()
    }

    /// `true` or `false`; `false` if it is missing.
    ///
    /// # Errors
    /// [`Malformed`] if it is something else.
    pub fn flag(&self, name: &str) -> Result<bool, Malformed> {
        match self.optional(name) {
            None => Ok(false),
            Some(value) => match value.get() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(self.wrong_type(name, "true or false", value)),
            },
        }
    }

    /// An ISO 4217 code.
    ///
    /// # Errors
    /// [`Malformed`] if it is missing, no text or no active currency.
    pub fn currency(&self, name: &str) -> Result<Currency, Malformed> {
        let code = self.text(name)?;
        Currency::new(&code).map_err(|error| self.invalid(name, &code, &error.to_string()))
    }

    /// A list of objects with at least one of them.
    ///
    /// # Errors
    /// [`Malformed`] if it is missing, empty, or holds something else.
    pub fn objects(&self, name: &str) -> Result<Vec<Fields<'a>>, Malformed> {
        let objects = self.objects_or_none(name)?;
        if objects.is_empty() {
            return Err(Malformed::EmptyField {
                field: self.path.field(name),
            });
        }
        Ok(objects)
    }

    /// A list of objects that may be empty.
    ///
    /// # Errors
    /// [`Malformed`] if it is missing or holds something else.
    pub fn objects_or_none(&self, name: &str) -> Result<Vec<Fields<'a>>, Malformed> {
        let value = self.required(name)?;
        if !value.get().starts_with('[') {
            return Err(self.wrong_type(name, "a list of objects", value));
        }
        let list: Vec<&'a RawValue> = parse_json(value.get(), &self.path)?;
        let items = list.into_iter().enumerate();
        items
            .map(|(i, item)| Fields::parse(item.get(), Path::Item(self.path.field(name), i)))
            .collect()
    }
}

/// The first name that stands twice. Few names are compared with each other; many are sorted, since
/// a message is free to hold a hundred thousand.
fn first_twice<'n>(entries: &'n [(Cow<'_, str>, &RawValue)]) -> Option<&'n str> {
    if entries.len() <= 16 {
        let twice = |&(i, name): &(usize, &str)| entries[..i].iter().any(|(n, _)| n == name);
        let names = entries.iter().map(|(name, _)| name.as_ref());
        return names.enumerate().find(twice).map(|(_, name)| name);
    }
    let mut names: Vec<(&str, usize)> = { entries.iter().zip(0..) }
        .map(|((name, _), place)| (name.as_ref(), place))
        .collect();
    names.sort_unstable();
    let twice = names.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    twice.min_by_key(|pair| pair[1].1).map(|pair| pair[1].0)
}

struct Entries<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some((Text(name), value)) = map.next_entry()? {
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

fn parse_json<'a, T: Deserialize<'a>>(json: &'a str, path: &Path) -> Result<T, Malformed> {
    serde_json::from_str(json).map_err(|error| Malformed::NotJson {
        path: path.to_string(),
        problem: error.to_string(),
    })
}

fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "true or false",
        Some(b'n') => "null",
        _ if value.get().contains(['.', 'e', 'E']) => "a number that is not an integer",
        _ => "a number",
    }
}

fn describe(range: &RangeInclusive<i64>) -> String {
    match (*range.start(), *range.end()) {
        (i64::MIN, i64::MAX) => "a 64-bit integer".to_owned(),
        (start, i64::MAX) => format!("an integer of at least {start}"),
        (start, end) => format!("an integer from {start} to {end}"),
    }
}

/// At most 64 characters of a value, for a message that a person reads.
fn shorten(value: &str) -> String {
    match value.char_indices().nth(64) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}
