//! Resource quantities such as `100m`, `1Gi`, `2.5e3`: exact fixed-point numbers that keep their notation.
//!
//! Amounts are held in billionths (upstream's smallest unit). Amounts beyond about 10^29 units, for which upstream
//! uses arbitrary precision, are capped; `value` and `milli_value` are capped at the bounds of `i64`, where
//! upstream's overflow.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const NANOS: i128 = 1_000_000_000;
/// The largest amount held, in billionths: 10^38.
const MAX_NANOS: i128 = 100_000_000_000_000_000_000_000_000_000_000_000_000;
/// A decimal number with more digits certainly exceeds `MAX_NANOS`.
const MAX_DIGITS: i64 = 38;
/// The fraction digits of a binary quantity that are evaluated; those after them only round up.
const BINARY_FRACTION_DIGITS: usize = 18;

/// The family of suffixes of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySI,
    /// `12M`
    #[default]
    DecimalSI,
}

/// Why a text is not a quantity, with upstream's error text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// A quantity. Two quantities are equal if their amounts are, whatever their notation.
#[derive(Debug, Clone, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// The text as written, if upstream keeps it instead of the canonical form.
    text: Option<Box<str>>,
}

/// A quantity's text, split into its parts.
struct Parts<'a> {
    negative: bool,
    /// Integer digits without leading zeros; `0` if none are left.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    has_digits: bool,
}

fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let negative = text.starts_with('-');
    let significant = unsigned.trim_start_matches('0');
    let (whole, mut rest) = significant.split_at(digits(significant));
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        (fraction, rest) = after.split_at(digits(after));
    }
    let letters = rest.bytes().take_while(|b| b"eEinumkKMGTP".contains(b)).count();
    let tail = &rest[letters..];
    let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
    if digits(tail) != tail.len() {
        return Err(QuantityError::Format);
    }
    let has_digits = significant.len() < unsigned.len() || !whole.is_empty() || !fraction.is_empty();
    let whole = if whole.is_empty() { "0" } else { whole };
    Ok(Parts { negative, whole, fraction, suffix: rest, has_digits })
}

/// Returns the base-10 or base-2 exponent of a suffix.
fn interpret(suffix: &str) -> Result<(Format, i64), QuantityError> {
    let decimal = |e| Ok((Format::DecimalSI, e));
    let binary = |e| Ok((Format::BinarySI, e));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
            let exponent: i64 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
            // Far beyond any amount held, but far from overflowing below.
            Ok((Format::DecimalExponent, exponent.clamp(-1_000_000, 1_000_000)))
        }
    }
}

/// Returns `whole.fraction * 10^exponent` in billionths, rounded up.
fn decimal_nanos(whole: &str, fraction: &str, exponent: i64) -> i128 {
    let total = whole.len() + fraction.len();
    let shift = exponent + 9 - fraction.len() as i64;
    let keep = if shift < 0 { total.saturating_sub(shift.unsigned_abs() as usize) } else { total };
    let mut nanos: i128 = 0;
    let mut lost = false;
    for (i, digit) in whole.bytes().chain(fraction.bytes()).map(|b| i128::from(b - b'0')).enumerate() {
        if i >= keep {
            lost |= digit != 0;
        } else {
            nanos = nanos.saturating_mul(10).saturating_add(digit);
            if nanos >= MAX_NANOS {
                return MAX_NANOS;
            }
        }
    }
    if nanos != 0 && shift > 0 {
        if shift > MAX_DIGITS {
            return MAX_NANOS;
        }
        nanos = nanos.saturating_mul(10i128.pow(shift as u32));
    }
    nanos.saturating_add(i128::from(lost)).min(MAX_NANOS)
}

/// Returns `whole.fraction * 2^exponent` in billionths, rounded up and capped at the largest `i64`, as upstream does.
fn binary_nanos(whole: &str, fraction: &str, exponent: i64) -> i128 {
    let cap = i128::from(i64::MAX) * NANOS;
    let factor = 1i128 << exponent.clamp(0, 60);
    let Some(units) = whole.parse::<u64>().ok().map(|w| i128::from(w).saturating_mul(factor)) else {
        return cap;
    };
    if units > i128::from(i64::MAX) {
        return cap;
    }
    let (counted, rest) = fraction.split_at(fraction.len().min(BINARY_FRACTION_DIGITS));
    let numerator = counted.bytes().fold(0i128, |n, b| n * 10 + i128::from(b - b'0')) * factor;
    let lost = i128::from(rest.bytes().any(|b| b != b'0'));
    // numerator / 10^digits units, in billionths.
    let scale = 9 - counted.len() as i32;
    let part = if scale >= 0 {
        numerator.saturating_mul(10i128.pow(scale.unsigned_abs())) + lost
    } else {
        let divisor = 10i128.pow(scale.unsigned_abs());
        (numerator + lost + divisor - 1) / divisor
    };
    (units * NANOS).saturating_add(part).min(cap)
}

/// Returns whether upstream keeps the text as written instead of printing the canonical form.
fn keeps_text(parts: &Parts<'_>, format: Format, exponent: i64) -> bool {
    let (whole, fraction) = (parts.whole, parts.fraction);
    let digits = (whole.len() + fraction.len()) as i64;
    if format == Format::BinarySI {
        let small_enough = fraction.is_empty() && digits + exponent * 3 / 10 < 15;
        return small_enough && whole.parse::<u64>().is_ok_and(|w| w & 7 != 0);
    }
    let scale = exponent - fraction.len() as i64;
    let trailing_zeros = fraction.bytes().rev().chain(whole.bytes().rev()).take_while(|b| *b == b'0').count();
    digits <= 18 && scale >= -9 && scale % 3 == 0 && trailing_zeros < 3 && !whole.starts_with('0')
}

impl Quantity {
    /// Creates a quantity of `value` whole units.
    pub fn new(value: i64, format: Format) -> Self {
        Self::from_nanos(i128::from(value) * NANOS, format)
    }

    /// Creates a quantity of `value` thousandths, as CPU is counted.
    pub fn from_milli(value: i64, format: Format) -> Self {
        Self::from_nanos(i128::from(value) * (NANOS / 1000), format)
    }

    /// Creates a quantity of `nanos` billionths.
    pub fn from_nanos(nanos: i128, format: Format) -> Self {
        Self { nanos: nanos.clamp(-MAX_NANOS, MAX_NANOS), format, text: None }
    }

    /// Parses `100m`, `1Gi`, `2.5e3` and the like.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let parts = split(text)?;
        let (mut format, exponent) = interpret(parts.suffix)?;
        // Upstream's fast path, for small exponents, accepts a missing number as zero; its slow path does not.
        if !parts.has_digits && (exponent < -9 || format == Format::BinarySI && exponent >= 50) {
            return Err(QuantityError::Numeric);
        }
        let nanos = match format {
            Format::BinarySI => binary_nanos(parts.whole, parts.fraction, exponent),
            _ => decimal_nanos(parts.whole, parts.fraction, exponent),
        };
        if format == Format::BinarySI && nanos > 0 && nanos < NANOS {
            format = Format::DecimalSI;
        }
        let text = keeps_text(&parts, format, exponent).then(|| Box::from(text));
        Ok(Self { nanos: if parts.negative { -nanos } else { nanos }, format, text })
    }

    /// Returns the family of suffixes with which it is printed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns whole units, rounded away from zero.
    pub fn value(&self) -> i64 {
        self.scaled(NANOS)
    }

    /// Returns thousandths, rounded away from zero.
    pub fn milli_value(&self) -> i64 {
        self.scaled(NANOS / 1000)
    }

    /// Returns exact billionths.
    pub fn nanos(&self) -> i128 {
        self.nanos
    }

    fn scaled(&self, unit: i128) -> i64 {
        let rounded = (self.nanos.abs() + unit - 1) / unit * self.nanos.signum();
        rounded.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// Returns the amount as a float, for ratios and display.
    pub fn as_f64(&self) -> f64 {
        self.nanos as f64 / NANOS as f64
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Returns -1, 0 or 1.
    pub fn signum(&self) -> i32 {
        self.nanos.signum() as i32
    }

    /// Adds a quantity; a zero takes the other's format.
    pub fn add(&mut self, other: &Quantity) {
        self.combine(other, other.nanos);
    }

    /// Subtracts a quantity; a zero takes the other's format.
    pub fn sub(&mut self, other: &Quantity) {
        self.combine(other, -other.nanos);
    }

    fn combine(&mut self, other: &Quantity, nanos: i128) {
        let format = if self.is_zero() { other.format } else { self.format };
        *self = Self::from_nanos(self.nanos.saturating_add(nanos), format);
    }

    /// Returns `self * factor`.
    pub fn times(&self, factor: i64) -> Self {
        Self::from_nanos(self.nanos.saturating_mul(i128::from(factor)), self.format)
    }

    /// Returns the API type.
    pub fn to_api(&self) -> ApiQuantity {
        ApiQuantity(self.to_string())
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, nanos: i128, format: Format) -> fmt::Result {
    const SI: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let (mut number, mut step) = (nanos, 0usize);
    while number % 1000 == 0 && (format == Format::DecimalExponent || step + 1 < SI.len()) {
        number /= 1000;
        step += 1;
    }
    match (format, step) {
        (Format::DecimalExponent, 3) => write!(f, "{number}"),
        (Format::DecimalExponent, _) => write!(f, "{number}e{}", step as i32 * 3 - 9),
        _ => write!(f, "{number}{}", SI[step]),
    }
}

fn write_binary(f: &mut fmt::Formatter<'_>, units: i128) -> fmt::Result {
    const SI: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut number, mut step) = (units, 0usize);
    while number % 1024 == 0 && step + 1 < SI.len() {
        number /= 1024;
        step += 1;
    }
    write!(f, "{number}{}", SI[step])
}

impl fmt::Display for Quantity {
    /// Writes the canonical form: no fraction, the largest possible suffix of its family.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let binary = self.format == Format::BinarySI;
        if binary && self.nanos % NANOS == 0 && self.nanos.abs() >= 1024 * NANOS {
            return write_binary(f, self.nanos / NANOS);
        }
        let format = if binary { Format::DecimalSI } else { self.format };
        write_decimal(f, self.nanos, format)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::parse(text)
    }
}

impl TryFrom<&ApiQuantity> for Quantity {
    type Error = QuantityError;

    fn try_from(api: &ApiQuantity) -> Result<Self, QuantityError> {
        // Upstream's JSON decoder trims the text before it parses it.
        Self::parse(api.0.trim())
    }
}

impl From<&Quantity> for ApiQuantity {
    fn from(quantity: &Quantity) -> Self {
        quantity.to_api()
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(text.trim()).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Format::{BinarySI, DecimalExponent, DecimalSI};

    fn q(text: &str) -> Quantity {
        Quantity::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// The results of upstream's 1.37 library: text, canonical form, format, value, milli value.
    const FACTS: &[(&str, &str, Format, i64, i64)] = &[
        ("0", "0", DecimalSI, 0, 0),
        ("-", "0", DecimalSI, 0, 0),
        (".", "0", DecimalSI, 0, 0),
        ("+1", "+1", DecimalSI, 1, 1000),
        ("007", "007", DecimalSI, 7, 7000),
        ("1.500", "1.500", DecimalSI, 2, 1500),
        ("1.5", "1500m", DecimalSI, 2, 1500),
        ("1000m", "1", DecimalSI, 1, 1000),
        ("1024Mi", "1Gi", BinarySI, 1073741824, 1073741824000),
        ("0.5Gi", "512Mi", BinarySI, 536870912, 536870912000),
        ("0.1Gi", "107374182400m", BinarySI, 107374183, 107374182400),
        ("10E", "10E", DecimalSI, i64::MAX, i64::MAX),
        ("1Ei", "1Ei", BinarySI, 1152921504606846976, i64::MAX),
        ("8Ei", "9223372036854775807", BinarySI, i64::MAX, i64::MAX),
        ("9223372036854775807Ki", "9223372036854775807", BinarySI, i64::MAX, i64::MAX),
        ("1e-100", "1e-9", DecimalExponent, 1, 1),
        ("1e3", "1e3", DecimalExponent, 1000, 1000000),
        ("12e6", "12e6", DecimalExponent, 12000000, 12000000000),
        ("1E3", "1E3", DecimalExponent, 1000, 1000000),
        ("1E", "1E", DecimalSI, 1000000000000000000, i64::MAX),
        ("1.0", "1", DecimalSI, 1, 1000),
        ("1.000", "1", DecimalSI, 1, 1000),
        ("100", "100", DecimalSI, 100, 100000),
        ("1000", "1k", DecimalSI, 1000, 1000000),
        ("1500", "1500", DecimalSI, 1500, 1500000),
        ("1536Mi", "1536Mi", BinarySI, 1610612736, 1610612736000),
        ("1023Ki", "1023Ki", BinarySI, 1047552, 1047552000),
        ("2048", "2048", DecimalSI, 2048, 2048000),
        ("0.0001n", "1n", DecimalSI, 1, 1),
        ("1.1u", "1100n", DecimalSI, 1, 1),
        ("-1.5", "-1500m", DecimalSI, -2, -1500),
        ("-0.5Gi", "-512Mi", BinarySI, -536870912, -536870912000),
        ("0.5Ki", "512", BinarySI, 512, 512000),
        (".5", "500m", DecimalSI, 1, 500),
        ("5.", "5.", DecimalSI, 5, 5000),
        ("5.Gi", "5.Gi", BinarySI, 5368709120, 5368709120000),
        (".Gi", "0", BinarySI, 0, 0),
        ("0m", "0", DecimalSI, 0, 0),
        ("1e+3", "1e+3", DecimalExponent, 1000, 1000000),
        ("1e-3", "1e-3", DecimalExponent, 1, 1),
        ("123456789012345678901234567890", "100000000000E", DecimalSI, i64::MAX, i64::MAX),
        ("1.123456789123", "1123456790n", DecimalSI, 2, 1124),
        ("99999999999999999999999999Gi", "9223372036854775807", BinarySI, i64::MAX, i64::MAX),
        ("0.0000000001Ki", "103n", DecimalSI, 1, 1),
        ("3Ki", "3Ki", BinarySI, 3072, 3072000),
        ("8Ki", "8Ki", BinarySI, 8192, 8192000),
        ("12345678.9k", "12345678900", DecimalSI, 12345678900, 12345678900000),
        ("000Gi", "0", BinarySI, 0, 0),
        ("1e0", "1e0", DecimalExponent, 1, 1000),
        ("0e5", "0", DecimalExponent, 0, 0),
        ("100e-3", "100e-3", DecimalExponent, 1, 100),
        ("2000Ti", "2000Ti", BinarySI, 2199023255552000, 2199023255552000000),
    ];

    #[test]
    fn numbers_of_any_length_have_a_value() {
        let text = "3234567890".repeat(60);
        for (text, sign) in [(text.clone(), 1), (format!("-{text}"), -1), (format!("{text}e9"), 1)] {
            let value = q(&text).value();
            assert_eq!(
                (value.signum(), value.unsigned_abs() >= i64::MAX.unsigned_abs()),
                (sign, true),
                "{value}"
            );
        }
    }

    #[test]
    fn facts() {
        for (text, canonical, format, value, milli) in FACTS {
            let got = q(text);
            assert_eq!(
                (got.to_string().as_str(), got.format(), got.value(), got.milli_value()),
                (*canonical, *format, *value, *milli),
                "{text}"
            );
        }
    }

    #[test]
    fn errors() {
        for (text, error) in [
            ("", QuantityError::Format),
            ("1K", QuantityError::Suffix),
            ("1Kb", QuantityError::Format),
            ("1 ", QuantityError::Format),
            ("--1", QuantityError::Suffix),
            ("1ii", QuantityError::Suffix),
            ("1.2.3", QuantityError::Format),
            ("1e", QuantityError::Suffix),
            ("1e3.", QuantityError::Format),
            (".e-10", QuantityError::Numeric),
            ("Pi", QuantityError::Numeric),
            ("1e99999999999999999999", QuantityError::Suffix),
            ("é", QuantityError::Format),
            ("1é", QuantityError::Format),
        ] {
            assert_eq!(Quantity::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn arithmetic() {
        let mut sum = Quantity::default();
        sum.add(&q("512Mi"));
        sum.add(&q("512Mi"));
        assert_eq!(sum.to_string(), "1Gi");
        sum.sub(&q("1.5Gi"));
        assert_eq!(sum.to_string(), "-512Mi");
        assert_eq!(q("250m").times(4).to_string(), "1");
        assert!(q("1Gi") > q("1G"));
        assert_eq!(q("1"), q("1000m"));
        assert_eq!(Quantity::from_milli(1500, DecimalSI).to_string(), "1500m");
    }

    #[test]
    fn canonical_form_is_a_fixed_point_and_order_holds() {
        let mut rng = fastrand::Rng::with_seed(7);
        let suffixes = ["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "E-2"];
        for _ in 0..20_000 {
            let (a, b) = (rng.i64(-5_000_000..5_000_000), rng.u32(0..1000));
            let text = format!("{a}.{b}{}", suffixes[rng.usize(..suffixes.len())]);
            let one = q(&text);
            let canonical = Quantity::from_nanos(one.nanos(), one.format()).to_string();
            let again = q(&canonical);
            assert_eq!(one, again, "{text}");
            assert_eq!(canonical, Quantity::from_nanos(again.nanos(), again.format()).to_string(), "{text}");
            let two = one.times(2);
            assert_eq!(two.cmp(&one), one.nanos().cmp(&0), "{text}");
        }
    }

    #[test]
    fn no_text_panics() {
        let mut rng = fastrand::Rng::with_seed(8);
        let alphabet = b"0123456789.+-eEinumkKMGTP9990000";
        for _ in 0..100_000 {
            let length = rng.usize(0..60);
            let text: String =
                (0..length).map(|_| char::from(alphabet[rng.usize(..alphabet.len())])).collect();
            if let Ok(quantity) = Quantity::parse(&text) {
                let _ = (quantity.to_string(), quantity.value(), quantity.milli_value());
                let mut sum = quantity.clone();
                sum.add(&quantity);
                sum.sub(&quantity.times(i64::MIN));
            }
        }
    }
}
