//! Times as Go's `time.Parse` parses them, with its messages: RFC 3339, and RFC 3339 with exactly six fraction
//! digits.

use super::quote::quote_time;

/// The two supported layouts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `Time`: only whole seconds are kept.
    Seconds,
    /// `MicroTime`.
    Micros,
}

impl Layout {
    fn text(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// A point in time, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Days since 1970-01-01.
    days: i64,
    second_of_day: i64,
    nanos: u32,
}

/// Parses a time; the error is Go's message.
pub fn parse(text: &str, layout: Layout) -> Result<Moment, String> {
    Reader { text: text.as_bytes(), rest: text.as_bytes(), layout }.run()
}

impl Moment {
    /// Returns whether this is Go's zero time, which means unset.
    pub fn is_zero(&self) -> bool {
        self.days == days_from_civil(1, 1, 1) && self.second_of_day == 0 && self.nanos == 0
    }

    /// Creates a moment from Unix seconds and additional nanoseconds; `None` outside of the years 0 to 9999.
    pub fn from_unix(seconds: i64, nanos: i64) -> Option<Self> {
        let seconds = seconds.checked_add(nanos.div_euclid(1_000_000_000))?;
        let days = seconds.div_euclid(86_400);
        // Far outside, the calendar arithmetic would overflow.
        if !(-1_000_000..=4_000_000).contains(&days) || !(0..=9999).contains(&civil_from_days(days).0) {
            return None;
        }
        let nanos = u32::try_from(nanos.rem_euclid(1_000_000_000)).ok()?;
        Some(Self { days, second_of_day: seconds.rem_euclid(86_400), nanos })
    }

    /// Returns Unix seconds and additional nanoseconds, as [`Self::from_unix`] accepts them.
    pub fn to_unix(self) -> (i64, i64) {
        (self.days * 86_400 + self.second_of_day, i64::from(self.nanos))
    }

    /// Returns `2006-01-02T15:04:05Z`, with six fraction digits for [`Layout::Micros`].
    pub fn format(&self, layout: Layout) -> String {
        let (year, month, day) = civil_from_days(self.days);
        let (h, m, s) = (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let head = format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}");
        match layout {
            Layout::Seconds => format!("{head}Z"),
            Layout::Micros => format!("{head}.{:06}Z", self.nanos / 1000),
        }
    }
}

struct Reader<'a> {
    text: &'a [u8],
    rest: &'a [u8],
    layout: Layout,
}

impl<'a> Reader<'a> {
    fn run(mut self) -> Result<Moment, String> {
        let year = self.year()?;
        self.literal("-")?;
        let month = self.two("01", true)?;
        self.range("month", (1..=12).contains(&month))?;
        self.literal("-")?;
        let day = self.two("02", true)?;
        self.literal("T")?;
        let hour = self.two("15", false)?;
        self.range("hour", hour < 24)?;
        self.literal(":")?;
        let minute = self.two("04", true)?;
        self.range("minute", minute < 60)?;
        self.literal(":")?;
        let second = self.two("05", true)?;
        self.range("second", second < 60)?;
        let nanos = self.fraction()?;
        let offset = self.zone()?;
        if !self.rest.is_empty() {
            let (text, rest) = (quote_time(self.text), quote_time(self.rest));
            return Err(format!("parsing time {text}: extra text: {rest}"));
        }
        self.range("day", day >= 1 && day <= days_in_month(year, month))?;
        let seconds = hour * 3600 + minute * 60 + second - offset;
        let days = days_from_civil(year, month, day) + seconds.div_euclid(86_400);
        // Upstream accepts times that the offset moves out of four-digit years, and cannot read back what it then
        // writes.
        self.range("year", (0..=9999).contains(&civil_from_days(days).0))?;
        Ok(Moment { days, second_of_day: seconds.rem_euclid(86_400), nanos })
    }

    fn bad<T>(&self, element: &str) -> Result<T, String> {
        let (text, rest) = (quote_time(self.text), quote_time(self.rest));
        let layout = self.layout.text();
        Err(format!("parsing time {text} as \"{layout}\": cannot parse {rest} as \"{element}\""))
    }

    fn range(&self, what: &str, good: bool) -> Result<(), String> {
        if good {
            Ok(())
        } else {
            Err(format!("parsing time {}: {what} out of range", quote_time(self.text)))
        }
    }

    fn literal(&mut self, expected: &str) -> Result<(), String> {
        match self.rest.strip_prefix(expected.as_bytes()) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => self.bad(expected),
        }
    }

    fn year(&mut self) -> Result<i64, String> {
        match self.rest.split_at_checked(4) {
            Some((digits, rest)) if digits.iter().all(u8::is_ascii_digit) => {
                self.rest = rest;
                Ok(number(digits))
            }
            _ => self.bad("2006"),
        }
    }

    /// Parses two digits, or one where Go is lenient.
    fn two(&mut self, element: &str, fixed: bool) -> Result<i64, String> {
        let digits = self.rest.iter().take(2).take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 || (digits == 1 && fixed) {
            return self.bad(element);
        }
        let (digits, rest) = self.rest.split_at(digits);
        self.rest = rest;
        Ok(number(digits))
    }

    fn fraction(&mut self) -> Result<u32, String> {
        let digits = match self.rest {
            [b'.' | b',', digits @ ..] => digits,
            _ => &[],
        };
        let count = digits.iter().take_while(|b| b.is_ascii_digit()).count();
        let taken = match self.layout {
            Layout::Micros if count < 6 => return self.bad(".000000"),
            Layout::Micros => 6,
            Layout::Seconds if count == 0 => return Ok(0),
            Layout::Seconds => count,
        };
        let kept = taken.min(9);
        let nanos = number(&digits[..kept]) * 10_i64.pow(9 - u32::try_from(kept).unwrap_or(9));
        self.rest = &digits[taken..];
        Ok(u32::try_from(nanos).unwrap_or(0))
    }

    /// Parses the zone: seconds east of UTC.
    fn zone(&mut self) -> Result<i64, String> {
        if let [b'Z', rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(0);
        }
        let &[sign, h1, h2, b':', m1, m2, ref rest @ ..] = self.rest else { return self.bad("Z07:00") };
        if ![h1, h2, m1, m2].iter().all(u8::is_ascii_digit) {
            return self.bad("Z07:00");
        }
        let (hours, minutes) = (number(&[h1, h2]), number(&[m1, m2]));
        self.range("time zone offset hour", hours <= 24)?;
        self.range("time zone offset minute", minutes <= 60)?;
        let seconds = hours * 3600 + minutes * 60;
        let signed = match sign {
            b'+' => seconds,
            b'-' => -seconds,
            _ => return self.bad("Z07:00"),
        };
        self.rest = rest;
        Ok(signed)
    }
}

/// Returns the value of at most nine digits.
fn number(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |n, d| n * 10 + i64::from(d.wrapping_sub(b'0')))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Returns the days since 1970-01-01 in the Gregorian calendar: years start in March, so that the leap day is last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_agrees_with_jiff() {
        let mut date = jiff::civil::date(1800, 1, 1);
        let epoch = jiff::civil::date(1970, 1, 1);
        while date.year() < 2200 {
            let (y, m, d) = (i64::from(date.year()), i64::from(date.month()), i64::from(date.day()));
            let days = days_from_civil(y, m, d);
            assert_eq!(days, i64::from((date - epoch).get_days()));
            assert_eq!(civil_from_days(days), (y, m, d));
            date = date.tomorrow().unwrap();
        }
    }

    #[test]
    fn years_have_four_digits() {
        for text in ["9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00"] {
            let want = format!("parsing time \"{text}\": year out of range");
            assert_eq!(parse(text, Layout::Seconds), Err(want));
        }
    }

    #[test]
    fn never_panics() {
        fastrand::seed(3);
        let good = "2020-01-01T00:00:00.123456+02:00";
        for _ in 0..100_000 {
            let mut bytes = good.as_bytes().to_vec();
            for _ in 0..fastrand::usize(0..4) {
                let at = fastrand::usize(..bytes.len());
                bytes[at] = fastrand::u8(..);
            }
            bytes.truncate(fastrand::usize(..=bytes.len()));
            let text = String::from_utf8_lossy(&bytes);
            let _ = parse(&text, Layout::Seconds).map(|m| m.format(Layout::Seconds));
            let _ = parse(&text, Layout::Micros).map(|m| m.format(Layout::Micros));
        }
    }
}
