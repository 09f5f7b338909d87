//! Invariants that must hold after every single write, of any client.
//!
//! Controllers act on a state that they saw a while ago, as upstream's do. A bound on a number that a user
//! changes is therefore a bound on the numbers of the last [`MEMORY`], which is as long as a controller may
//! not have seen a change.

mod claims;
mod jobs;
mod ordered;
mod owners;
mod rest;
mod sets;
mod taints;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_api::object::Object;
use knarr_client::WatchEvent;
use knarr_testing::FakeApi;
use knarr_testing::fake_api::Change;

use crate::node::{app, is_active, is_ready, node_of};
use crate::objects::{BOUNDED, GUARDED, KEPT, NAMESPACE, QUOTA, SCALED, SCALES};
use claims::Claims;
use jobs::Jobs;
use ordered::Ordered;
use owners::Owners;
use sets::Sets;
use taints::Taints;

pub use rest::at_rest;

/// How long a controller may act on an old state: a stalled watch, a broken one and its back-off.
const MEMORY: Duration = Duration::from_secs(60);

pub type Outcome = Result<(), String>;

/// The pods as the API server has them.
pub type Pods = BTreeMap<ObjectKey, Arc<Pod>>;

#[derive(Default)]
pub struct Checks {
    revision: u64,
    /// Whether machines fail in this run: then pods are removed that no controller has chosen.
    machines_fail: bool,
    pods: Pods,
    sets: Sets,
    jobs: Jobs,
    ordered: Ordered,
    owners: Owners,
    taints: Taints,
    claims: Claims,
    guarded_was_up: bool,
}

pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|o| o.controller == Some(true))
}

fn owner(pod: &Pod) -> &str {
    controller(&pod.metadata).map_or("", |o| o.uid.as_str())
}

pub fn ensure(holds: bool, why: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(why()) }
}

fn count(pods: &Pods, holds: impl Fn(&Pod) -> bool) -> i32 {
    i32::try_from(pods.values().filter(|p| holds(p)).count()).unwrap_or(i32::MAX)
}

/// Returns the node that a DaemonSet's pod is on or meant for.
fn meant_for(pod: &Pod) -> Option<&str> {
    let wanted = || {
        let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
        let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
        let field = required.node_selector_terms.first()?.match_fields.as_ref()?.first()?;
        field.values.as_ref()?.first().map(String::as_str)
    };
    node_of(pod).or_else(wanted)
}

fn typed<K: Kind>(object: &Object) -> Arc<K> {
    object.typed::<K>().expect("stored objects decode")
}

/// Checks that an autoscaler keeps within its bounds.
fn autoscaled(deployment: &Deployment) -> Outcome {
    let (least, most) = SCALES;
    let replicas = deployment.spec.replicas.unwrap_or(1);
    let bounded = deployment.name() != SCALED || (least..=most).contains(&replicas);
    ensure(bounded, || format!("{replicas} replicas of {SCALED}, which has {least} to {most}"))
}

impl Checks {
    pub fn new(machines_fail: bool) -> Self {
        Self { machines_fail, ..Self::default() }
    }

    /// Checks every change since the last call.
    pub fn look(&mut self, api: &FakeApi, now: Duration) -> Outcome {
        for change in api.changes_after(self.revision) {
            self.revision = change.revision;
            self.one(&change, now).map_err(|why| format!("revision {}: {why}", change.revision))?;
        }
        Ok(())
    }

    fn one(&mut self, change: &Change, now: Duration) -> Outcome {
        let (resource, by) = (&change.resource, &*change.by);
        let (object, deleted) = match &change.event {
            WatchEvent::Added(o) | WatchEvent::Modified(o) => (o, false),
            WatchEvent::Deleted(o) => (o, true),
            WatchEvent::Bookmark(_) => return Ok(()),
        };
        if *resource != Event::RESOURCE && *resource != Lease::RESOURCE {
            let meta = object.metadata().map_err(|e| e.to_string())?;
            self.owners.look(meta, deleted, by, now)?;
        }
        if *resource == Pod::RESOURCE {
            self.pod(typed(object), deleted, by, now)
        } else if *resource == ReplicaSet::RESOURCE {
            self.sets.replica_set(&typed(object), deleted, now, &self.pods)
        } else if *resource == Deployment::RESOURCE {
            self.sets.deployment(&typed(object), deleted, now);
            autoscaled(&typed(object))
        } else if *resource == Job::RESOURCE {
            self.jobs.job(&typed(object), deleted)
        } else if *resource == StatefulSet::RESOURCE {
            let set = typed::<StatefulSet>(object);
            let wanted = set.spec.replicas.unwrap_or(1);
            match set.name() {
                claims::SET => self.claims.wants(now, wanted),
                "db" => self.ordered.wants(now, wanted),
                _ => {}
            }
            Ok(())
        } else if *resource == Node::RESOURCE {
            self.taints.node(&typed(object), deleted, now);
            Ok(())
        } else if *resource == PersistentVolumeClaim::RESOURCE && object.namespace() == NAMESPACE {
            self.claims.claim(&typed(object), deleted, now)
        } else {
            ensure(!deleted || *resource != DaemonSet::RESOURCE, || "a DaemonSet was deleted".to_owned())
        }
    }

    fn pod(&mut self, pod: Arc<Pod>, deleted: bool, by: &str, now: Duration) -> Outcome {
        self.jobs.pod(&pod);
        let before = if deleted {
            self.pods.remove(&pod.key())
        } else {
            self.pods.insert(pod.key(), Arc::clone(&pod))
        };
        self.ordered.pod(before.as_deref(), &pod, by, now, &self.pods)?;
        self.taints.pod(before.as_deref(), &pod, by, now)?;
        self.claims.pod(before.as_deref(), &pod, by, now)?;
        self.sets.pods(owner(&pod), &self.pods, now, !self.machines_fail)?;
        self.jobs.pods(&pod, &self.pods)?;
        match app(&pod) {
            "web" if !self.machines_fail => self.sets.availability(&self.pods, now),
            name @ ("agent" | "relay") => self.daemons(name, &pod),
            "guarded" if !self.machines_fail => self.budget(),
            BOUNDED => self.quota(),
            _ => Ok(()),
        }
    }

    /// Checks that a node has one daemon, or two while one replaces the other with a surge.
    fn daemons(&self, name: &str, pod: &Pod) -> Outcome {
        let Some(node) = meant_for(pod) else { return Ok(()) };
        let there = count(&self.pods, |p| app(p) == name && is_active(p) && meant_for(p) == Some(node));
        let most = if name == "relay" { 2 } else { 1 };
        ensure(there <= most, || format!("{there} pods of DaemonSet {name} on {node}"))
    }

    /// Checks that there are no more pods than the quota allows, not counting terminating ones: once their
    /// grace period is over they are no longer charged, whether they still exist or not.
    fn quota(&self) -> Outcome {
        let there = count(&self.pods, |p| p.namespace() == BOUNDED && is_active(p));
        ensure(there <= QUOTA, || format!("{there} pods where the quota has {QUOTA}"))
    }

    fn budget(&mut self) -> Outcome {
        let guarded = count(&self.pods, |p| app(p) == "guarded" && is_ready(p)) as usize;
        self.guarded_was_up |= guarded == GUARDED;
        ensure(!self.guarded_was_up || guarded >= KEPT, || {
            format!("evictions left {guarded} pods where the budget keeps {KEPT}")
        })
    }
}
