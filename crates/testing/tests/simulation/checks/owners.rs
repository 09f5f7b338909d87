//! The garbage collector: it deletes no object that has a live owner, and no owner before its dependents.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{MEMORY, Outcome, ensure};

const COLLECTOR: &str = "generic-garbage-collector";
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

struct Known {
    meta: ObjectMeta,
    /// Since when the object has each of its owners.
    since: BTreeMap<String, Duration>,
}

/// The existing objects, by uid.
#[derive(Default)]
pub struct Owners(BTreeMap<String, Known>);

fn has_finalizer(meta: &ObjectMeta, name: &str) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == name)
}

fn is_going(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some()
}

fn owners(meta: &ObjectMeta) -> impl Iterator<Item = &OwnerReference> {
    meta.owner_references.iter().flatten()
}

impl Owners {
    /// Checks an object's next state, or its last one.
    pub fn look(&mut self, meta: ObjectMeta, deleted: bool, by: &str, now: Duration) -> Outcome {
        let uid = meta.uid.clone().unwrap_or_default();
        let before = self.0.get(&uid);
        if by == COLLECTOR
            && let Some(before) = before
        {
            if is_going(&meta) && !is_going(&before.meta) {
                self.has_no_live_owner(&before.meta)?;
            }
            for finalizer in [FOREGROUND, ORPHAN] {
                if has_finalizer(&before.meta, finalizer) && !has_finalizer(&meta, finalizer) {
                    self.nothing_depends_on(&uid, &meta, finalizer, now)?;
                }
            }
        }
        if deleted {
            self.0.remove(&uid);
            return Ok(());
        }
        let mut since = self.0.remove(&uid).map(|k| k.since).unwrap_or_default();
        since.retain(|owner, _| owners(&meta).any(|o| o.uid == *owner));
        for owner in owners(&meta) {
            since.entry(owner.uid.clone()).or_insert(now);
        }
        self.0.insert(uid, Known { meta, since });
        Ok(())
    }

    /// Checks that the object has no live owner. An owner that waits for its dependents keeps none of them.
    fn has_no_live_owner(&self, meta: &ObjectMeta) -> Outcome {
        let lives = |o: &&OwnerReference| {
            let owner = self.0.get(&o.uid).map(|k| &k.meta);
            owner.is_some_and(|m| !(is_going(m) && has_finalizer(m, FOREGROUND)))
        };
        let owner = owners(meta).find(lives);
        ensure(owner.is_none(), || format!("{:?} was collected, and its owner {owner:?} is there", meta.name))
    }

    /// Checks that the object has no dependents. The collector may not have seen very recent ones yet.
    fn nothing_depends_on(&self, uid: &str, meta: &ObjectMeta, finalizer: &str, now: Duration) -> Outcome {
        let depends = |k: &&Known| {
            let holds = |o: &OwnerReference| {
                o.uid == uid && (finalizer == ORPHAN || o.block_owner_deletion == Some(true))
            };
            owners(&k.meta).any(holds) && k.since.get(uid).is_some_and(|at| *at + MEMORY < now)
        };
        let left = self.0.values().find(depends);
        ensure(left.is_none(), || {
            let left = left.and_then(|k| k.meta.name.as_deref());
            format!("{finalizer} of {:?} was taken off, and {left:?} still depends on it", meta.name)
        })
    }
}
