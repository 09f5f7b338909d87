//! The scheduler's picture of the nodes: what informers report, plus pods assumed to be on their node already.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::kind::Kind;

use crate::framework::{NodeInfo, PodInfo};

/// All nodes, dense and in a stable order, so that a cycle can walk a part of them and go on from there next time.
#[derive(Default)]
pub struct Nodes {
    list: Vec<NodeInfo>,
    by_name: HashMap<Box<str>, usize>,
    /// On how many nodes an image is.
    image_nodes: BTreeMap<String, usize>,
}

impl Nodes {
    pub fn list(&self) -> &[NodeInfo] {
        &self.list
    }

    pub fn get(&self, name: &str) -> Option<&NodeInfo> {
        self.by_name.get(name).map(|at| &self.list[*at])
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// On how many nodes the image is.
    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.image_nodes.get(image).copied().unwrap_or(0)
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut NodeInfo> {
        self.by_name.get(name).map(|at| &mut self.list[*at])
    }

    fn set(&mut self, node: Arc<Node>) {
        if let Some(at) = self.by_name.get(node.name()).copied() {
            self.count_images(at, false);
            self.list[at].set_node(node);
            self.count_images(at, true);
        } else {
            self.by_name.insert(node.name().into(), self.list.len());
            self.list.push(NodeInfo::new(node));
            self.count_images(self.list.len() - 1, true);
        }
    }

    fn remove(&mut self, name: &str) -> Option<NodeInfo> {
        let at = self.by_name.remove(name)?;
        self.count_images(at, false);
        let removed = self.list.swap_remove(at);
        if let Some(moved) = self.list.get(at) {
            self.by_name.insert(moved.name().into(), at);
        }
        Some(removed)
    }

    fn count_images(&mut self, at: usize, add: bool) {
        for image in self.list[at].images.keys() {
            if add {
                *self.image_nodes.entry(image.clone()).or_insert(0) += 1;
            } else if let Some(n) = self.image_nodes.get_mut(image) {
                *n -= 1;
                if *n == 0 {
                    self.image_nodes.remove(image);
                }
            }
        }
    }
}

struct Placed {
    info: Arc<PodInfo>,
    node: Box<str>,
    /// Not yet seen as bound through the informer.
    assumed: bool,
}

/// Nodes and the pods on them.
#[derive(Default)]
pub struct Cache {
    nodes: Nodes,
    pods: HashMap<Box<str>, Placed>,
    /// Pods whose node is not known (yet), by node name.
    homeless: BTreeMap<Box<str>, BTreeMap<Box<str>, Arc<PodInfo>>>,
}

impl Cache {
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        let name: Box<str> = node.name().into();
        self.nodes.set(node);
        for pod in self.homeless.remove(&name).into_iter().flat_map(BTreeMap::into_values) {
            if let Some(info) = self.nodes.get_mut(&name) {
                info.add_pod(pod);
            }
        }
    }

    /// Forgets a node; its pods are kept in mind should it come back.
    pub fn remove_node(&mut self, name: &str) {
        if let Some(removed) = self.nodes.remove(name)
            && !removed.pods.is_empty()
        {
            self.homeless.insert(name.into(), removed.pods);
        }
    }

    /// Counts the pod on the node before the binding is written.
    pub fn assume(&mut self, pod: &PodInfo, node: &str) {
        self.place(Arc::new(pod.clone()), node, true);
    }

    /// Takes back an assumption whose binding failed.
    pub fn forget(&mut self, uid: &str) {
        if self.pods.get(uid).is_some_and(|p| p.assumed) {
            self.remove_pod(uid);
        }
    }

    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|p| p.assumed)
    }

    /// Takes over a bound pod as the informer shows it. Pods that have ended hold nothing.
    pub fn set_pod(&mut self, pod: Arc<Pod>) {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("").to_owned();
        if node.is_empty() || is_terminal(&pod) {
            self.remove_pod(pod.uid());
        } else {
            self.place(Arc::new(PodInfo::new(pod)), &node, false);
        }
    }

    pub fn remove_pod(&mut self, uid: &str) {
        let Some(placed) = self.pods.remove(uid) else { return };
        if let Some(info) = self.nodes.get_mut(&placed.node) {
            info.remove_pod(uid);
        }
        if let Some(pods) = self.homeless.get_mut(&placed.node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.homeless.remove(&placed.node);
            }
        }
    }

    fn place(&mut self, info: Arc<PodInfo>, node: &str, assumed: bool) {
        let uid: Box<str> = info.uid().into();
        if self.pods.get(&uid).is_some_and(|p| *p.node != *node) {
            self.remove_pod(&uid);
        }
        match self.nodes.get_mut(node) {
            Some(target) => target.add_pod(Arc::clone(&info)),
            None => {
                self.homeless.entry(node.into()).or_default().insert(uid.clone(), Arc::clone(&info));
            }
        }
        self.pods.insert(uid, Placed { info, node: node.into(), assumed });
    }

    /// The pod as it is counted now.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|p| &p.info)
    }
}

/// Succeeded or Failed.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    fn requested(cache: &Cache, name: &str) -> i64 {
        cache.nodes().get(name).unwrap().requested.milli_cpu
    }

    #[test]
    fn an_assumed_pod_counts_once_and_can_be_taken_back() {
        let mut cache = Cache::default();
        cache.set_node(node("n").into());
        let info = PodInfo::new(pod("a").cpu("100m").into());
        cache.assume(&info, "n");
        assert_eq!(requested(&cache, "n"), 100);
        cache.set_pod(pod("a").cpu("100m").on("n").into());
        assert_eq!(requested(&cache, "n"), 100);
        cache.forget("a");
        assert_eq!(requested(&cache, "n"), 100, "what the informer confirmed is no assumption");
        cache.remove_pod("a");
        assert_eq!(requested(&cache, "n"), 0);
    }

    #[test]
    fn pods_that_come_before_their_node_are_counted_when_it_appears() {
        let mut cache = Cache::default();
        cache.set_pod(pod("a").cpu("1").on("late").into());
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
    fn removing_a_node_keeps_the_others_findable() {
        let mut cache = Cache::default();
        for name in ["a", "b", "c"] {
            cache.set_node(node(name).image("web", 10).into());
        }
        assert_eq!(cache.nodes().nodes_with_image("web"), 3);
        cache.remove_node("a");
        assert_eq!(cache.nodes().nodes_with_image("web"), 2);
        assert!(cache.nodes().get("a").is_none());
        assert_eq!(cache.nodes().get("c").unwrap().name(), "c");
    }
}
