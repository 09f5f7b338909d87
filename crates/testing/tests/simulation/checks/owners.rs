//! The garbage collector: it deletes nothing that has a live owner, and lets go of no owner before its dependents.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{MEMORY, Outcome, ensure};

const COLLECTOR: &str = "generic-garbage-collector";
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

struct Known {
    meta: ObjectMeta,
    /// When each of its owners became one.
    since: BTreeMap<String, Duration>,
}

/// What there is, by uid.
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
    /// Looks at an object's next state, or at its last one.
    pub fn look(&mut self, meta: ObjectMeta, deleted: bool, by: &str, now: Duration) -> Outcome {
        let uid = meta.uid.clone().unwrap_or_default();
        let before = self.0.get(&uid);
        if by == COLLECTOR
            && let Some(before) = before
        {
            if is_going(&meta) && !is_going(&before.meta) {
                self.nobody_owns(&before.meta)?;
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

    /// An owner that waits for its dependents holds none of them.
    fn nobody_owns(&self, meta: &ObjectMeta) -> Outcome {
        let lives = |o: &&OwnerReference| {
            let owner = self.0.get(&o.uid).map(|k| &k.meta);
            owner.is_some_and(|m| !(is_going(m) && has_finalizer(m, FOREGROUND)))
        };
        let owner = owners(meta).find(lives);
        ensure(owner.is_none(), || format!("{:?} was collected, and its owner {owner:?} is there", meta.name))
    }

    /// The collector cannot have heard yet of what became a dependent a moment ago.
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
