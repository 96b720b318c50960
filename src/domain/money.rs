//! Money: integer minor units of an ISO 4217 currency.

use serde::{Serialize, Serializer};
use std::fmt;

/// An amount of one currency. No operation rounds unless its name says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Money {
    /// Minor units: pence, fen, cents; yen as they are.
    pub minor: i64,
    /// The currency of the units.
    pub currency: Currency,
}

impl Money {
    /// An amount of `minor` units.
    #[must_use]
    pub fn new(minor: i64, currency: Currency) -> Self {
        Self { minor, currency }
    }

    /// Whole major units in it, rounded down: 1,999 pence are 19.
    #[must_use]
    pub fn whole_major_units(self) -> i64 {
        self.minor
            .div_euclid(10_i64.pow(u32::from(self.currency.exponent())))
    }
}

/// The amount in major units with its currency: `19.99 GBP`.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exponent = usize::from(self.currency.exponent());
        let sign = if self.minor < 0 { "-" } else { "" };
        let digits = format!(
            "{:0>width$}",
            self.minor.unsigned_abs(),
            width = exponent + 1
        );
        let (major, minor) = digits.split_at(digits.len() - exponent);
        let point = if exponent == 0 { "" } else { "." };
        write!(f, "{sign}{major}{point}{minor} {}", self.currency)
    }
}

/// A decimal number as it was written: `mantissa / 10^scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    mantissa: i128,
    scale: u32,
}

impl Decimal {
    /// Reads `-12.345`: an optional sign, digits, and at most nine decimals. `None` for anything
    /// else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let dangling = digits.ends_with('.');
        if whole.is_empty() || dangling || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        if whole.len() > 18 || fraction.len() > 9 {
            return None;
        }
        let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
        Some(Self {
            mantissa: if negative { -mantissa } else { mantissa },
            scale: u32::try_from(fraction.len()).ok()?,
        })
    }

    /// Whether it is less than zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.mantissa < 0
    }

    /// `self * quantity` as money, rounded half to even, and whether rounding changed it. `None` if
    /// it does not fit.
    #[must_use]
    pub fn times(self, quantity: i64, currency: Currency) -> Option<(Money, bool)> {
        let product = self.mantissa.checked_mul(i128::from(quantity))?;
        let exponent = u32::from(currency.exponent());
        let (minor, rounded) = if self.scale <= exponent {
            let factor = 10_i128.pow(exponent - self.scale);
            (product.checked_mul(factor)?, false)
        } else {
            divide_half_even(product, 10_i128.pow(self.scale - exponent))
        };
        let minor = i64::try_from(minor).ok()?;
        Some((Money::new(minor, currency), rounded))
    }
}

fn divide_half_even(value: i128, divisor: i128) -> (i128, bool) {
    let quotient = value.div_euclid(divisor);
    let rest = value.rem_euclid(divisor);
    let up = match (rest * 2).cmp(&divisor) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => quotient % 2 != 0,
        std::cmp::Ordering::Greater => true,
    };
    (quotient + i128::from(up), rest != 0)
}

/// An active ISO 4217 currency.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Currency([u8; 3]);

/// The text is not the code of an active ISO 4217 currency.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not an ISO 4217 currency code such as GBP")]
pub struct UnknownCurrency;

impl Currency {
    /// Pound sterling, the currency of the sample data.
    pub const GBP: Self = Self(*b"GBP");

    /// Reads a code such as `GBP`; upper case only.
    ///
    /// # Errors
    /// [`UnknownCurrency`] if the code is not in the table.
    pub fn new(code: &str) -> Result<Self, UnknownCurrency> {
        let bytes: [u8; 3] = code.as_bytes().try_into().map_err(|_| UnknownCurrency)?;
        let currency = Self(bytes);
        currency.find().map(|_| currency).ok_or(UnknownCurrency)
    }

    /// All codes that are known.
    pub fn codes() -> impl Iterator<Item = &'static str> {
        EXPONENTS.iter().flat_map(|(codes, _)| codes.split(' '))
    }

    /// The three letters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("???")
    }

    /// How many decimals its minor unit has: JPY 0, CNY 2, KWD 3.
    #[must_use]
    pub fn exponent(self) -> u8 {
        self.find().unwrap_or(2)
    }

    fn find(self) -> Option<u8> {
        EXPONENTS
            .iter()
            .find(|(codes, _)| codes.split(' ').any(|code| code.as_bytes() == self.0))
            .map(|&(_, exponent)| exponent)
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// ISO 4217, list one, without funds, metals and test codes; common currencies first.
const EXPONENTS: &[(&str, u8)] = &[
    (
        "CNY USD EUR GBP AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BRL BSD BTN \
         BWP BYN BZD CAD CDF CHF COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB FJD FKP GEL GHS GIP \
         GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD \
         LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB \
         PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC \
         SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG",
        2,
    ),
    (
        "JPY KRW BIF CLP DJF GNF ISK KMF PYG RWF UGX VND VUV XAF XOF XPF",
        0,
    ),
    ("KWD BHD IQD JOD LYD OMR TND", 3),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn currency(code: &str) -> Currency {
        Currency::new(code).unwrap()
    }

    #[test]
    fn exponents_follow_iso_4217() {
        for (code, exponent) in [("JPY", 0), ("CNY", 2), ("GBP", 2), ("KWD", 3), ("KRW", 0)] {
            assert_eq!(currency(code).exponent(), exponent, "{code}");
        }
        for code in ["gbp", "GB", "GBPX", "XXX", "", "£££"] {
            assert_eq!(Currency::new(code), Err(UnknownCurrency), "{code}");
        }
    }

    #[test]
    fn money_is_shown_in_major_units() {
        let show = |minor, code| Money::new(minor, currency(code)).to_string();
        assert_eq!(show(1999, "GBP"), "19.99 GBP");
        assert_eq!(show(-5, "GBP"), "-0.05 GBP");
        assert_eq!(show(500, "JPY"), "500 JPY");
        assert_eq!(show(1, "KWD"), "0.001 KWD");
        assert_eq!(show(i64::MIN, "JPY"), "-9223372036854775808 JPY");
    }

    #[test]
    fn points_count_whole_major_units() {
        assert_eq!(Money::new(1999, currency("GBP")).whole_major_units(), 19);
        assert_eq!(Money::new(99, currency("GBP")).whole_major_units(), 0);
        assert_eq!(Money::new(500, currency("JPY")).whole_major_units(), 500);
        assert_eq!(Money::new(1999, currency("KWD")).whole_major_units(), 1);
    }

    // B07: amounts never pass through a float.
    #[test]
    fn decimals_are_exact() {
        let pence = |text: &str, quantity| {
            Decimal::parse(text)
                .unwrap()
                .times(quantity, Currency::GBP)
                .unwrap()
        };
        assert_eq!(pence("0.10", 1), (Money::new(10, Currency::GBP), false));
        assert_eq!(pence("2.1", 6), (Money::new(1260, Currency::GBP), false));
        assert_eq!(pence("-11062.06", 1).0.minor, -1_106_206);
        assert_eq!(pence("0.001", 10), (Money::new(1, Currency::GBP), false));
    }

    #[test]
    fn rounding_is_half_to_even_and_told() {
        let pence = |text: &str| {
            let (money, rounded) = Decimal::parse(text)
                .unwrap()
                .times(1, Currency::GBP)
                .unwrap();
            (money.minor, rounded)
        };
        assert_eq!(pence("0.005"), (0, true));
        assert_eq!(pence("0.015"), (2, true));
        assert_eq!(pence("0.025"), (2, true));
        assert_eq!(pence("0.0251"), (3, true));
        assert_eq!(pence("-0.005"), (0, true));
        assert_eq!(pence("-0.015"), (-2, true));
        assert_eq!(pence("0.020"), (2, false));
    }

    #[test]
    fn what_is_not_a_decimal_is_refused() {
        for text in [
            "",
            "-",
            ".5",
            "5.",
            "1e3",
            "+1",
            "1,5",
            "0x1",
            "1.2.3",
            "1.0000000001",
            " 1",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text:?}");
        }
    }
}
