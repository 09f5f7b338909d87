//! ReplicaSets and the Deployment: how many pods they may have at most, and at least.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use knarr_api::kind::Kind;

use super::{MEMORY, Outcome, Pods, controller, count, ensure, owner};
use crate::node::{app, is_active, is_ready};
use crate::objects::{BOUNDED, DOOMED, SURGE, UNAVAILABLE};

/// A number with its recent values.
#[derive(Default)]
pub struct Recent(Vec<(Duration, i32)>);

impl Recent {
    pub fn note(&mut self, now: Duration, value: i32) {
        // The value that was valid at the beginning of the period is kept for the whole period.
        let old = self.0.iter().rposition(|(at, _)| *at + MEMORY < now).unwrap_or(0);
        self.0.drain(..old);
        if self.0.last().is_none_or(|(_, last)| *last != value) {
            self.0.push((now, value));
        }
    }

    fn lately(&self, now: Duration) -> impl Iterator<Item = i32> {
        let from = self.0.iter().rposition(|(at, _)| *at + MEMORY < now).unwrap_or(0);
        self.0[from..].iter().map(|(_, v)| *v)
    }

    pub fn most(&self, now: Duration) -> i32 {
        self.lately(now).max().unwrap_or(0)
    }

    pub fn least(&self, now: Duration) -> i32 {
        self.lately(now).min().unwrap_or(0)
    }
}

struct Set {
    object: ReplicaSet,
    wanted: Recent,
    /// Whether it had all its pods since it last grew.
    is_full: bool,
}

#[derive(Default)]
pub struct Sets {
    by_uid: BTreeMap<String, Set>,
    /// Uid and name of the Deployments that exist and are not being deleted.
    deployments: BTreeMap<String, String>,
    web: Recent,
    /// The highest number of the Deployment's ready pods since it last grew.
    floor: i32,
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

impl Sets {
    pub fn deployment(&mut self, deployment: &Deployment, deleted: bool, now: Duration) {
        let (uid, name) = (deployment.uid().to_owned(), deployment.name().to_owned());
        if deleted || deployment.metadata.deletion_timestamp.is_some() {
            self.deployments.remove(&uid);
            return;
        }
        if name == "web" {
            let wanted = deployment.spec.replicas.unwrap_or(1);
            self.web.note(now, wanted);
            self.floor = self.floor.min(wanted);
        }
        self.deployments.insert(uid, name);
    }

    pub fn replica_set(
        &mut self,
        object: &Arc<ReplicaSet>,
        deleted: bool,
        now: Duration,
        pods: &Pods,
    ) -> Outcome {
        let uid = object.uid().to_owned();
        let owner = controller(&object.metadata).and_then(|o| self.deployments.get(&o.uid)).cloned();
        if deleted {
            self.by_uid.remove(&uid);
            let lost = owner.is_some() && size(object) > 0 && object.namespace() != DOOMED;
            return ensure(!lost, || {
                format!(
                    "ReplicaSet {} of {} pods is gone, and its Deployment is not",
                    object.name(),
                    size(object)
                )
            });
        }
        let wanted = size(object);
        let fresh = || Set { object: ReplicaSet::clone(object), wanted: Recent::default(), is_full: false };
        let set = self.by_uid.entry(uid.clone()).or_insert_with(fresh);
        set.is_full &= wanted <= size(&set.object);
        set.object = ReplicaSet::clone(object);
        set.wanted.note(now, wanted);
        if owner.as_deref() == Some("web") {
            self.rollout(now)?;
        }
        // A set that shrinks to the number of pods that it has is full.
        self.pods(&uid, pods, now, false)
    }

    /// Checks that the sets together never ask for more pods than wanted plus the surge. The pods themselves
    /// may be more, until a shrinking set has deleted its pods: upstream also bounds only the replicas.
    fn rollout(&self, now: Duration) -> Outcome {
        let of_web = |s: &&Set| {
            let owner = controller(&s.object.metadata).and_then(|o| self.deployments.get(&o.uid));
            owner.is_some_and(|name| name == "web")
        };
        let asked: i32 = self.by_uid.values().filter(of_web).map(|s| size(&s.object)).sum();
        let most = self.web.most(now) + SURGE;
        ensure(asked <= most, || format!("the Deployment's sets ask for {asked} pods, {most} at most"))
    }

    /// Checks that a set has no more pods than it asked for recently; and no fewer, once it had them, if no
    /// other component removes any.
    pub fn pods(&mut self, uid: &str, pods: &Pods, now: Duration, keeps_all: bool) -> Outcome {
        let Some(set) = self.by_uid.get_mut(uid) else { return Ok(()) };
        let active = count(pods, |p| owner(p) == uid && is_active(p));
        let (least, most) = (set.wanted.least(now), set.wanted.most(now));
        let name = set.object.name();
        ensure(active <= most, || format!("{active} pods of ReplicaSet {name}, {most} wanted"))?;
        set.is_full |= active >= size(&set.object);
        let left_alone = !matches!(name, "guarded" | BOUNDED) && set.object.namespace() != DOOMED;
        let disturbed = !keeps_all || set.object.metadata.deletion_timestamp.is_some() || !left_alone;
        ensure(disturbed || !set.is_full || active >= least, || {
            format!("{active} pods of ReplicaSet {name}, {least} wanted")
        })
    }

    /// Checks that, once the pods were ready, a rollout never leaves fewer ready pods than it may.
    pub fn availability(&mut self, pods: &Pods, now: Duration) -> Outcome {
        let ready = count(pods, |p| app(p) == "web" && is_ready(p));
        let wanted = self.web.lately(now).last().unwrap_or(0);
        if ready >= wanted {
            self.floor = wanted;
        }
        let least = self.floor.min(self.web.least(now)) - UNAVAILABLE;
        ensure(ready >= least, || format!("{ready} ready pods of the Deployment, {least} at least"))
    }
}
