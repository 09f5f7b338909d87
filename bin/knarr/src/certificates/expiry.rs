//! Warnings of certificates that expire soon and are not renewed automatically.

use jiff::Timestamp;

use super::inventory::{Entry, Origin};

/// Days before the expiry of a certificate at which warnings begin.
const LEAF_DAYS: i64 = 30;
const AUTHORITY_DAYS: i64 = 180;

/// The reason of the event.
pub const REASON: &str = "CertificateExpiring";

/// Returns a sentence for each certificate that expires soon or has expired and is not renewed by the server.
pub fn warnings(entries: &[Entry], now: Timestamp) -> Vec<String> {
    entries.iter().filter_map(|entry| warning(entry, now)).collect()
}

fn warning(entry: &Entry, now: Timestamp) -> Option<String> {
    let days = if entry.is_authority() { AUTHORITY_DAYS } else { LEAF_DAYS };
    let (left, facts) = (entry.days_left(now)?, entry.facts.as_ref().ok()?);
    let advice = match (&entry.origin, entry.is_authority()) {
        (Origin::External, _) => format!("replace {}", entry.file.display()),
        (Origin::Own, true) => "rotate it with `knarr certificates rotate-ca`".to_owned(),
        (Origin::Own, false) => return None,
        (Origin::Issued, _) => "`knarr kubeconfig` writes a new one".to_owned(),
    };
    let (name, subject, expires) = (&entry.name, &facts.subject, facts.expires);
    match left {
        _ if entry.has_expired(now) => {
            Some(format!("The certificate {name} of {subject} expired at {expires}: {advice}"))
        }
        left if left < days => Some(format!(
            "The certificate {name} of {subject} expires at {expires}, in {left} days: {advice}"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::facts::Facts;
    use super::*;

    #[test]
    fn who_is_warned_of_what_and_when() {
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        let entry = |days: i64, use_: &'static str, origin: Origin| {
            let expires = now + jiff::SignedDuration::from_hours(24 * days);
            let facts = Facts {
                subject: "s".to_owned(),
                groups: Vec::new(),
                uses: vec![use_],
                issuer: "i".to_owned(),
                expires,
            };
            let mut entry = Entry::new("n".to_owned(), PathBuf::from("/f"), Ok(facts), Vec::new());
            entry.origin = origin;
            entry
        };
        for (days, use_, origin, expected) in [
            (180, "authority", Origin::Own, None),
            (179, "authority", Origin::Own, Some("in 179 days: rotate it with")),
            (1, "client", Origin::Own, None),
            (30, "client", Origin::Issued, None),
            (29, "client", Origin::Issued, Some("in 29 days: `knarr kubeconfig` writes a new one")),
            (-1, "client", Origin::Issued, Some("of s expired at 2026-01-09T00:00:00Z: `knarr kubeconfig`")),
            (30, "server", Origin::External, None),
            (0, "server", Origin::External, Some("expired at 2026-01-10T00:00:00Z: replace /f")),
            (179, "authority", Origin::External, Some("in 179 days: replace /f")),
        ] {
            let warned = warning(&entry(days, use_, origin.clone()), now);
            match expected {
                None => assert_eq!(warned, None, "{days} {use_} {origin:?}"),
                Some(part) => assert!(warned.clone().unwrap_or_default().contains(part), "{warned:?}"),
            }
        }
        let broken = Entry::new("n".to_owned(), PathBuf::new(), Err("e".to_owned()), Vec::new());
        assert!(warnings(&[broken], now + Duration::from_secs(1)).is_empty());
    }
}
