//! String formats of a schema.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;

use super::Schema;

/// The formats that are checked, without dashes; all others are ignored.
const KNOWN: [&str; 27] = [
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "",
];

fn normalized(format: &str) -> String {
    format.replace('-', "")
}

/// Returns whether strings are checked against this format.
pub fn is_known(format: &str) -> bool {
    !format.is_empty() && KNOWN.contains(&normalized(format).as_str())
}

/// Returns the format of a schema; empty if it has no meaning for its type.
pub(super) fn effective(schema: &Schema) -> &str {
    let format = schema.format.as_str();
    let ty = if schema.int_or_string { "" } else { schema.ty.as_str() };
    let counts = match ty {
        "" | "string" => is_known(format),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if counts { format } else { "" }
}

macro_rules! patterns {
    ($($name:ident = $pattern:literal;)*) => {$(
        static $name: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new($pattern).ok());
    )*};
}

patterns! {
    BSON = "^[0-9a-fA-F]{24}$";
    HOSTNAME = r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$";
    UUID = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID3 = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
    UUID4 = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
    UUID5 = "(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$";
    CREDIT_CARD = r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$";
    SSN = r"^\d{3}[- ]?\d{2}[- ]?\d{4}$";
    HEX_COLOR = "^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$";
    RGB_COLOR = r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$";
    DATE_TIME = r"(?i)^(\d{4}-\d{2}-\d{2})t(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(z|[+-]\d{2}:\d{2}))$";
    DURATION = r"(?i)(\d+)\s*(ns|nano[a-zµ]*|us|µs|micro[a-zµ]*|ms|milli[a-zµ]*|s|sec[a-zµ]*|m|min[a-zµ]*|h|hr|hour[a-zµ]*|d|day[a-zµ]*|w|wk|week[a-zµ]*)";
    GO_DURATION = r"^[+-]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)$";
    MAC = "^([0-9a-fA-F]{2}([:-])([0-9a-fA-F]{2}[:-]){4}[0-9a-fA-F]{2}|([0-9a-fA-F]{2}[:-]){7}[0-9a-fA-F]{2}|([0-9a-fA-F]{2}[:-]){19}[0-9a-fA-F]{2}|[0-9a-fA-F]{4}(\\.[0-9a-fA-F]{4}){2}|[0-9a-fA-F]{4}(\\.[0-9a-fA-F]{4}){3}|[0-9a-fA-F]{4}(\\.[0-9a-fA-F]{4}){9})$";
    EMAIL = r#"^([^<>@\s"]+@[^<>@\s]+|("[^"]*"|[^<>@",;]*)\s*<[^<>@\s"]+@[^<>@\s]+>)$"#;
    SHORT_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
    LONG_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
}

fn fits(pattern: &LazyLock<Option<Regex>>, text: &str) -> bool {
    pattern.as_ref().is_some_and(|p| p.is_match(text))
}

/// Returns whether the text has this format; every text matches an unknown format.
pub(super) fn matches(format: &str, text: &str) -> bool {
    match normalized(format).as_str() {
        "bsonobjectid" => fits(&BSON, text),
        "byte" => !text.is_empty() && STANDARD.decode(text).is_ok(),
        "cidr" => is_cidr(text),
        "creditcard" => is_credit_card(text),
        "date" => is_date(text),
        "datetime" => fits(&DATE_TIME, text) && is_date(text.get(..10).unwrap_or("")),
        "duration" => fits(&GO_DURATION, text) || fits(&DURATION, text),
        "email" => fits(&EMAIL, text),
        "hexcolor" => fits(&HEX_COLOR, text),
        "hostname" => fits(&HOSTNAME, text) && text.len() <= 255 && text.split('.').all(|p| p.len() <= 63),
        "ipv4" => is_ipv4(text),
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "k8slongname" => text.len() <= 253 && fits(&LONG_NAME, text),
        "k8sshortname" => text.len() <= 63 && fits(&SHORT_NAME, text),
        "mac" => fits(&MAC, text),
        "rgbcolor" => fits(&RGB_COLOR, text),
        "ssn" => fits(&SSN, text),
        "uri" => is_request_uri(text),
        "uuid" => fits(&UUID, text),
        "uuid3" => fits(&UUID3, text),
        "uuid4" => fits(&UUID4, text),
        "uuid5" => fits(&UUID5, text),
        _ => true,
    }
}

/// Accepts leading zeros as decimal, as upstream's older parser does.
fn is_ipv4(text: &str) -> bool {
    if text.contains(':') {
        // Accepts an IPv6 address that ends in an IPv4 one.
        return text.contains('.') && text.parse::<Ipv6Addr>().is_ok();
    }
    let parts: Vec<&str> = text.split('.').collect();
    let octet = |p: &&str| {
        !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u32>().is_ok_and(|n| n <= 255)
    };
    parts.len() == 4 && parts.iter().all(octet) || text.parse::<Ipv4Addr>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let bits = bits.bytes().all(|b| b.is_ascii_digit()).then(|| bits.parse::<u8>().ok()).flatten();
    match bits {
        Some(bits) if address.contains(':') => bits <= 128 && address.parse::<Ipv6Addr>().is_ok(),
        Some(bits) => bits <= 32 && is_ipv4(address),
        None => false,
    }
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

fn is_credit_card(text: &str) -> bool {
    let digits = digits(text);
    let plain: String = digits.iter().filter_map(|d| char::from_digit(*d, 10)).collect();
    let luhn: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(i, d)| if i % 2 == 0 { *d } else { d * 2 / 10 + d * 2 % 10 })
        .sum();
    fits(&CREDIT_CARD, &plain) && luhn.is_multiple_of(10)
}

fn isbn(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '-' | ' ')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let plain = isbn(text);
    let value = |(i, c): (usize, char)| match c {
        'X' | 'x' if i == 9 => Some(10),
        c => c.to_digit(10),
    };
    let all: Option<Vec<u32>> = plain.chars().enumerate().map(value).collect();
    all.is_some_and(|d| d.len() == 10 && (1..).zip(&d).map(|(i, d)| i * d).sum::<u32>() % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let plain = isbn(text);
    let all: Option<Vec<u32>> = plain.chars().map(|c| c.to_digit(10)).collect();
    all.is_some_and(|d| {
        let weighted = |(i, d): (usize, &u32)| if i % 2 == 0 { *d } else { d * 3 };
        d.len() == 13 && d.iter().enumerate().map(weighted).sum::<u32>() % 10 == 0
    })
}

/// Returns whether this is an absolute URI or an absolute path.
fn is_request_uri(text: &str) -> bool {
    let plain = !text.is_empty() && !text.bytes().any(|b| b.is_ascii_control() || b == b' ');
    let escapes_fit = text
        .match_indices('%')
        .all(|(i, _)| text.as_bytes().get(i + 1..i + 3).is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)));
    let scheme = text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    });
    plain && escapes_fit && (text.starts_with('/') || scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("date-time", "2014-12-15T19:30:20.000Z", "2014-12-15"),
            ("date", "2006-01-02", "2006-13-02"),
            ("ipv4", "192.168.0.1", "192.168.0.256"),
            ("ipv6", "fe80::1", "1.2.3.4"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("uri", "https://a.example/x", "a b"),
            ("email", "a@b.example", "ab"),
            ("hostname", "a.example", "-a"),
            ("uuid", "c3b4a1f0-1111-2222-3333-444455556666", "c3b4"),
            ("byte", "aGVsbG8=", "*"),
            ("duration", "1h30m", "long"),
            ("mac", "01:02:03:04:05:06", "01:02"),
            ("isbn", "978-0321751041", "978-0321751042"),
            ("creditcard", "4111 1111 1111 1111", "4111 1111 1111 1112"),
            ("hexcolor", "#FFFFFF", "#FFFFFG"),
            ("rgbcolor", "rgb(255,255,255)", "rgb(256,0,0)"),
            ("k8s-short-name", "a-b", "a.b"),
            ("k8s-long-name", "a.b", "a..b"),
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f"),
            ("ssn", "111-22-3333", "111"),
        ] {
            assert!(is_known(format), "{format}");
            assert!(matches(format, good), "{format} {good}");
            assert!(!matches(format, bad), "{format} {bad}");
        }
        assert!(!is_known("int32"));
        assert!(matches("int32", "x"));
    }
}
