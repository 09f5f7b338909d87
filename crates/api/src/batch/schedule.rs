//! Cron schedules: five fields or a descriptor such as `@daily`, parsed and evaluated as upstream's cron library
//! does.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use knarr_apimachinery::duration;

use super::timezone;

/// A parsed schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    Fields(Fields),
    /// An interval of whole seconds.
    Every(SignedDuration),
}

/// The allowed numbers of each field, as bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Fields {
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    /// The zone that the schedule itself names, as in `TZ=Europe/Paris 0 0 * * *`.
    zone: Option<TimeZone>,
}

/// Set for a field that is a star: it then does not restrict the other day field.
const STAR: u64 = 1 << 63;

struct Bounds {
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { low: 0, high: 59, names: &[] };
const HOURS: Bounds = Bounds { low: 0, high: 23, names: &[] };
const DAYS: Bounds = Bounds { low: 1, high: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds =
    Bounds { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Schedule {
    /// Parses a schedule; errors have upstream's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let (zone, rest) = leading_zone(text)?;
        if rest.starts_with('@') {
            return descriptor(rest, zone);
        }
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            let found = fields.join(" ");
            return Err(format!("expected exactly 5 fields, found {}: [{found}]", fields.len()));
        };
        Ok(Self::Fields(Fields {
            minute: bits(minute, &MINUTES)?,
            hour: bits(hour, &HOURS)?,
            day: bits(day, &DAYS)?,
            month: bits(month, &MONTHS)?,
            weekday: bits(weekday, &WEEKDAYS)?,
            zone,
        }))
    }

    /// Returns the first time after `after`, in the schedule's own zone or else in `zone`; `None` if there is none in
    /// the next five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let whole = Timestamp::from_second(after.as_nanosecond().div_euclid(1_000_000_000).try_into().ok()?);
        match self {
            Self::Every(distance) => whole.ok()?.checked_add(*distance).ok(),
            Self::Fields(fields) => fields.next(whole.ok()?, fields.zone.as_ref().unwrap_or(zone)),
        }
    }
}

impl Fields {
    /// Searches day by day, and through each day's hours in elapsed time: an hour that a clock change skips is not
    /// due, an hour that repeats is due twice, as upstream does.
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = after.checked_add(1.second()).ok()?;
        let first = zone.to_datetime(start).date();
        let mut date = first;
        while date.year() <= first.year() + 5 {
            if self.month & (1 << date.month()) == 0 {
                date = date.last_of_month().tomorrow().ok()?;
                continue;
            }
            if self.is_day(date)
                && let Some(found) = self.on(date, start, zone)
            {
                return Some(found);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    fn is_day(&self, date: Date) -> bool {
        let day = self.day & (1 << date.day()) != 0;
        let weekday = self.weekday & (1 << date.weekday().to_sunday_zero_offset()) != 0;
        if (self.day | self.weekday) & STAR != 0 { day && weekday } else { day || weekday }
    }

    /// Returns the first due minute of this day that is not before `start`.
    fn on(&self, date: Date, start: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let midnight = zone.to_timestamp(DateTime::from_parts(date, Time::midnight())).ok()?;
        let mut at = midnight.max(minute_at_or_after(start)?);
        loop {
            let local = zone.to_datetime(at);
            if local.date() > date {
                return None;
            }
            if local.date() == date {
                let (hour, minute) = (local.hour(), local.minute());
                if self.hour & (1 << hour) != 0 {
                    if self.minute & (1 << minute) != 0 && at >= start {
                        return Some(at);
                    }
                    at = at.checked_add(1.minute()).ok()?;
                    continue;
                }
                // Clock changes happen at full quarters of an hour.
                let step = 15 - i64::from(minute % 15);
                at = at.checked_add(step.minutes()).ok()?;
            } else {
                at = at.checked_add(1.minute()).ok()?;
            }
        }
    }
}

fn minute_at_or_after(at: Timestamp) -> Option<Timestamp> {
    let seconds = at.as_second();
    Timestamp::from_second(seconds + (60 - seconds.rem_euclid(60)) % 60).ok()
}

/// Parses a leading time zone; returns it with the rest of the text.
fn leading_zone(text: &str) -> Result<(Option<TimeZone>, &str), String> {
    let Some(rest) = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) else {
        return Ok((None, text));
    };
    let Some((name, rest)) = rest.split_once(' ') else {
        return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned());
    };
    if let Some(problem) = timezone::problem(name) {
        return Err(format!("provided bad location {name}: {problem}"));
    }
    Ok((timezone::find(name), rest.trim()))
}

fn descriptor(text: &str, zone: Option<TimeZone>) -> Result<Schedule, String> {
    let all = |bounds: &Bounds| range_bits(bounds.low, bounds.high, 1) | STAR;
    let (days, months, weekdays) = (all(&DAYS), all(&MONTHS), all(&WEEKDAYS));
    let (hour, day, month, weekday) = match text {
        "@yearly" | "@annually" => (1, 1 << 1, 1 << 1, weekdays),
        "@monthly" => (1, 1 << 1, months, weekdays),
        "@weekly" => (1, days, months, 1),
        "@daily" | "@midnight" => (1, days, months, weekdays),
        "@hourly" => (all(&HOURS), days, months, weekdays),
        _ => {
            let Some(distance) = text.strip_prefix("@every ") else {
                return Err(format!("unrecognized descriptor: {text}"));
            };
            let distance =
                duration::parse(distance).map_err(|why| format!("failed to parse duration {text}: {why}"))?;
            let seconds = distance.as_secs().max(1);
            return Ok(Schedule::Every(SignedDuration::from_secs(seconds)));
        }
    };
    Ok(Schedule::Fields(Fields { minute: 1, hour, day, month, weekday, zone }))
}

/// Parses a field, ranges joined by commas, into bits.
fn bits(field: &str, bounds: &Bounds) -> Result<u64, String> {
    field.split(',').filter(|part| !part.is_empty()).try_fold(0, |all, part| Ok(all | range(part, bounds)?))
}

/// Parses `5`, `1-5` or `*`, each with an optional `/step`.
fn range(text: &str, bounds: &Bounds) -> Result<u64, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let mut extra = 0;
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        extra = STAR;
        (bounds.low, bounds.high)
    } else {
        let start = number_or_name(ends[0], bounds)?;
        match ends[..] {
            [_] => (start, start),
            [_, end] => (start, number_or_name(end, bounds)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if ends.len() == 1 {
                end = bounds.high;
            }
            if step > 1 {
                extra = 0;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < bounds.low {
        return Err(format!("beginning of range ({start}) below minimum ({}): {text}", bounds.low));
    }
    if end > bounds.high {
        return Err(format!("end of range ({end}) above maximum ({}): {text}", bounds.high));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(range_bits(start, end, step) | extra)
}

fn range_bits(start: u32, end: u32, step: u32) -> u64 {
    (start..=end).step_by(step.max(1) as usize).fold(0, |bits, n| bits | 1 << n)
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let name = text.to_lowercase();
    match (bounds.low..).zip(bounds.names).find(|(_, known)| **known == name) {
        Some((number, _)) => Ok(number),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let well_formed = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let parsed = text.parse::<i64>();
    let Ok(parsed) = parsed else {
        let why = if well_formed { "value out of range" } else { "invalid syntax" };
        return Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}"));
    };
    if parsed < 0 {
        return Err(format!("negative number ({parsed}) not allowed: {text}"));
    }
    Ok(u32::try_from(parsed).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_upstreams() {
        for (text, problem) in [
            ("", "empty spec string"),
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("@often", "unrecognized descriptor: @often"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
            ("TZ=0", "invalid schedule format: runtime error: slice bounds out of range [:-1]"),
            ("TZ=No/Where * * * * *", "provided bad location No/Where: unknown time zone No/Where"),
        ] {
            assert_eq!(Schedule::parse(text), Err(problem.to_owned()), "{text}");
        }
    }

    #[test]
    fn next_times() {
        let (utc, paris) = (TimeZone::UTC, timezone::find("Europe/Paris").unwrap());
        for (text, zone, after, expected) in [
            ("*/5 * * * *", &utc, "2024-01-01T00:00:00Z", "2024-01-01T00:05:00Z"),
            ("*/5 * * * *", &utc, "2024-01-01T00:04:59.5Z", "2024-01-01T00:05:00Z"),
            ("0 0 29 2 *", &utc, "2024-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 13 * fri", &utc, "2024-01-01T00:00:00Z", "2024-01-05T00:00:00Z"),
            ("0 0 13 * *", &utc, "2024-01-13T00:00:00Z", "2024-02-13T00:00:00Z"),
            ("0 9 * * MON-FRI", &paris, "2024-07-05T12:00:00Z", "2024-07-08T07:00:00Z"),
            ("@daily", &paris, "2024-01-01T00:00:00Z", "2024-01-01T23:00:00Z"),
            ("@every 90s", &utc, "2024-01-01T00:00:00.7Z", "2024-01-01T00:01:30Z"),
            ("TZ=Asia/Tokyo 0 0 * * *", &utc, "2024-01-01T00:00:00Z", "2024-01-01T15:00:00Z"),
            // 02:30 does not exist on the day the clocks go forward.
            ("30 2 * * *", &paris, "2024-03-31T00:00:00Z", "2024-04-01T00:30:00Z"),
        ] {
            let (after, expected) = (after.parse().unwrap(), Some(expected.parse().unwrap()));
            assert_eq!(Schedule::parse(text).unwrap().next(after, zone), expected, "{text} after {after}");
        }
        let never = Schedule::parse("0 0 31 2 *").unwrap();
        assert_eq!(never.next(Timestamp::UNIX_EPOCH, &utc), None);
    }
}
