//! The scheduler's view of the cluster: the state that informers report, plus pods that are assumed on their node.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;

use crate::framework::PodInfo;
use crate::groups::Groups;
use crate::snapshot::{PlacedPod, Snapshot};

struct Placed {
    pod: Arc<PlacedPod>,
    node: Arc<str>,
    /// The informer has not shown the pod as bound yet.
    assumed: bool,
}

/// Nodes and the pods on them.
#[derive(Default)]
pub struct Cache {
    snapshot: Snapshot,
    pods: HashMap<Box<str>, Placed>,
    /// Pods whose node does not exist (yet), by node name.
    homeless: BTreeMap<Box<str>, Vec<Arc<PlacedPod>>>,
    /// Also updated with the pods of pod groups, where gang scheduling is on.
    groups: Option<Arc<Groups>>,
}

impl Cache {
    /// Returns a cache that also keeps the pod groups up to date.
    pub fn with_groups(groups: Arc<Groups>) -> Self {
        Self { groups: Some(groups), ..Self::default() }
    }

    /// The pod groups, where gang scheduling is on.
    pub fn groups(&self) -> Option<&Arc<Groups>> {
        self.groups.as_ref()
    }

    /// The nodes and pods, with assumed pods included.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Adds a node, or takes over its new state. Pods that were bound to it before it was known are added to it.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name: Box<str> = node.name().into();
        let at = self.snapshot.set_node(node);
        for pod in self.homeless.remove(&name).into_iter().flatten() {
            self.snapshot.add_pod(at, pod);
        }
    }

    /// Removes a node. Its pods are kept, in case the node returns.
    pub fn remove_node(&mut self, name: &str) {
        let pods = self.snapshot.remove_node(name);
        if !pods.is_empty() {
            self.homeless.insert(name.into(), pods);
        }
    }

    /// Takes over a namespace's labels; `None` removes the namespace.
    pub fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        self.snapshot.set_namespace(name, labels);
    }

    /// Records the node to which a waiting pod is nominated; `None` clears the nomination.
    pub fn nominate(&mut self, pod: &PodInfo, node: Option<&str>) {
        if node.is_some() || !self.snapshot.nominated().is_empty() {
            self.snapshot.nominate(&Arc::new(pod.placed()), node);
        }
    }

    /// Clears the nominations of pods with lower priority to the node, so that they search for another one. Returns
    /// them.
    pub fn clear_lower_nominations(&mut self, pod: &PodInfo, node: &str) -> Vec<Arc<PlacedPod>> {
        let here = self.snapshot.nominated().get(node).into_iter().flatten();
        let lower: Vec<_> = here.filter(|p| p.footprint.priority < pod.priority()).cloned().collect();
        lower.iter().for_each(|p| self.snapshot.nominate(p, None));
        lower
    }

    /// Counts the pod on the node before the binding is written.
    pub fn assume(&mut self, pod: &PodInfo, node: &str) {
        self.place(pod.placed(), node, true);
        if let Some(groups) = &self.groups {
            groups.assume(pod.uid());
        }
    }

    /// Takes back an assumption, for example when the binding failed.
    pub fn forget(&mut self, uid: &str) {
        if self.is_assumed(uid) {
            self.take_off(uid);
            if let Some(groups) = &self.groups {
                groups.forget(uid);
            }
        }
    }

    /// Returns whether the pod is assumed on a node, and not yet seen there.
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|p| p.assumed)
    }

    /// Takes over a bound pod as the informer shows it. Pods in a terminal phase use no resources.
    pub fn set_pod(&mut self, pod: &Pod) {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("");
        if node.is_empty() || is_terminal(pod) {
            self.remove_pod(pod.uid());
        } else {
            self.place(PlacedPod::of(pod), node, false);
            if let Some(groups) = &self.groups {
                groups.set_pod(pod);
            }
        }
    }

    /// Records a waiting pod for its pod group.
    pub fn set_waiting(&self, pod: &Pod) {
        if let Some(groups) = &self.groups {
            groups.set_pod(pod);
        }
    }

    /// Removes a pod that was deleted or has ended.
    pub fn remove_pod(&mut self, uid: &str) {
        self.take_off(uid);
        if let Some(groups) = &self.groups {
            groups.remove_pod(uid);
        }
    }

    /// Removes the pod from its node; it stays a member of its group.
    pub fn take_off(&mut self, uid: &str) {
        let Some(placed) = self.pods.remove(uid) else { return };
        if let Some(at) = self.snapshot.find(&placed.node) {
            self.snapshot.remove_pod(at, uid);
        } else if let Some(pods) = self.homeless.get_mut(&*placed.node) {
            pods.retain(|p| *p.uid != *uid);
            if pods.is_empty() {
                self.homeless.remove(&*placed.node);
            }
        }
    }

    fn place(&mut self, pod: PlacedPod, node: &str, assumed: bool) {
        if let Some(known) = self.pods.get_mut(&pod.uid) {
            let old = &known.pod;
            let same = old.footprint.id == pod.footprint.id
                && old.started_seconds == pod.started_seconds
                && old.preempted == pod.preempted;
            if *known.node == *node && same {
                known.assumed = assumed;
                return;
            }
            let uid = pod.uid.clone();
            self.take_off(&uid);
        }
        let (uid, pod) = (pod.uid.clone(), Arc::new(pod));
        match self.snapshot.find(node) {
            Some(at) => self.snapshot.add_pod(at, Arc::clone(&pod)),
            None => self.homeless.entry(node.into()).or_default().push(Arc::clone(&pod)),
        }
        self.pods.insert(uid, Placed { pod, node: Arc::from(node), assumed });
    }

    /// The numbers of nodes, pods and assumed pods, labelled as in the metrics.
    pub fn sizes(&self) -> [(&'static str, usize); 3] {
        let assumed = self.pods.values().filter(|p| p.assumed).count();
        [("nodes", self.snapshot.len()), ("pods", self.pods.len()), ("assumed_pods", assumed)]
    }

    /// The pod as it counts in the snapshot.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PlacedPod>> {
        self.pods.get(uid).map(|p| &p.pod)
    }
}

/// Returns whether the pod's phase is Succeeded or Failed.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    fn requested(cache: &Cache, name: &str) -> i64 {
        cache.snapshot().named(name).unwrap().requested.milli_cpu
    }

    #[test]
    fn an_assumed_pod_counts_once_and_can_be_taken_back() {
        let mut cache = Cache::default();
        cache.set_node(node("n").into());
        let info = PodInfo::new(&pod("a").cpu("100m").build());
        cache.assume(&info, "n");
        assert_eq!(requested(&cache, "n"), 100);
        let position = cache.snapshot().log().position();
        cache.set_pod(&pod("a").cpu("100m").on("n").build());
        assert_eq!(requested(&cache, "n"), 100);
        assert_eq!(cache.snapshot().log().position(), position, "confirming an assumption changes nothing");
        cache.forget("a");
        assert_eq!(requested(&cache, "n"), 100, "a confirmed pod is no longer assumed");
        cache.remove_pod("a");
        assert_eq!(requested(&cache, "n"), 0);
    }

    #[test]
    fn room_made_for_an_important_pod_is_no_room_for_lesser_ones() {
        let mut cache = Cache::default();
        let info = |name: &str, priority| PodInfo::new(&pod(name).priority(priority).build());
        for (name, priority, node) in [("low", 1, "n"), ("same", 5, "n"), ("elsewhere", 1, "m")] {
            cache.nominate(&info(name, priority), Some(node));
        }
        let freed = cache.clear_lower_nominations(&info("new", 5), "n");
        assert_eq!(freed.iter().map(|p| &*p.name).collect::<Vec<_>>(), ["low"]);
        let left =
            |node: &str| cache.snapshot().nominated()[node].iter().map(|p| p.name.to_string()).collect();
        let (here, there): (Vec<_>, Vec<_>) = (left("n"), left("m"));
        assert_eq!((here, there), (vec!["same".to_owned()], vec!["elsewhere".to_owned()]));
    }

    #[test]
    fn pods_that_come_before_their_node_are_counted_when_it_appears() {
        let mut cache = Cache::default();
        cache.set_pod(&pod("a").cpu("1").on("late").build());
        cache.set_node(node("late").into());
        assert_eq!(requested(&cache, "late"), 1000);
        cache.remove_node("late");
        cache.set_node(node("late").into());
        assert_eq!(requested(&cache, "late"), 1000);
        cache.remove_node("late");
        cache.remove_pod("a");
        cache.set_node(node("late").into());
        assert_eq!(requested(&cache, "late"), 0);
    }

    #[test]
    fn what_a_pod_counts_as_follows_its_changes() {
        let mut cache = Cache::default();
        cache.set_node(node("n").into());
        cache.set_pod(&pod("a").cpu("1").on("n").build());
        cache.set_pod(&pod("a").cpu("2").on("n").build());
        assert_eq!(requested(&cache, "n"), 2000);
        let mut done = pod("a").cpu("2").on("n").build();
        done.status.get_or_insert_default().phase = Some("Succeeded".into());
        cache.set_pod(&done);
        assert_eq!(requested(&cache, "n"), 0);
    }
}
