//! The scheduler's view of the cluster: nodes in a dense table, their labels in columns, pods counted by footprint, and
//! a log of changes with which derived state is kept up to date.

mod bitset;
mod column;
mod log;
mod nodes;
mod row;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub use bitset::BitSet;
pub use column::{ABSENT, Column, Domain};
pub use log::{Change, Log};
pub use row::{NodeRow, PlacedPod};

use crate::framework::footprint::Footprint;
use crate::framework::terms::Namespaces;

/// The index of a node in the table, which does not change while the node exists.
pub type NodeIdx = u32;

/// The index of a label among the columns.
pub type ColumnIdx = u32;

/// The number of pods with one footprint, by node.
#[derive(Clone)]
pub struct Counted {
    pub footprint: Arc<Footprint>,
    pub by_node: BTreeMap<NodeIdx, u32>,
}

/// The nodes that have an image.
#[derive(Clone, Default)]
pub struct ImageNodes {
    /// The image's size in bytes, by node.
    pub sizes: BTreeMap<NodeIdx, i64>,
    /// Increases whenever the image is added to a node or removed from one.
    pub version: u64,
}

/// Everything that plugins read. A clone shares nodes and pods with the original, and can be changed independently.
#[derive(Clone, Default)]
pub struct Snapshot {
    rows: Vec<NodeRow>,
    live: BitSet,
    count: usize,
    by_name: HashMap<Arc<str>, NodeIdx>,
    free: Vec<NodeIdx>,
    columns: Vec<Column>,
    column_of: HashMap<Box<str>, ColumnIdx>,
    free_columns: Vec<ColumnIdx>,
    /// Nodes by image name.
    images: HashMap<Box<str>, ImageNodes>,
    image_version: u64,
    /// Pods by footprint id.
    counted: BTreeMap<u64, Counted>,
    /// The footprints that have inter-pod affinity or anti-affinity themselves.
    with_terms: BTreeSet<u64>,
    namespaces: Namespaces,
    /// Nominated pods by node name.
    nominated: BTreeMap<Box<str>, Vec<Arc<PlacedPod>>>,
    log: Log,
}

impl Snapshot {
    /// The row of a node that exists.
    pub fn row(&self, node: NodeIdx) -> &NodeRow {
        &self.rows[node as usize]
    }

    /// The index of the node with this name.
    pub fn find(&self, name: &str) -> Option<NodeIdx> {
        self.by_name.get(name).copied()
    }

    /// The row of the node with this name.
    pub fn named(&self, name: &str) -> Option<&NodeRow> {
        self.find(name).map(|node| self.row(node))
    }

    /// The existing nodes.
    pub fn live(&self) -> &BitSet {
        &self.live
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One more than the highest index in use.
    pub fn bound(&self) -> usize {
        self.rows.len()
    }

    /// The column of a node label; `None` when no node has the label.
    pub fn column(&self, key: &str) -> Option<&Column> {
        self.columns.get(self.column_idx(key) as usize)
    }

    /// The index of a label's column, valid until the structure changes. A label that no node has also gets an index,
    /// at which every node is [`ABSENT`].
    pub fn column_idx(&self, key: &str) -> ColumnIdx {
        self.column_of.get(key).copied().unwrap_or(ColumnIdx::MAX)
    }

    /// The domain of the node's label value.
    pub fn domain(&self, column: ColumnIdx, node: NodeIdx) -> Domain {
        self.columns.get(column as usize).map_or(ABSENT, |c| c.of(node))
    }

    /// One more than the highest domain of the column.
    pub fn domain_bound(&self, column: ColumnIdx) -> usize {
        self.columns.get(column as usize).map_or(0, Column::bound)
    }

    /// The nodes that have an image.
    pub fn image(&self, name: &str) -> Option<&ImageNodes> {
        self.images.get(name)
    }

    /// All placed pods, by footprint.
    pub fn counted(&self) -> impl Iterator<Item = &Counted> {
        self.counted.values()
    }

    /// The placed pods that have inter-pod affinity or anti-affinity, by footprint.
    pub fn counted_with_terms(&self) -> impl Iterator<Item = &Counted> {
        self.with_terms.iter().filter_map(|id| self.counted.get(id))
    }

    /// The labels of the known namespaces.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// The nominated pods by node name.
    pub fn nominated(&self) -> &BTreeMap<Box<str>, Vec<Arc<PlacedPod>>> {
        &self.nominated
    }

    /// Records the node that a waiting pod is nominated to; `None` clears the nomination.
    pub fn nominate(&mut self, pod: &Arc<PlacedPod>, node: Option<&str>) {
        self.nominated.retain(|_, pods| {
            pods.retain(|p| p.uid != pod.uid);
            !pods.is_empty()
        });
        if let Some(node) = node {
            self.nominated.entry(node.into()).or_default().push(Arc::clone(pod));
        }
    }

    /// The log of changes.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Takes over a namespace's labels; `None` removes the namespace.
    pub fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        let changed = match labels {
            Some(labels) => {
                self.namespaces.get(name) != Some(&labels) && {
                    self.namespaces.insert(name.into(), labels);
                    true
                }
            }
            None => self.namespaces.remove(name).is_some(),
        };
        if changed {
            self.log.push(Change::Namespace);
        }
    }
}
