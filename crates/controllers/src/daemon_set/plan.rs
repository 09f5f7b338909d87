//! What a DaemonSet must create and delete, to run on every node and to roll to a new template: pure functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::kind::Kind;

use super::nodes::{Fit, fit, node_of};
use crate::support::pod_state::{has_ended, is_available, is_ready};

pub const GENERATION_LABEL: &str = "pod-template-generation";
pub const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
/// The label of pods and revisions with the template's hash.
pub const HASH_LABEL: &str = "controller-revision-hash";

/// A set, its nodes, and its pods.
pub struct View<'v> {
    pub set: &'v DaemonSet,
    /// The set's pod, to match against nodes.
    pub pod: &'v Pod,
    pub nodes: &'v [Arc<Node>],
    pub pods: BTreeMap<String, Vec<&'v Pod>>,
    /// The hash of the current template.
    pub hash: &'v str,
    pub now: Timestamp,
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Surplus,
    Failed,
    Succeeded,
}

/// The pods to create and delete.
#[derive(Debug, Default, PartialEq)]
pub struct Work<'v> {
    /// The names of nodes that get a pod.
    pub create: Vec<String>,
    pub delete: Vec<(&'v Pod, Why)>,
}

/// Groups the pods by the node they are bound to or meant for. Leaves out pods for no particular node, and pods that
/// have ended and are being deleted.
pub fn by_node(pods: &[Arc<Pod>]) -> BTreeMap<String, Vec<&Pod>> {
    let mut map: BTreeMap<String, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !(has_ended(pod) && is_terminating(pod))) {
        if let Some(node) = node_of(pod) {
            map.entry(node.to_owned()).or_default().push(pod);
        }
    }
    map
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty())
}

/// Sorts bound pods first, then older ones first.
fn oldest_first(pods: &mut [&Pod]) {
    let created = |p: &Pod| p.metadata.creation_timestamp.as_ref().map(|t| t.0);
    pods.sort_by(|a, b| (!is_bound(a), created(a), a.name()).cmp(&(!is_bound(b), created(b), b.name())));
}

fn resolve(value: Option<&IntOrString>, of: i32, without: i32) -> i32 {
    match value {
        None => without,
        Some(IntOrString::Int(n)) => *n,
        Some(IntOrString::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i32::try_from((percent * i64::from(of) + 99).div_euclid(100)).unwrap_or(i32::MAX)
        }
    }
}

impl<'v> View<'v> {
    fn min_ready_seconds(&self) -> i32 {
        self.set.spec.min_ready_seconds.unwrap_or(0)
    }

    fn available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready_seconds(), self.now)
    }

    fn is_new(&self, pod: &Pod) -> bool {
        pod.metadata.labels.as_ref().and_then(|l| l.get(HASH_LABEL)).is_some_and(|h| h == self.hash)
    }

    /// Returns whether the pod has the current template: by its hash, or by the template generation that controllers
    /// with other revision hashes have recorded too.
    fn is_updated(&self, pod: &Pod) -> bool {
        let generation = self.set.metadata.annotations.as_ref().and_then(|a| a.get(GENERATION_ANNOTATION));
        let noted = pod.metadata.labels.as_ref().and_then(|l| l.get(GENERATION_LABEL));
        self.is_new(pod) || (generation.is_some() && generation == noted)
    }

    fn on(&self, node: &Node) -> &[&'v Pod] {
        self.pods.get(node.name()).map_or(&[], Vec::as_slice)
    }

    fn desired(&self) -> i32 {
        self.nodes.iter().filter(|n| fit(self.pod, n) == Fit::Run).count() as i32
    }

    /// Returns whether the update strategy is RollingUpdate.
    pub fn is_rolling(&self) -> bool {
        let strategy = self.set.spec.update_strategy.as_ref();
        strategy.and_then(|s| s.type_.as_deref()).unwrap_or("RollingUpdate") == "RollingUpdate"
    }

    /// Returns maxSurge and maxUnavailable in pods; never are both 0.
    fn limits(&self) -> (i32, i32) {
        if !self.is_rolling() {
            return (0, 0);
        }
        let rolling = self.set.spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
        let desired = self.desired();
        let surge = resolve(rolling.and_then(|r| r.max_surge.as_ref()), desired, 0);
        let unavailable = resolve(rolling.and_then(|r| r.max_unavailable.as_ref()), desired, 1);
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
    }

    /// Plans one pod on each eligible node and none elsewhere; ended pods are replaced.
    pub fn manage(&self) -> Work<'v> {
        let mut work = Work::default();
        let surging = self.limits().0 > 0;
        for node in self.nodes {
            let pods = self.on(node);
            match fit(self.pod, node) {
                Fit::Run if pods.is_empty() => work.create.push(node.name().to_owned()),
                Fit::Neither => work.delete.extend(alive(pods).map(|p| (p, Why::Surplus))),
                fit => self.keep_one(node, pods, fit, surging, &mut work),
            }
        }
        self.leave_lost_nodes(&mut work);
        work
    }

    fn keep_one(&self, node: &Node, pods: &[&'v Pod], fit: Fit, surging: bool, work: &mut Work<'v>) {
        let mut running = Vec::new();
        for pod in alive(pods) {
            match phase(pod) {
                "Failed" => work.delete.push((pod, Why::Failed)),
                "Succeeded" => work.delete.push((pod, Why::Succeeded)),
                _ => running.push(pod),
            }
        }
        oldest_first(&mut running);
        if !surging {
            work.delete.extend(running.into_iter().skip(1).map(|p| (p, Why::Surplus)));
            return;
        }
        // With surge, a terminating pod is replaced at once.
        let ended = pods.iter().all(|p| is_terminating(p));
        if running.is_empty() && ended && fit == Fit::Run {
            work.create.push(node.name().to_owned());
        }
        let (mut newest, mut oldest): (Option<&Pod>, Option<&Pod>) = (None, None);
        for pod in running {
            let place = if self.is_new(pod) { &mut newest } else { &mut oldest };
            match place {
                Some(_) => work.delete.push((pod, Why::Surplus)),
                None => *place = Some(pod),
            }
        }
        if let (Some(new), Some(old)) = (newest, oldest)
            && (!is_ready(old) || self.available(new))
        {
            work.delete.push((old, Why::Surplus));
        }
    }

    /// Deletes pods that wait for a node which no longer exists: they would never start.
    fn leave_lost_nodes(&self, work: &mut Work<'v>) {
        let known = |name: &str| self.nodes.iter().any(|n| n.name() == name);
        for pods in self.pods.iter().filter(|(node, _)| !known(node)).map(|(_, pods)| pods) {
            let unbound = alive(pods).filter(|p| !is_bound(p));
            work.delete.extend(unbound.map(|p| (p, Why::Surplus)));
        }
    }

    /// Plans one step of a rolling update: old pods to delete and, with surge, nodes that get a new pod beside the
    /// old one.
    pub fn roll(&self) -> Work<'v> {
        let (surge, unavailable) = self.limits();
        if surge > 0 { self.roll_with_surge(surge) } else { self.roll_in_place(unavailable) }
    }

    fn roll_in_place(&self, max_unavailable: i32) -> Work<'v> {
        let (mut unavailable, mut broken, mut candidates) = (0, Vec::new(), Vec::new());
        for node in self.nodes.iter().filter(|n| !self.on(n).is_empty() || fit(self.pod, n) == Fit::Run) {
            match self.pair(self.on(node)) {
                Some((None, Some(old))) if self.available(old) => candidates.push(old),
                // The old pod is unavailable: replacing it costs no availability.
                Some((None, Some(old))) => {
                    broken.push(old);
                    unavailable += 1;
                }
                Some((Some(new), None)) if self.available(new) => {}
                _ => unavailable += 1,
            }
        }
        let room = usize::try_from(max_unavailable - unavailable).unwrap_or(0);
        let chosen = broken.into_iter().chain(candidates.into_iter().take(room));
        Work { create: Vec::new(), delete: chosen.map(|p| (p, Why::Surplus)).collect() }
    }

    fn roll_with_surge(&self, max_surge: i32) -> Work<'v> {
        let (mut surging, mut free, mut candidates, mut delete) = (0, Vec::new(), Vec::new(), Vec::new());
        // Old pods on nodes that get no new one are deleted if enough others are available.
        let (mut available, mut left) = (0, Vec::new());
        for node in self.nodes.iter().filter(|n| !self.on(n).is_empty() || fit(self.pod, n) == Fit::Run) {
            let pair = self.pair(self.on(node));
            let counted = pair.and_then(|(new, old)| old.or(new));
            available += i32::from(counted.is_some_and(|pod| self.available(pod)));
            let gets_one = fit(self.pod, node) == Fit::Run;
            match pair {
                None => surging += 1,
                Some((_, None)) => {}
                Some((None, Some(old))) if !gets_one && self.available(old) => left.push((old, Why::Surplus)),
                Some((None, Some(old))) if !gets_one => delete.push((old, Why::Surplus)),
                Some((None, Some(old))) if self.available(old) => candidates.push(node.name().to_owned()),
                // The old pod is unavailable: its replacement does not count as surge.
                Some((None, Some(_))) => free.push(node.name().to_owned()),
                Some((Some(new), Some(old))) if self.available(new) => delete.push((old, Why::Surplus)),
                Some((Some(_), Some(_))) => surging += 1,
            }
        }
        let spare = usize::try_from(available - self.desired()).unwrap_or(0);
        delete.extend(left.into_iter().take(spare));
        let room = usize::try_from(max_surge - surging).unwrap_or(0);
        free.extend(candidates.into_iter().take(room));
        Work { create: free, delete }
    }

    /// Returns the live pod of the current template and that of an earlier one; `None` if there are several of
    /// either.
    #[allow(clippy::type_complexity, reason = "two pods, either of which may be missing, or too many")]
    fn pair(&self, pods: &[&'v Pod]) -> Option<(Option<&'v Pod>, Option<&'v Pod>)> {
        let (mut new, mut old) = (None, None);
        for pod in alive(pods) {
            let place = if self.is_updated(pod) { &mut new } else { &mut old };
            if place.replace(pod).is_some() {
                return None;
            }
        }
        Some((new, old))
    }

    /// Computes the status from nodes and pods.
    pub fn status(&self, collisions: i32) -> DaemonSetStatus {
        let mut status =
            DaemonSetStatus { observed_generation: self.set.metadata.generation, ..Default::default() };
        let (mut updated, mut available) = (0, 0);
        for node in self.nodes {
            let mut pods = self.on(node).to_vec();
            if fit(self.pod, node) != Fit::Run {
                status.number_misscheduled += i32::from(!pods.is_empty());
                continue;
            }
            status.desired_number_scheduled += 1;
            oldest_first(&mut pods);
            let Some(pod) = pods.first() else { continue };
            status.current_number_scheduled += 1;
            status.number_ready += i32::from(is_ready(pod));
            available += i32::from(self.available(pod));
            updated += i32::from(self.is_updated(pod));
        }
        let shown = |n: i32| (n > 0).then_some(n);
        status.updated_number_scheduled = shown(updated);
        status.number_available = shown(available);
        status.number_unavailable = shown(status.desired_number_scheduled - available);
        let before = self.set.status.as_ref();
        status.collision_count = shown(collisions).or(before.and_then(|s| s.collision_count));
        status.conditions = before.and_then(|s| s.conditions.clone());
        status
    }
}

fn alive<'a, 'v>(pods: &'a [&'v Pod]) -> impl Iterator<Item = &'v Pod> + use<'a, 'v> {
    pods.iter().copied().filter(|p| !is_terminating(p))
}
