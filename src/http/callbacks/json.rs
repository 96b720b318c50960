//! Reads single values of a JSON body by their pointers (RFC 6901), and numbers digit by digit.

use super::provider::{self, Refusal, shorten};
use crate::domain::money::Decimal;
use crate::domain::{Currency, IdError};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A JSON object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Json<'a>(&'a RawValue);

impl<'a> Json<'a> {
    /// Reads a body, which must be a JSON object in UTF-8.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            Refusal::malformed(format!("is not UTF-8 at byte {}", error.valid_up_to()))
        })?;
        let value: &RawValue = serde_json::from_str(text).map_err(|error| not_json(&error))?;
        if !value.get().starts_with('{') {
            return Err(Refusal::malformed("is no JSON object"));
        }
        Ok(Self(value))
    }

    /// The value at a pointer; none if it or something above it is missing or null.
    fn at(self, pointer: &str) -> Result<Option<&'a RawValue>, Refusal> {
        let mut value = self.0;
        for name in pointer.split('/').skip(1) {
            let name = name.replace("~1", "/").replace("~0", "~");
            let found = match value.get().as_bytes().first() {
                Some(b'{') => {
                    let mut json = serde_json::Deserializer::from_str(value.get());
                    let found = Member(&name).deserialize(&mut json);
                    match found.map_err(|error| not_json(&error))? {
                        Found::Once(value) => Some(value),
                        Found::Never => None,
                        Found::Twice => {
                            let field = shorten(pointer);
                            return Err(Refusal::FieldTwice { field });
                        }
                    }
                }
                Some(b'[') => {
                    let list: Vec<&RawValue> =
                        serde_json::from_str(value.get()).map_err(|error| not_json(&error))?;
                    let index = name.parse::<usize>().ok();
                    index.and_then(|index| list.get(index).copied())
                }
                _ => None,
            };
            match found {
                Some(found) if found.get() != "null" => value = found,
                _ => return Ok(None),
            }
        }
        Ok(Some(value))
    }

    /// A text, or an integer of any length without a sign, taken digit by digit.
    pub(super) fn optional(self, pointer: &str) -> Result<Option<Cow<'a, str>>, Refusal> {
        let Some(value) = self.at(pointer)? else {
            return Ok(None);
        };
        if value.get().starts_with('"') {
            return text(pointer, value).map(Some);
        }
        if value.get().bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Some(value.get().into()));
        }
        let problem = "is neither a text nor an integer without a sign";
        Err(Refusal::field(pointer, value.get(), problem))
    }

    /// The same where it must be there.
    pub(super) fn required(self, pointer: &str) -> Result<Cow<'a, str>, Refusal> {
        self.optional(pointer)?
            .ok_or_else(|| Refusal::missing(pointer))
    }

    /// An identifier of the domain.
    pub(super) fn id<T>(
        self,
        pointer: &str,
        new: impl Fn(&str) -> Result<T, IdError>,
    ) -> Result<T, Refusal> {
        provider::id(pointer, &self.required(pointer)?, new)
    }

    /// What the provider remarks, if it is a text that says something.
    pub(super) fn remark(self, pointer: &str) -> Result<Option<String>, Refusal> {
        match self.at(pointer)? {
            Some(value) if value.get().starts_with('"') => {
                Ok(provider::remark(&text(pointer, value)?))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// A currency, in whatever case it is written.
    pub(super) fn currency(self, pointer: &str) -> Result<Currency, Refusal> {
        provider::currency(pointer, &self.required(pointer)?)
    }

    /// An amount that is stated in minor units.
    pub(super) fn minor(self, pointer: &str, currency: Currency, min: i64) -> Result<i64, Refusal> {
        let written = self.number(pointer)?;
        let unsigned = written.strip_prefix('-').unwrap_or(&written);
        if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Refusal::field(pointer, &written, "is no integer"));
        }
        match written.parse() {
            Ok(minor) => provider::within(pointer, minor, min),
            Err(_) => Err(Refusal::inexact(pointer, &written, currency)),
        }
    }

    /// An amount that is stated in major units, as a text or as a number with a decimal point.
    pub(super) fn major(self, pointer: &str, currency: Currency, min: i64) -> Result<i64, Refusal> {
        let written = self.number(pointer)?;
        let money = Decimal::parse(&written).and_then(|decimal| decimal.times(1, currency));
        match money {
            Some((money, false)) => provider::within(pointer, money.minor, min),
            Some((_, true)) | None => Err(Refusal::inexact(pointer, &written, currency)),
        }
    }

    /// A number as it is written, bare or as a text.
    fn number(self, pointer: &str) -> Result<Cow<'a, str>, Refusal> {
        match self.at(pointer)? {
            None => Err(Refusal::missing(pointer)),
            Some(value) if value.get().starts_with('"') => text(pointer, value),
            Some(value) => Ok(value.get().into()),
        }
    }
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// `RawValue` has checked the syntax; what is left are lone surrogates.
fn text<'a>(pointer: &str, value: &'a RawValue) -> Result<Cow<'a, str>, Refusal> {
    match serde_json::from_str(value.get()) {
        Ok(Text(text)) => Ok(text),
        Err(_) => Err(Refusal::field(pointer, value.get(), "is not valid Unicode")),
    }
}

fn not_json(error: &serde_json::Error) -> Refusal {
    Refusal::malformed(format!(
        "is not JSON at line {} column {}",
        error.line(),
        error.column()
    ))
}

enum Found<'a> {
    Never,
    Once(&'a RawValue),
    Twice,
}

/// Looks for the one member of that name.
struct Member<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = Found::Never;
        while let Some(Text(name)) = map.next_key()? {
            if name != self.0 {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value()?;
            found = match found {
                Found::Never => Found::Once(value),
                Found::Once(_) | Found::Twice => Found::Twice,
            };
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::MAX_AMOUNT;

    fn read<'a>(json: &'a str, pointer: &str) -> Result<Option<Cow<'a, str>>, &'static str> {
        let json = Json::parse(json.as_bytes()).map_err(|refusal| refusal.code())?;
        json.optional(pointer).map_err(|refusal| refusal.code())
    }

    fn amount(written: &str, currency: &str, major: bool) -> Result<i64, &'static str> {
        let json = format!("{{\"a\":{written}}}");
        let json = Json::parse(json.as_bytes()).unwrap();
        let currency = Currency::new(currency).unwrap();
        let amount = if major {
            json.major("/a", currency, 0)
        } else {
            json.minor("/a", currency, 0)
        };
        amount.map_err(|refusal| refusal.code())
    }

    #[test]
    fn values_are_found_by_their_pointers() {
        let json = r#"{"a":{"b/c":[{"d":"x"},{"d":12}],"~":"y"},"n":null,"t":true,"\u0065":"e"}"#;
        for (pointer, found) in [
            ("/a/b~1c/0/d", Some("x")),
            ("/a/b~1c/1/d", Some("12")),
            ("/a/~0", Some("y")),
            ("/a/b~1c/2/d", None),
            ("/a/b~1c/d", None),
            ("/e", Some("e")),
            ("/n", None),
            ("/n/a", None),
            ("/t/a", None),
        ] {
            assert_eq!(read(json, pointer).unwrap().as_deref(), found, "{pointer}");
        }
        assert_eq!(read(json, "/t"), Err("malformed_field"));
        assert_eq!(read(json, "/a"), Err("malformed_field"));
        assert_eq!(read(json, ""), Err("malformed_field"));
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused() {
        assert_eq!(read(r#"{"a":1,"a":1}"#, "/a"), Err("field_twice"));
        assert_eq!(read(r#"{"a":1,"\u0061":2}"#, "/a"), Err("field_twice"));
    }

    #[test]
    fn what_is_no_object_is_malformed() {
        let deep = "[".repeat(100_000);
        let within = format!("{{\"a\":{deep}{}}}", "]".repeat(100_000));
        assert!(read(&within, "/a/0/0/b").is_ok_and(|found| found.is_none()));
        for json in [
            "",
            "[]",
            "1",
            "{",
            "{\"a\":1}x",
            "\u{feff}{}",
            "null",
            &deep,
        ] {
            assert_eq!(read(json, "/a"), Err("malformed"), "{json:.20}");
        }
        assert!(Json::parse(b"{\"a\":\"\xff\"}").is_err());
        assert_eq!(read(r#"{"a":"\ud800"}"#, "/a"), Err("malformed_field"));
    }

    // B07: amounts never pass through a float.
    #[test]
    fn amounts_are_exact() {
        assert_eq!(amount("0.10", "GBP", true), Ok(10));
        assert_eq!(amount("\"0.10\"", "GBP", true), Ok(10));
        assert_eq!(amount("19.9", "GBP", true), Ok(1990));
        assert_eq!(amount("500", "JPY", true), Ok(500));
        assert_eq!(amount("0.001", "KWD", true), Ok(1));
        assert_eq!(amount("9999999999999.99", "GBP", true), Ok(MAX_AMOUNT - 1));
        assert_eq!(amount("0.001", "GBP", true), Err("inexact_amount"));
        assert_eq!(amount("0.5", "JPY", true), Err("inexact_amount"));
        assert_eq!(amount("1e2", "GBP", true), Err("inexact_amount"));
        assert_eq!(amount("-1", "GBP", true), Err("amount_out_of_range"));
        assert_eq!(amount("1999", "GBP", false), Ok(1999));
        assert_eq!(amount("\"1999\"", "GBP", false), Ok(1999));
        assert_eq!(amount("19.99", "GBP", false), Err("malformed_field"));
        assert_eq!(amount("true", "GBP", false), Err("malformed_field"));
        assert_eq!(amount("-1", "GBP", false), Err("amount_out_of_range"));
        assert_eq!(
            amount(&(MAX_AMOUNT + 1).to_string(), "GBP", false),
            Err("amount_out_of_range")
        );
        let huge = "9".repeat(30);
        assert_eq!(amount(&huge, "GBP", false), Err("inexact_amount"));
        assert_eq!(amount(&huge, "GBP", true), Err("inexact_amount"));
    }
}
