//! Durations as Go writes them: `1h30m`, `1.5s`.

use jiff::SignedDuration;

/// Reads a Go duration; what is wrong is said in the words of Go's `time` package.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut nanos = 0i128;
    while !rest.is_empty() {
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let whole = digits(rest);
        let fraction = rest[whole..].strip_prefix('.').map_or(0, |f| 1 + digits(f));
        if whole == 0 && fraction <= 1 {
            return Err(invalid());
        }
        let (number, tail) = rest.split_at(whole + fraction);
        let unit = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let size: i128 = match unit {
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            other => return Err(format!("time: unknown unit {other:?} in duration {text:?}")),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        nanos = whole.checked_mul(size).and_then(|n| n.checked_add(nanos)).ok_or_else(invalid)?;
        let mut scale = size;
        for digit in fraction.bytes() {
            scale /= 10;
            nanos += i128::from(digit - b'0') * scale;
        }
        if nanos > i128::from(i64::MAX) {
            return Err(invalid());
        }
        rest = tail;
    }
    let nanos = i64::try_from(if negative { -nanos } else { nanos }).map_err(|_| invalid())?;
    Ok(SignedDuration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_reads_them() {
        for (text, nanos) in [
            ("0", 0),
            ("1.5s", 1_500_000_000),
            ("-1m", -60_000_000_000),
            ("+2ms", 2_000_000),
            ("1h2m3s", 3_723_000_000_000),
            (".5us", 500),
        ] {
            assert_eq!(parse(text).map(|d| d.as_nanos()), Ok(nanos), "{text}");
        }
        for (text, why) in [
            ("", "time: invalid duration \"\""),
            ("soon", "time: invalid duration \"soon\""),
            ("-", "time: invalid duration \"-\""),
            ("1", "time: missing unit in duration \"1\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("9999999999h", "time: invalid duration \"9999999999h\""),
        ] {
            assert_eq!(parse(text).unwrap_err(), why);
        }
    }
}
