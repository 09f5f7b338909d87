//! Changes to the snapshot: adds, updates and removes nodes and pods, and keeps the indexes and the log up to date.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use knarr_api::kind::Kind;

use super::log::Change;
use super::row::{NodeRow, PlacedPod};
use super::{Column, ColumnIdx, Counted, NodeIdx, Snapshot};

/// What an update of a node affects.
#[derive(PartialEq, Eq)]
enum Touched {
    Nothing,
    Row,
    Structure,
}

impl Snapshot {
    /// Adds a node, or takes over its new state. Its pods are kept.
    pub fn set_node(&mut self, node: Arc<Node>) -> NodeIdx {
        let Some(at) = self.find(node.name()) else { return self.add_node(node) };
        let touched = touched(&self.rows[at as usize], &node);
        let old_labels = self.rows[at as usize].node.metadata.labels.clone().unwrap_or_default();
        let old_images = std::mem::take(&mut self.rows[at as usize].images);
        self.rows[at as usize].set_node(node);
        if touched == Touched::Structure {
            self.set_labels(at, &old_labels);
        }
        self.set_images(at, &old_images);
        match touched {
            Touched::Nothing => {}
            Touched::Row => self.log.push(Change::Node(at)),
            Touched::Structure => self.log.push(Change::Structure(at)),
        }
        at
    }

    fn add_node(&mut self, node: Arc<Node>) -> NodeIdx {
        let name: Arc<str> = Arc::from(node.name());
        let row = NodeRow::of(node);
        let at = match self.free.pop() {
            Some(at) => {
                self.rows[at as usize] = row;
                at
            }
            None => {
                self.rows.push(row);
                (self.rows.len() - 1) as NodeIdx
            }
        };
        self.by_name.insert(name, at);
        self.live.set(at, true);
        self.count += 1;
        self.set_labels(at, &BTreeMap::new());
        self.set_images(at, &BTreeMap::new());
        self.log.push(Change::Structure(at));
        at
    }

    /// Removes a node from the table. Returns the pods that were on it.
    pub fn remove_node(&mut self, name: &str) -> Vec<Arc<PlacedPod>> {
        let Some(at) = self.by_name.remove(name) else { return Vec::new() };
        let pods = self.rows[at as usize].pods.clone();
        pods.iter().for_each(|pod| self.count_pod(at, pod, -1));
        let old = std::mem::take(&mut self.rows[at as usize]);
        self.set_labels(at, &old.node.metadata.labels.clone().unwrap_or_default());
        self.set_images(at, &old.images);
        self.live.set(at, false);
        self.count -= 1;
        self.free.push(at);
        self.log.push(Change::Structure(at));
        pods
    }

    /// Adds a pod to a node.
    pub fn add_pod(&mut self, at: NodeIdx, pod: Arc<PlacedPod>) {
        self.count_pod(at, &pod, 1);
        self.rows[at as usize].add_pod(pod);
    }

    /// Removes a pod from a node and returns it.
    pub fn remove_pod(&mut self, at: NodeIdx, uid: &str) -> Option<Arc<PlacedPod>> {
        let pod = self.rows[at as usize].remove_pod(uid)?;
        self.count_pod(at, &pod, -1);
        Some(pod)
    }

    fn count_pod(&mut self, node: NodeIdx, pod: &PlacedPod, delta: i32) {
        let footprint = &pod.footprint;
        let counted = self
            .counted
            .entry(footprint.id)
            .or_insert_with(|| Counted { footprint: Arc::clone(footprint), by_node: BTreeMap::new() });
        let count = counted.by_node.entry(node).or_insert(0);
        *count = count.saturating_add_signed(delta);
        if *count == 0 {
            counted.by_node.remove(&node);
        }
        let gone = counted.by_node.is_empty();
        if gone {
            self.counted.remove(&footprint.id);
        }
        if !footprint.terms.is_empty() {
            if gone {
                self.with_terms.remove(&footprint.id);
            } else {
                self.with_terms.insert(footprint.id);
            }
        }
        self.log.push(Change::Pod { node, footprint: Arc::clone(footprint), delta });
    }

    /// Updates the columns to the row's labels.
    fn set_labels(&mut self, at: NodeIdx, old: &BTreeMap<String, String>) {
        let node = Arc::clone(&self.rows[at as usize].node);
        let empty = BTreeMap::new();
        let new = node.metadata.labels.as_ref().unwrap_or(&empty);
        for key in old.keys().filter(|key| !new.contains_key(*key)) {
            let Some(idx) = self.column_of.get(key.as_str()).copied() else { continue };
            self.columns[idx as usize].set(at, None);
            if self.columns[idx as usize].is_unused() {
                self.column_of.remove(key.as_str());
                self.columns[idx as usize] = Column::default();
                self.free_columns.push(idx);
            }
        }
        for (key, value) in new {
            let idx = self.column_for(key);
            self.columns[idx as usize].set(at, Some(value));
        }
    }

    fn column_for(&mut self, key: &str) -> ColumnIdx {
        if let Some(idx) = self.column_of.get(key) {
            return *idx;
        }
        let idx = self.free_columns.pop().unwrap_or_else(|| {
            self.columns.push(Column::default());
            (self.columns.len() - 1) as ColumnIdx
        });
        self.column_of.insert(key.into(), idx);
        idx
    }

    /// Updates the index of images to the row's images.
    fn set_images(&mut self, at: NodeIdx, old: &BTreeMap<Box<str>, i64>) {
        let new = &self.rows[at as usize].images;
        if old == new {
            return;
        }
        self.image_version += 1;
        for name in old.keys().filter(|name| !new.contains_key(*name)) {
            if let Some(image) = self.images.get_mut(name) {
                image.sizes.remove(&at);
                image.version = self.image_version;
                if image.sizes.is_empty() {
                    self.images.remove(name);
                }
            }
        }
        for (name, size) in new {
            if old.get(name) != Some(size) {
                let image = self.images.entry(name.clone()).or_default();
                image.sizes.insert(at, *size);
                image.version = self.image_version;
            }
        }
    }
}

fn touched(row: &NodeRow, new: &Node) -> Touched {
    let (old, spec) = (&row.node, |n: &Node| n.spec.clone().unwrap_or_default());
    let (old_spec, new_spec) = (spec(old), spec(new));
    if old.metadata.labels != new.metadata.labels
        || old_spec.taints != new_spec.taints
        || old_spec.unschedulable != new_spec.unschedulable
    {
        return Touched::Structure;
    }
    let status = |n: &Node| n.status.as_ref().map(|s| (s.allocatable.clone(), s.declared_features.clone()));
    if status(old) != status(new) || old.metadata.annotations != new.metadata.annotations {
        return Touched::Row;
    }
    Touched::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::PodInfo;
    use crate::plugins::testing::{PodBuilder, node, pod};

    fn placed(pod: PodBuilder) -> Arc<PlacedPod> {
        Arc::new(PodInfo::new(&pod.build()).placed())
    }

    #[test]
    fn indexes_follow_nodes_and_pods() {
        let mut cluster = Snapshot::default();
        for name in ["a", "b", "c"] {
            cluster.set_node(node(name).label("zone", name).image("web", 10).into());
        }
        let b = cluster.find("b").unwrap();
        cluster.add_pod(b, placed(pod("p").cpu("1")));
        cluster.add_pod(b, placed(pod("q").cpu("1")));
        assert_eq!(cluster.row(b).requested.milli_cpu, 2000);
        assert_eq!(cluster.counted().map(|c| c.by_node[&b]).sum::<u32>(), 2);
        assert_eq!(cluster.image("web").unwrap().sizes.len(), 3);
        let pods = cluster.remove_node("b");
        assert_eq!((pods.len(), cluster.len(), cluster.counted().count()), (2, 2, 0));
        assert_eq!(cluster.column("zone").unwrap().domain("b"), None);
        assert_eq!(cluster.set_node(node("d").into()), b, "the index is reused");
        assert_eq!(cluster.row(b).requested.milli_cpu, 0);
    }

    #[test]
    fn only_what_plugins_look_at_is_logged() {
        let mut cluster = Snapshot::default();
        cluster.set_node(node("a").into());
        let position = cluster.log().position();
        cluster.set_node(node("a").into());
        assert_eq!(cluster.log().position(), position);
        cluster.set_node(node("a").capacity("9", "9Gi", 9).into());
        cluster.set_node(node("a").capacity("9", "9Gi", 9).label("x", "y").into());
        let changes: Vec<_> = cluster.log().since(position).unwrap().collect();
        assert!(matches!(changes[..], [Change::Node(0), Change::Structure(0)]));
    }
}
