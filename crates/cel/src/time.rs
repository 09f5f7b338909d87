//! Timestamps and durations: parsed and formatted as in Go, within CEL's range.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use crate::error::EvalError;

/// 0001-01-01T00:00:00Z, and the end of the year 9999.
const FIRST_SECOND: i64 = -62_135_596_800;
const LAST_SECOND: i64 = 253_402_300_799;

/// Parses `1h15m30.5s` as Go's `time.ParseDuration` does; returns nanoseconds.
pub fn parse_duration(text: &str) -> Option<i64> {
    i64::try_from(knarr_apimachinery::duration::parse(text).ok()?.as_nanos()).ok()
}

/// Formats nanoseconds as seconds, with as many decimals as needed: `5400s`, `0.5s`.
pub fn duration_string(nanos: i64) -> String {
    let seconds = (nanos / 1_000_000_000) as f64 + (nanos % 1_000_000_000) as f64 / 1e9;
    format!("{seconds}s")
}

/// Parses RFC 3339.
pub fn parse_timestamp(text: &str) -> Result<Timestamp, EvalError> {
    let bad = || {
        EvalError::new(format!(
            "parsing time \"{text}\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"{text}\" as \"2006\""
        ))
    };
    let b = text.as_bytes();
    let digit = |i: usize| b.get(i).is_some_and(u8::is_ascii_digit);
    let shape = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18].into_iter().all(digit)
        && b.get(4) == Some(&b'-')
        && b.get(7) == Some(&b'-')
        && b.get(10) == Some(&b'T')
        && b.get(13) == Some(&b':')
        && b.get(16) == Some(&b':')
        && &b[17..19] != b"60";
    if !shape {
        return Err(bad());
    }
    let zone = match b[19..].iter().position(|c| !c.is_ascii_digit() && !matches!(c, b'.' | b',')) {
        Some(at) => &b[19 + at..],
        None => return Err(bad()),
    };
    let zone_fits = match zone {
        b"Z" => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].iter().all(|c| c.is_ascii_digit()),
        _ => false,
    };
    if !zone_fits {
        return Err(bad());
    }
    let timestamp: Timestamp = text.parse().map_err(|_| bad())?;
    in_range(timestamp).ok_or_else(|| EvalError::new("timestamp overflow"))
}

/// Returns the timestamp if it is in CEL's range.
pub fn in_range(timestamp: Timestamp) -> Option<Timestamp> {
    let seconds = timestamp.as_second();
    (FIRST_SECOND..=LAST_SECOND).contains(&seconds).then_some(timestamp)
}

/// Parses a date `2006-01-02`, at midnight UTC, or a timestamp.
pub fn parse_date(text: &str) -> Option<Timestamp> {
    let date: jiff::civil::Date = text.parse().ok()?;
    if text.len() != 10 {
        return None;
    }
    date.to_zoned(TimeZone::UTC).ok().map(|z| z.timestamp())
}

/// Returns a zone by its name, or by an offset such as `+02:00`.
pub fn zone(name: &str) -> Result<TimeZone, EvalError> {
    let Some((hours, minutes)) = name.split_once(':') else {
        if matches!(name, "" | "UTC") {
            return Ok(TimeZone::UTC);
        }
        return TimeZone::get(name).map_err(|_| EvalError::new(format!("unknown time zone {name}")));
    };
    let number = |text: &str| {
        text.parse::<i32>()
            .map_err(|_| EvalError::new(format!("strconv.Atoi: parsing \"{text}\": invalid syntax")))
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if !(0..=59).contains(&minutes) {
        return Err(EvalError::new(format!("timezone offset minutes out of range [0, 59]: {name}")));
    }
    let minutes = if name.starts_with('-') { -minutes } else { minutes };
    let seconds = hours.checked_mul(3600).and_then(|s| s.checked_add(minutes * 60));
    let offset = seconds.and_then(|s| Offset::from_seconds(s).ok());
    offset.map(TimeZone::fixed).ok_or_else(|| EvalError::new(format!("unknown time zone {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        for (text, nanos) in [
            ("1h30m", Some(5_400_000_000_000)),
            ("1.5s", Some(1_500_000_000)),
            ("-3ms", Some(-3_000_000)),
            ("0", Some(0)),
            ("", None),
            ("5", None),
            ("1d", None),
            ("9999999h", None),
        ] {
            assert_eq!(parse_duration(text), nanos, "{text}");
        }
        assert_eq!(duration_string(5_400_000_000_000), "5400s");
        assert_eq!(duration_string(-500_000_000), "-0.5s");
    }

    #[test]
    fn timestamps_are_rfc3339() {
        assert!(parse_timestamp("2023-01-01T00:00:00Z").is_ok());
        assert!(parse_timestamp("2023-01-01T00:00:00.123+02:00").is_ok());
        for bad in ["2023-01-01", "2023-01-01 00:00:00Z", "2023-13-01T00:00:00Z", "x", "2023-01-01T00:00:00"]
        {
            assert!(parse_timestamp(bad).is_err(), "{bad}");
        }
        assert!(zone("Europe/Berlin").is_ok() && zone("-08:30").is_ok() && zone("Nowhere/X").is_err());
    }
}
