//! What the operator should wait for before a rotation's next step: the time that kubelets and programs need to
//! read the authorities that they trust, and certificates of the old authorities.

use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;

use super::plan::{Phase, Rotation};
use super::served;
use crate::certificates::inventory::{self, Entry, Origin};
use crate::layout::Layout;

/// The time from the publication of new authorities to the next step: agents check every few minutes, kubelets
/// update volumes within two minutes, and programs read their `ca.crt` again at their own pace.
const PROPAGATION_TIME: Duration = Duration::from_secs(3600);

/// Returns what the operator should wait for before the next step, as text.
pub fn on(layout: &Layout, rotation: &Rotation, now: Timestamp) -> Result<Vec<String>> {
    let mut on = Vec::new();
    if !rotation.phase.is_last() {
        on.extend(time(rotation, served::at(&layout.pki(), rotation), now));
    }
    if rotation.phase == Phase::Sign {
        on.extend(signed_before(&inventory::read(layout)?, rotation, now));
    }
    Ok(on)
}

/// Returns the remaining wait as text. `served` is when the authorities of the phase were published, not when
/// the phase was entered on disk.
fn time(rotation: &Rotation, served: Option<Timestamp>, now: Timestamp) -> Option<String> {
    let Some(served) = served else {
        return Some("the server to be restarted and the authorities to be published".to_owned());
    };
    let until = served.checked_add(PROPAGATION_TIME).ok()?;
    let what = match rotation.phase {
        Phase::Distribute => "all clients to have read the new authorities",
        _ => "agents to have certificates of the new authorities",
    };
    (now < until).then(|| format!("{what}, until {}", until.strftime("%Y-%m-%dT%H:%M:%SZ")))
}

/// Returns the valid certificates of an authority that is being removed, which is any but the first of its
/// bundle.
fn signed_before(entries: &[Entry], rotation: &Rotation, now: Timestamp) -> Vec<String> {
    let goes = |entry: &&Entry| {
        let bundle = entry.authority.split_once('#').map(|(name, _)| name);
        bundle.is_some_and(|name| rotation.names.iter().any(|n| n == name))
    };
    let left = entries.iter().filter(|e| !e.is_authority() && !e.has_expired(now)).filter(goes);
    left.map(|entry| match entry.origin {
        Origin::Own => format!("{}: the server signs it anew at its next start", entry.name),
        _ => format!("{}: give its holder a new one (`knarr kubeconfig`), and remove the record", entry.name),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::certificates::facts::Facts;

    fn rotation(phase: Phase, since: Timestamp) -> Rotation {
        Rotation { phase, begun: since, since, names: vec!["ca".to_owned()] }
    }

    #[test]
    fn phases_last_long_enough_to_be_heard_of() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for phase in [Phase::Distribute, Phase::Sign] {
            let rotation = rotation(phase, since);
            // The time has passed, but the server has not been restarted.
            let unserved = time(&rotation, None, since + PROPAGATION_TIME).unwrap();
            assert!(unserved.starts_with("the server to be restarted"), "{unserved}");
            let served = since + Duration::from_secs(58 * 60);
            let early =
                time(&rotation, Some(served), served + PROPAGATION_TIME - Duration::from_secs(1)).unwrap();
            assert!(early.ends_with("until 2026-01-01T01:58:00Z"), "{early}");
            assert_eq!(time(&rotation, Some(served), served + PROPAGATION_TIME), None);
        }
    }

    #[test]
    fn certificates_of_old_authorities_are_named() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let entry = |name: &str, authority: &str, days: i64, origin: Origin| {
            let facts = Facts {
                subject: "s".to_owned(),
                groups: Vec::new(),
                uses: vec!["client"],
                issuer: "i".to_owned(),
                expires: now + jiff::SignedDuration::from_hours(24 * days),
            };
            let mut entry = Entry::new(name.to_owned(), PathBuf::from("/f"), Ok(facts), Vec::new());
            entry.authority = authority.to_owned();
            entry.origin = origin;
            entry
        };
        let entries = [
            entry("apiserver", "ca", 9, Origin::Own),
            entry("admin", "ca#2", 9, Origin::Own),
            entry("issued/jane", "ca#2", 9, Origin::Issued),
            entry("issued/bob", "ca#2", -1, Origin::Issued),
            entry("front-proxy/client", "front-proxy/ca#2", 9, Origin::Own),
        ];
        let left = signed_before(&entries, &rotation(Phase::Sign, now), now);
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0].starts_with("admin: the server") && left[1].starts_with("issued/jane: give"));
    }
}
