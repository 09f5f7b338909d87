//! Durations as Go writes and reads them, `1h2m0.5s`, as nanoseconds.

/// The text of a duration.
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

/// The nanoseconds of a text such as `1m30s` or `-1.5h`; `None` when it is no duration or too long.
pub fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0_i128;
    while !rest.is_empty() {
        let number = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (digits, after) = rest.split_at(number);
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        total = total.checked_add(amount(digits, unit)?)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// `1.5` and `h` in nanoseconds, cut to whole ones.
fn amount(digits: &str, unit: &str) -> Option<i128> {
    let unit: i128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { i128::from(whole.parse::<i64>().ok()?) };
    // Digits beyond the fifteenth do not reach a nanosecond.
    let fraction = &fraction[..fraction.len().min(15)];
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some(whole * unit + fraction * unit / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_go_does() {
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
            assert_eq!(parse(text), Some(nanos), "{text}");
        }
        assert_eq!(parse("1.5h"), Some(5_400_000_000_000));
        assert_eq!(parse("+.5s"), Some(500_000_000));
        for bad in ["", "-", "1", "1x", ".s", "1.2.3s", "9999999h", "s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
