//! The phases of a rotation of authorities, and what each phase means for their files. Pure.
//!
//! First the new authority is trusted beside the old one, until all clients know it; then it signs, until
//! nothing signed by the old one is in use; then the old one is removed. The order is that of kubeadm's guide
//! to the manual rotation of CA certificates and of `k3s certificate rotate-ca`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::certificate::Pair;

/// The authorities that can be rotated, by the names of `knarr certificates`.
pub const NAMES: [&str; 4] = [CA, "front-proxy/ca", KUBELET_SERVING, SERVICE_ACCOUNTS];
/// The authority that agents read; when it changes, they request new certificates.
const CA: &str = "ca";
const KUBELET_SERVING: &str = "kubelet-serving/ca";
/// The key of service account tokens, which has no certificate.
pub const SERVICE_ACCOUNTS: &str = "service-accounts";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Both are trusted, the old one signs.
    Distribute,
    /// Both are trusted, the new one signs.
    Sign,
    /// Only the new one will be trusted.
    Finish,
    /// Only the old one will be trusted again.
    Cancel,
}

impl Phase {
    /// Returns whether a rotation in this phase is over once its files are written.
    pub fn is_last(self) -> bool {
        matches!(self, Self::Finish | Self::Cancel)
    }

    /// Returns a number that orders the phases of a rotation.
    pub fn order(self) -> u8 {
        match self {
            Self::Distribute => 1,
            Self::Cancel => 2,
            Self::Sign => 3,
            Self::Finish => 4,
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::Distribute => "the new authorities are trusted beside the old ones, which sign",
            Self::Sign => "the new authorities sign; the old ones are still trusted",
            Self::Finish => "the old authorities are being removed",
            Self::Cancel => "the new authorities are being removed",
        }
    }
}

/// A rotation in progress, as stored on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rotation {
    pub phase: Phase,
    pub begun: Timestamp,
    /// When the phase was entered.
    pub since: Timestamp,
    /// The rotated authorities, of [`NAMES`].
    pub names: Vec<String>,
}

/// A step that an operator requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Begin(Vec<String>),
    Sign,
    Finish,
    Cancel,
}

/// The reasons not to leave a phase yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What still depends on the phase, as text.
    pub on: Vec<String>,
    /// Whether the operator overrides the wait.
    pub forced: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no rotation is under way: begin one with `knarr certificates rotate-ca begin`")]
    None,
    #[error("a rotation is under way: finish or cancel it first")]
    UnderWay,
    #[error("{:?} is no authority: choose among {}", .0, NAMES.join(", "))]
    Name(String),
    #[error(
        "kubelet-serving/ca is replaced together with ca alone: agents request new certificates when that changes"
    )]
    Unheard,
    #[error("the new authorities do not sign yet: `knarr certificates rotate-ca sign` comes first")]
    NotSigning,
    #[error("the new authorities sign already")]
    Signing,
    #[error("the new authorities have signed: go on to the end, and rotate again")]
    TooLate,
    #[error("not yet: {} (--force does not wait)", .0.join("; "))]
    Waiting(Vec<String>),
}

/// Returns the rotation after a step.
pub fn take(
    current: Option<&Rotation>,
    step: &Step,
    waiting: &Waiting,
    now: Timestamp,
) -> Result<Rotation, Refusal> {
    let patient = || match waiting.on.as_slice() {
        [] => Ok(()),
        _ if waiting.forced => Ok(()),
        on => Err(Refusal::Waiting(on.to_vec())),
    };
    let to = |rotation: &Rotation, phase| Rotation { phase, since: now, ..rotation.clone() };
    match (step, current) {
        (Step::Begin(names), None) => begin(names, now),
        (Step::Begin(_), Some(_)) => Err(Refusal::UnderWay),
        (_, None) => Err(Refusal::None),
        (_, Some(rotation)) if rotation.phase.is_last() => Err(Refusal::UnderWay),
        (Step::Sign, Some(rotation)) if rotation.phase == Phase::Distribute => {
            patient().map(|()| to(rotation, Phase::Sign))
        }
        (Step::Sign, Some(_)) => Err(Refusal::Signing),
        (Step::Finish, Some(rotation)) if rotation.phase == Phase::Sign => {
            patient().map(|()| to(rotation, Phase::Finish))
        }
        (Step::Finish, Some(_)) => Err(Refusal::NotSigning),
        (Step::Cancel, Some(rotation)) if rotation.phase == Phase::Distribute => {
            Ok(to(rotation, Phase::Cancel))
        }
        (Step::Cancel, Some(_)) => Err(Refusal::TooLate),
    }
}

fn begin(names: &[String], now: Timestamp) -> Result<Rotation, Refusal> {
    if let Some(name) = names.iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(Refusal::Name(name.clone()));
    }
    let wanted = |name: &&&str| names.is_empty() || names.iter().any(|n| n == **name);
    let names: Vec<String> = NAMES.iter().filter(wanted).map(|name| (*name).to_owned()).collect();
    // Agents' certificates are on other machines: nothing here would show that the old authority signed them.
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has(KUBELET_SERVING) && !has(CA) {
        return Err(Refusal::Unheard);
    }
    Ok(Rotation { phase: Phase::Distribute, begun: now, since: now, names })
}

/// Returns the contents of an authority's files in a phase. The first certificate is the one that signs.
pub fn files(phase: Phase, old: &Pair, new: &Pair) -> Pair {
    let both = |first: &Pair, second: &Pair| Pair {
        certificates: format!("{}{}", whole(&first.certificates), whole(&second.certificates)),
        key: first.key.clone(),
    };
    match phase {
        Phase::Distribute => both(old, new),
        Phase::Sign => both(new, old),
        Phase::Finish => new.clone(),
        Phase::Cancel => old.clone(),
    }
}

/// Returns the text with a newline at its end, so that another one may follow.
fn whole(pem: &str) -> String {
    match pem.trim() {
        "" => String::new(),
        pem => format!("{pem}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn in_phase(phase: Phase) -> Rotation {
        Rotation { phase, begun: at(1), since: at(2), names: vec!["ca".to_owned()] }
    }

    #[test]
    fn steps_follow_each_other() {
        use Phase::{Cancel, Distribute, Finish, Sign};
        let begin = Step::Begin(Vec::new());
        for (from, step, expected) in [
            (None, begin.clone(), Ok(Distribute)),
            (None, Step::Sign, Err(Refusal::None)),
            (None, Step::Finish, Err(Refusal::None)),
            (None, Step::Cancel, Err(Refusal::None)),
            (Some(Distribute), begin.clone(), Err(Refusal::UnderWay)),
            (Some(Distribute), Step::Sign, Ok(Sign)),
            (Some(Distribute), Step::Finish, Err(Refusal::NotSigning)),
            (Some(Distribute), Step::Cancel, Ok(Cancel)),
            (Some(Sign), begin.clone(), Err(Refusal::UnderWay)),
            (Some(Sign), Step::Sign, Err(Refusal::Signing)),
            (Some(Sign), Step::Finish, Ok(Finish)),
            (Some(Sign), Step::Cancel, Err(Refusal::TooLate)),
            (Some(Finish), Step::Cancel, Err(Refusal::UnderWay)),
            (Some(Cancel), begin, Err(Refusal::UnderWay)),
        ] {
            let current = from.map(in_phase);
            let waiting = Waiting { on: Vec::new(), forced: false };
            let taken = take(current.as_ref(), &step, &waiting, at(9));
            assert_eq!(taken.as_ref().map(|r| r.phase), expected.as_ref().map(|p| *p), "{from:?} {step:?}");
            if let Ok(taken) = taken {
                assert_eq!(taken.since, at(9));
                assert_eq!(taken.begun, at(if from.is_some() { 1 } else { 9 }));
            }
        }
    }

    #[test]
    fn what_is_waited_for_holds_up_a_phase_unless_forced() {
        for (phase, step) in [(Phase::Distribute, Step::Sign), (Phase::Sign, Step::Finish)] {
            let on = vec!["node a".to_owned()];
            let waiting = |forced| Waiting { on: on.clone(), forced };
            let current = in_phase(phase);
            let take = |forced| take(Some(&current), &step, &waiting(forced), at(9));
            assert_eq!(take(false), Err(Refusal::Waiting(on.clone())));
            assert!(take(true).is_ok());
        }
    }

    #[test]
    fn one_or_all_are_rotated() {
        let waiting = Waiting { on: Vec::new(), forced: false };
        let begin = |names: &[&str]| {
            let names = names.iter().map(|n| (*n).to_owned()).collect();
            take(None, &Step::Begin(names), &waiting, at(1)).map(|rotation| rotation.names)
        };
        assert_eq!(begin(&[]).unwrap(), NAMES);
        assert_eq!(begin(&["front-proxy/ca", "ca"]).unwrap(), ["ca", "front-proxy/ca"]);
        assert_eq!(begin(&["kubelet-serving/ca", "ca"]).unwrap(), ["ca", "kubelet-serving/ca"]);
        for alone in [&["kubelet-serving/ca"][..], &["front-proxy/ca", "kubelet-serving/ca"]] {
            assert_eq!(begin(alone), Err(Refusal::Unheard), "agents would not hear of it");
        }
        assert_eq!(begin(&["apiserver"]), Err(Refusal::Name("apiserver".to_owned())));
    }

    /// At each step, a client that has seen only the step before trusts everything that is signed.
    #[test]
    fn clients_one_phase_behind_trust_the_signer() {
        let pair = |name: &str| Pair { certificates: format!("{name}\n"), key: format!("{name} key") };
        let (old, new) = (pair("old"), pair("new"));
        let order = [Phase::Cancel, Phase::Distribute, Phase::Sign, Phase::Finish];
        for (before, after) in order.iter().zip(&order[1..]) {
            let (before, after) = (files(*before, &old, &new), files(*after, &old, &new));
            for (signs, trusts) in [(&after, &before), (&before, &after)] {
                let signer = signs.certificates.lines().next().unwrap();
                assert_eq!(signs.key, format!("{signer} key"));
                assert!(trusts.certificates.lines().any(|line| line == signer), "{signs:?} {trusts:?}");
            }
        }
        assert_eq!(files(Phase::Sign, &old, &new).certificates, "new\nold\n");
        let key = |name: &str| Pair { certificates: String::new(), key: name.to_owned() };
        assert_eq!(files(Phase::Sign, &key("a"), &key("b")), key("b"));
    }
}
