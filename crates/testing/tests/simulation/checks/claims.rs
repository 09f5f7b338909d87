//! Claims: none is lost, and those of a pod that is scaled away are deleted with it if the set is configured
//! so.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use knarr_api::kind::Kind;

use super::sets::Recent;
use super::{Outcome, ensure};

/// The set whose claims are deleted with pods that are scaled away.
pub const SET: &str = "cache";

#[derive(Default)]
pub struct Claims {
    wanted: Recent,
    /// The uids of each claim's owners.
    owners: BTreeMap<String, Vec<String>>,
}

impl Claims {
    pub fn wants(&mut self, now: Duration, replicas: i32) {
        self.wanted.note(now, replicas);
    }

    pub fn claim(&mut self, claim: &PersistentVolumeClaim, deleted: bool, now: Duration) -> Outcome {
        if deleted {
            self.owners.remove(claim.name());
            return self.may_go(claim.name(), now);
        }
        let owners = claim.metadata.owner_references.iter().flatten().map(|o| o.uid.clone());
        self.owners.insert(claim.name().to_owned(), owners.collect());
        Ok(())
    }

    /// A claim is deleted only with a pod that is no longer wanted, and only if the set is configured so.
    fn may_go(&self, name: &str, now: Duration) -> Outcome {
        let ordinal = name.strip_prefix("data-cache-").and_then(|n| n.parse::<i32>().ok());
        let least = self.wanted.least(now);
        ensure(ordinal.is_some_and(|n| n >= least), || {
            format!("claim {name} is lost; {least} pods are wanted")
        })
    }

    /// The claim of a pod that was removed before its set shrank stays, as upstream's does: no controller
    /// handles it any more.
    pub fn pod(&self, before: Option<&Pod>, pod: &Pod, by: &str, now: Duration) -> Outcome {
        let ordinal = pod.name().strip_prefix("cache-").and_then(|n| n.parse::<i32>().ok());
        let Some(n) = ordinal.filter(|n| *n >= self.wanted.most(now)) else { return Ok(()) };
        let going = |p: &Pod| p.metadata.deletion_timestamp.is_some();
        if by != "statefulset-controller" || !going(pod) || before.is_none_or(going) {
            return Ok(());
        }
        let owners = self.owners.get(&format!("data-cache-{n}"));
        let owned = owners.is_none_or(|all| all.iter().any(|uid| uid == pod.uid()));
        ensure(owned, || format!("{} goes, and leaves its claim behind", pod.name()))
    }
}
