//! Which of the candidates for a lease should hold it: pure functions.
//!
//! Source: the behaviour of `pkg/controlplane/controller/leaderelection` of Kubernetes 1.37.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::api::coordination::v1beta1::LeaseCandidate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use knarr_api::coordination::leasecandidate::OLDEST_EMULATION_VERSION;
use knarr_api::kind::Kind;

/// A candidate that has not renewed for this long is ignored.
const VALID: SignedDuration = SignedDuration::from_mins(30);
/// How long candidates may take to answer a ping, and how long an answer counts.
pub const ELECTION: SignedDuration = SignedDuration::from_secs(5);

/// What to do about a lease.
#[derive(Debug, PartialEq)]
pub enum Step {
    Nothing,
    /// Requeue after [`ELECTION`].
    Again,
    /// Ping these candidates and requeue.
    Ask(Vec<Arc<LeaseCandidate>>),
    Elect(Elected),
}

/// The outcome of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    pub strategy: String,
    /// The elected candidate; `None` if another component elects by this strategy.
    pub holder: Option<String>,
}

fn renewed(candidate: &LeaseCandidate) -> Option<Timestamp> {
    candidate.spec.renew_time.as_ref().map(|t| t.0)
}

fn asked(candidate: &LeaseCandidate) -> Option<Timestamp> {
    candidate.spec.ping_time.as_ref().map(|t| t.0)
}

/// Returns whether `time` is less than `for_` ago.
fn within(time: Timestamp, for_: SignedDuration, now: Timestamp) -> bool {
    time.checked_add(for_).is_ok_and(|end| end > now)
}

/// Returns whether the candidate has not renewed for too long.
pub fn is_expired(candidate: &LeaseCandidate, now: Timestamp) -> bool {
    renewed(candidate).is_none_or(|at| at.checked_add(VALID).is_ok_and(|end| end < now))
}

/// Returns whether the candidate was pinged and has not answered since.
pub fn owes_answer(candidate: &LeaseCandidate) -> bool {
    asked(candidate).is_some_and(|asked| renewed(candidate).is_none_or(|at| at < asked))
}

/// Parses a version such as `1.37.0`, also with fewer parts or a leading `v`; a pre-release sorts before its release.
fn version(text: &str) -> Option<(u64, u64, u64, bool)> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let (numbers, rest) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
    let mut parts = numbers.split('.').map(|part| part.parse::<u64>().ok());
    let (major, minor, patch) =
        (parts.next()??, parts.next().unwrap_or(Some(0))?, parts.next().unwrap_or(Some(0))?);
    parts.next().is_none().then_some((major, minor, patch, !rest.starts_with('-')))
}

/// Returns the candidate with the lowest versions, and among equals the oldest; candidates without a valid version
/// are ignored.
fn best(candidates: &[Arc<LeaseCandidate>]) -> Option<&Arc<LeaseCandidate>> {
    let key = |candidate: &LeaseCandidate| {
        let spec = &candidate.spec;
        let emulated = version(spec.emulation_version.as_deref().unwrap_or(""))?;
        let made = candidate.metadata.creation_timestamp.as_ref().map(|t| t.0);
        Some((emulated, version(&spec.binary_version)?, made))
    };
    let known = candidates.iter().filter_map(|candidate| Some((key(candidate)?, candidate)));
    known.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, candidate)| candidate)
}

/// Returns the strategy of the candidates with the newest version, if they agree.
fn strategy(candidates: &[Arc<LeaseCandidate>]) -> Option<String> {
    let newest = |candidate: &LeaseCandidate| version(&candidate.spec.binary_version).unwrap_or_default();
    let mut all: Vec<_> = candidates.iter().map(|c| (newest(c), c.spec.strategy.clone())).collect();
    all.sort_by_key(|(version, _)| Reverse(*version));
    let (version, strategy) = all.first()?.clone();
    let agreed = all.iter().take_while(|(other, _)| *other == version).all(|(_, other)| *other == strategy);
    agreed.then_some(strategy)
}

/// Returns whether the lease has expired.
pub fn is_over(lease: &LeaseSpec, now: Timestamp) -> bool {
    let end = lease.renew_time.as_ref().zip(lease.lease_duration_seconds);
    end.is_none_or(|(at, seconds)| !within(at.0, SignedDuration::from_secs(seconds.into()), now))
}

fn holder(lease: &LeaseSpec) -> Option<&str> {
    lease.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// Returns whether an election is due; `None` if the candidates' strategies conflict.
fn is_due(lease: Option<&LeaseSpec>, candidates: &[Arc<LeaseCandidate>], now: Timestamp) -> Option<bool> {
    let Some(lease) = lease.filter(|lease| !is_over(lease, now) && holder(lease).is_some()) else {
        return Some(true);
    };
    if candidates.iter().any(|c| renewed(c).is_none_or(|at| !within(at, VALID / 2, now))) {
        return Some(true);
    }
    if strategy(candidates)? != OLDEST_EMULATION_VERSION {
        return Some(false);
    }
    Some(best(candidates).is_some_and(|best| holder(lease) != Some(best.name())))
}

/// Decides the next step; `candidates` are all candidates for the lease.
pub fn step(lease: Option<&LeaseSpec>, candidates: &[Arc<LeaseCandidate>], now: Timestamp) -> Step {
    let candidates: Vec<_> = candidates.iter().filter(|c| !is_expired(c, now)).cloned().collect();
    if candidates.is_empty() {
        return Step::Nothing;
    }
    if is_due(lease, &candidates, now) != Some(true) {
        return Step::Again;
    }
    let (mut waiting, mut to_ask, mut present) = (false, Vec::new(), Vec::new());
    for candidate in &candidates {
        let just_asked = asked(candidate).is_some_and(|at| within(at, ELECTION, now));
        if owes_answer(candidate) {
            // A candidate that does not answer in time does not take part in this election.
            waiting |= just_asked;
        } else if renewed(candidate).is_some_and(|at| within(at, ELECTION, now)) {
            present.push(Arc::clone(candidate));
        } else {
            to_ask.push(Arc::clone(candidate));
        }
    }
    if !to_ask.is_empty() {
        return Step::Ask(to_ask);
    }
    if waiting {
        return Step::Again;
    }
    match strategy(&present) {
        None => Step::Nothing,
        Some(strategy) => {
            let elects = strategy == OLDEST_EMULATION_VERSION;
            let holder = best(&present).filter(|_| elects).map(|c| c.name().to_owned());
            if elects && holder.is_none() { Step::Nothing } else { Step::Elect(Elected { strategy, holder }) }
        }
    }
}

/// Makes the lease of a candidate that was just elected, which must renew it before it expires.
pub fn first(elected: &Elected, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        strategy: Some(elected.strategy.clone()),
        holder_identity: elected.holder.clone(),
        lease_duration_seconds: Some(ELECTION.as_secs() as i32),
        renew_time: Some(MicroTime(now)),
        ..LeaseSpec::default()
    }
}

/// Returns the lease after the election; if another candidate holds it, only `preferredHolder` is set. `None` if
/// nothing changes.
pub fn changed(lease: &LeaseSpec, elected: &Elected, now: Timestamp) -> Option<LeaseSpec> {
    let mut next = lease.clone();
    next.strategy = Some(elected.strategy.clone());
    let (is, wanted) = (holder(lease), elected.holder.as_deref());
    if is != wanted && (is.is_none() || is_over(lease, now)) {
        let taken = first(elected, now);
        next = LeaseSpec { lease_transitions: lease.lease_transitions, ..taken };
    } else if wanted.is_some() && is != wanted {
        next.preferred_holder = elected.holder.clone();
    }
    (next != *lease).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn candidate(
        name: &str,
        versions: (&str, &str),
        asked: Option<i64>,
        renewed: i64,
    ) -> Arc<LeaseCandidate> {
        let micro = |second: i64| at(second).strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let value = json!({"metadata": {"name": name, "namespace": "kube-system"}, "spec": {
            "leaseName": "x", "strategy": OLDEST_EMULATION_VERSION, "emulationVersion": versions.0,
            "binaryVersion": versions.1, "pingTime": asked.map(micro), "renewTime": micro(renewed)}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn lease(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(at(renewed))),
            strategy: Some(OLDEST_EMULATION_VERSION.to_owned()),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    fn elected(name: &str) -> Elected {
        Elected { strategy: OLDEST_EMULATION_VERSION.to_owned(), holder: Some(name.to_owned()) }
    }

    #[test]
    fn the_oldest_version_is_elected_among_those_that_answer() {
        let (new, old) = (("1.37.0", "1.37.0"), ("1.36.0", "1.37.0"));
        assert_eq!(step(None, &[], at(0)), Step::Nothing);
        assert_eq!(step(None, &[candidate("a", new, None, -1801)], at(0)), Step::Nothing, "expired");
        let quiet = [candidate("a", new, None, -60), candidate("b", old, None, -60)];
        assert_eq!(step(None, &quiet, at(0)), Step::Ask(quiet.to_vec()));
        let half = [candidate("a", new, Some(0), 1), candidate("b", old, Some(0), -60)];
        assert_eq!(step(None, &half, at(2)), Step::Again);
        assert_eq!(step(None, &half, at(5)), Step::Elect(elected("a")), "b has not answered");
        let both = [candidate("a", new, Some(0), 1), candidate("b", old, Some(0), 1)];
        assert_eq!(step(None, &both, at(2)), Step::Elect(elected("b")));
        assert_eq!(step(Some(&lease("b", 1)), &both, at(2)), Step::Again, "nothing to change");
        assert_eq!(step(Some(&lease("a", 1)), &both, at(2)), Step::Elect(elected("b")));
        assert_eq!(
            step(Some(&lease("b", -15)), &both, at(2)),
            Step::Elect(elected("b")),
            "the lease has expired"
        );
        let bad = [candidate("a", ("one", "1.37.0"), Some(0), 1)];
        assert_eq!(step(None, &bad, at(2)), Step::Nothing);
    }

    #[test]
    fn others_elect_by_strategies_of_their_own() {
        let mut theirs = LeaseCandidate::clone(&candidate("a", ("1.37.0", "1.37.0"), Some(0), 1));
        theirs.spec.strategy = "example.com/dice".to_owned();
        let outcome = Elected { strategy: "example.com/dice".to_owned(), holder: None };
        assert_eq!(step(None, &[Arc::new(theirs.clone())], at(2)), Step::Elect(outcome.clone()));
        assert_eq!(first(&outcome, at(2)).holder_identity, None);
        let ours = candidate("b", ("1.37.0", "1.37.0"), Some(0), 1);
        assert_eq!(step(None, &[Arc::new(theirs), ours], at(2)), Step::Nothing, "the strategies conflict");
    }

    #[test]
    fn a_lease_that_is_held_is_asked_for_and_one_that_is_not_is_given() {
        let held = changed(&lease("a", 1), &elected("b"), at(2)).unwrap();
        assert_eq!(
            (held.holder_identity.as_deref(), held.preferred_holder.as_deref()),
            (Some("a"), Some("b"))
        );
        let over = changed(&lease("a", -20), &elected("b"), at(2)).unwrap();
        assert_eq!((over.holder_identity.as_deref(), over.preferred_holder), (Some("b"), None));
        assert_eq!((over.lease_duration_seconds, over.lease_transitions), (Some(5), Some(3)));
        assert_eq!(changed(&lease("b", 1), &elected("b"), at(2)), None);
    }

    #[test]
    fn versions() {
        assert!(version("v1.36") < version("1.37.0-beta.0"));
        assert!(version("1.37.0-beta.0") < version("1.37.0"));
        assert_eq!(version("1.37.0+knarr"), version("1.37"));
        for wrong in ["", "one", "1.2.3.4", "1..2"] {
            assert_eq!(version(wrong), None, "{wrong}");
        }
    }
}
