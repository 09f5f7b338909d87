//! The progress of a server in the rotations of its cluster, and whether it fits the servers that are
//! further. Pure, apart from reading its files.
//!
//! A server that was down while authorities were replaced, or was restored from an old image, signs with what
//! the others no longer trust, and trusts what may have leaked. Servers on one etcd record the cluster's
//! progress there, from its first rotation on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::disk;
use super::plan::{NAMES, Phase, SERVICE_ACCOUNTS};
use crate::certificates::facts;
use crate::pki::Pki;

/// The last step that was taken. Rotations are identified by their start time, which all servers copy from
/// the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taken {
    pub begun: Timestamp,
    pub phase: Phase,
}

impl Taken {
    fn is_after(self, other: Self) -> bool {
        (self.begun, self.phase.order()) > (other.begun, other.phase.order())
    }
}

/// Digests of one authority's certificates, or of token keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    signs: String,
    trusted: BTreeSet<String>,
}

impl Trust {
    fn trusts(&self, other: &Self) -> bool {
        self.trusted.contains(&other.signs)
    }
}

/// The progress of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// `None` before the first rotation.
    taken: Option<Taken>,
    authorities: BTreeMap<String, Trust>,
}

/// Whether a server may start.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fits the others.
    Joins,
    /// It fits, and is further than the record.
    Leads,
    /// It does not fit because of these authorities.
    Misfit(Vec<String>),
}

impl Standing {
    /// Reads the progress of a server's folder. Missing authorities are created, as at every start.
    pub fn of(pki: &Pki) -> Result<Self> {
        let mut authorities = BTreeMap::new();
        for name in NAMES {
            let trust = match name {
                SERVICE_ACCOUNTS => of_keys(pki)?,
                "front-proxy/ca" => of_bundle(pki.front_proxy()?.ca_pem())?,
                "kubelet-serving/ca" => of_bundle(pki.kubelet_serving()?.ca_pem())?,
                _ => of_bundle(pki.ca_pem())?,
            };
            authorities.insert(name.to_owned(), trust);
        }
        Ok(Self { taken: disk::taken(pki.folder())?, authorities })
    }

    /// Decides whether a server fits the recorded progress of its cluster. If one of two servers is a step
    /// ahead, each trusts what the other signs. A server that leads may be several steps ahead if steps were
    /// forced: it fits if one side still trusts the other.
    pub fn among(&self, known: Option<&Self>) -> Verdict {
        let Some(known) = known else {
            return if self.taken.is_some() { Verdict::Leads } else { Verdict::Joins };
        };
        let leads = match (self.taken, known.taken) {
            (Some(ours), Some(known)) => ours.is_after(known),
            (ours, None) => ours.is_some(),
            (None, _) => false,
        };
        let fits = |ours: &Trust, known: &Trust| match (ours.trusts(known), known.trusts(ours)) {
            (false, false) => false,
            // A server without a record of its last step, for instance after files were copied, must not
            // trust anything that the others have removed.
            (true, true) => self.taken.is_some() || ours.trusted.is_subset(&known.trusted),
            _ => leads,
        };
        let misfit = self
            .authorities
            .iter()
            .filter(|(name, ours)| known.authorities.get(*name).is_some_and(|known| !fits(ours, known)));
        let misfit: Vec<String> = misfit.map(|(name, _)| name.clone()).collect();
        match misfit.is_empty() {
            false => Verdict::Misfit(misfit),
            true if leads => Verdict::Leads,
            true => Verdict::Joins,
        }
    }
}

fn of_bundle(pem: &str) -> Result<Trust> {
    let chain = facts::chain(pem.as_bytes())?;
    of_all(chain.iter().map(|certificate| digest(certificate)).collect())
}

/// Digests the token keys; keys of former rotations only verify.
fn of_keys(pki: &Pki) -> Result<Trust> {
    let own = disk::public(&pki.service_account_key()?)?;
    let keys = [Some(own), disk::other_token_key(pki.folder())?];
    of_all(keys.iter().flatten().map(|key| digest(key.trim().as_bytes())).collect())
}

fn of_all(digests: Vec<String>) -> Result<Trust> {
    let signs = digests.first().cloned().context("no authority in it")?;
    Ok(Trust { signs, trusted: digests.into_iter().collect() })
}

fn digest(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds the progress after the step `taken`. `trusted` has a letter for each authority; the first one
    /// signs.
    fn standing(taken: Option<(i64, Phase)>, trusted: &str) -> Standing {
        let taken = taken.map(|(second, phase)| {
            let begun = Timestamp::from_second(second).unwrap();
            Taken { begun, phase }
        });
        let trust = of_all(trusted.chars().map(String::from).collect()).unwrap();
        Standing { taken, authorities: [("ca".to_owned(), trust)].into() }
    }

    #[test]
    fn servers_fit_as_long_as_they_are_a_step_apart() {
        use Phase::{Cancel, Distribute, Finish, Sign};
        let never = || standing(None, "a");
        let (first, second) = (standing(Some((1, Distribute)), "ab"), standing(Some((1, Sign)), "ba"));
        let (third, back) = (standing(Some((1, Finish)), "b"), standing(Some((1, Cancel)), "a"));
        let misfit = || Verdict::Misfit(vec!["ca".to_owned()]);
        for (ours, known, expected) in [
            (&never(), None, Verdict::Joins),
            (&never(), Some(&never()), Verdict::Joins),
            (&first, None, Verdict::Leads),
            (&first, Some(&first), Verdict::Joins),
            (&never(), Some(&first), Verdict::Joins),
            (&second, Some(&first), Verdict::Leads),
            (&first, Some(&second), Verdict::Joins),
            (&third, Some(&second), Verdict::Leads),
            (&second, Some(&third), Verdict::Joins),
            (&third, Some(&third), Verdict::Joins),
            // The server was down for more than a step.
            (&never(), Some(&second), misfit()),
            (&never(), Some(&third), misfit()),
            (&first, Some(&third), misfit()),
            // The rotation was cancelled.
            (&back, Some(&first), Verdict::Leads),
            (&first, Some(&back), Verdict::Joins),
            (&back, Some(&second), misfit()),
            // Forced, without a restart in between.
            (&third, Some(&first), Verdict::Leads),
            // The next rotation.
            (&standing(Some((2, Distribute)), "bc"), Some(&third), Verdict::Leads),
            (&standing(Some((2, Distribute)), "ac"), Some(&third), misfit()),
            (&standing(Some((2, Distribute)), "ac"), Some(&back), Verdict::Leads),
            // A further server without a record of its last step.
            (&standing(None, "b"), Some(&third), Verdict::Joins),
            (&standing(None, "ba"), Some(&third), misfit()),
            // Different rotations of the same authority on two servers.
            (&standing(Some((1, Sign)), "ba"), Some(&standing(Some((2, Sign)), "ca")), misfit()),
        ] {
            assert_eq!(ours.among(known), expected, "{ours:?} {known:?}");
        }
    }
}
