//! Parsing and formatting of durations as in Go: `1h30m`, `1.5s`.

use jiff::SignedDuration;

/// Parses a Go duration; errors have the texts of Go's `time` package.
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
        // The minimum has no positive counterpart.
        if nanos > i128::from(i64::MIN).abs() {
            return Err(invalid());
        }
        rest = tail;
    }
    let nanos = i64::try_from(if negative { -nanos } else { nanos }).map_err(|_| invalid())?;
    Ok(SignedDuration::from_nanos(nanos))
}

/// Formats a duration in nanoseconds.
pub fn format(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    let text = match n {
        0 => return "0s".to_owned(),
        1..1_000 => format!("{n}ns"),
        1_000..1_000_000 => with_fraction(n, 1_000, "µs"),
        1_000_000..1_000_000_000 => with_fraction(n, 1_000_000, "ms"),
        _ => {
            let minutes = n / 60_000_000_000;
            let seconds = with_fraction(n % 60_000_000_000, 1_000_000_000, "s");
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    };
    format!("{sign}{text}")
}

fn with_fraction(n: u64, unit: u64, suffix: &str) -> String {
    let (whole, rest) = (n / unit, n % unit);
    if rest == 0 {
        return format!("{whole}{suffix}");
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{rest:0width$}");
    format!("{whole}.{}{suffix}", digits.trim_end_matches('0'))
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
        for bad in ["1x", ".s", "1.2.3s", "9999999h", "s", "9223372036854775808ns"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (30_000_000_000, "30s"),
            (245_000_000_000, "4m5s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (-60_000_000_000, "-1m0s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format(nanos), text);
            assert_eq!(parse(text).map(|d| d.as_nanos()), Ok(i128::from(nanos)), "{text}");
        }
    }
}
