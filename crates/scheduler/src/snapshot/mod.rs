//! The scheduler's picture of the cluster: nodes in a dense table, their labels in columns, pods counted by footprint,
//! and a log of changes from which whoever keeps something computed catches up.

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

/// A node's place in the table: it keeps it while it exists.
pub type NodeIdx = u32;

/// A label's place among the columns.
pub type ColumnIdx = u32;

/// How many pods of one footprint are on which node.
#[derive(Clone)]
pub struct Counted {
    pub footprint: Arc<Footprint>,
    pub by_node: BTreeMap<NodeIdx, u32>,
}

/// Where an image is.
#[derive(Clone, Default)]
pub struct ImageNodes {
    /// Its size in bytes by node.
    pub sizes: BTreeMap<NodeIdx, i64>,
    /// Goes up whenever the image comes to a node or goes.
    pub version: u64,
}

/// Everything that plugins look at. A clone shares nodes and pods with the original and can be scheduled on alone.
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
    /// By image name.
    images: HashMap<Box<str>, ImageNodes>,
    image_version: u64,
    /// By footprint id.
    counted: BTreeMap<u64, Counted>,
    /// The footprints that carry inter-pod (anti-)affinity of their own.
    with_terms: BTreeSet<u64>,
    namespaces: Namespaces,
    /// Waiting pods for which room was made, by node name.
    nominated: BTreeMap<Box<str>, Vec<Arc<PlacedPod>>>,
    log: Log,
}

impl Snapshot {
    /// The row of a node that is in the table.
    pub fn row(&self, node: NodeIdx) -> &NodeRow {
        &self.rows[node as usize]
    }

    pub fn find(&self, name: &str) -> Option<NodeIdx> {
        self.by_name.get(name).copied()
    }

    pub fn named(&self, name: &str) -> Option<&NodeRow> {
        self.find(name).map(|node| self.row(node))
    }

    /// The nodes there are.
    pub fn live(&self) -> &BitSet {
        &self.live
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One more than the largest index in use.
    pub fn bound(&self) -> usize {
        self.rows.len()
    }

    /// A node label over all nodes; `None` when no node has it.
    pub fn column(&self, key: &str) -> Option<&Column> {
        self.columns.get(self.column_idx(key) as usize)
    }

    /// The place of a label's column, good until the structure changes. A label that no node has gets a place too, at
    /// which every node is [`ABSENT`].
    pub fn column_idx(&self, key: &str) -> ColumnIdx {
        self.column_of.get(key).copied().unwrap_or(ColumnIdx::MAX)
    }

    /// The node's value of the label, as a number.
    pub fn domain(&self, column: ColumnIdx, node: NodeIdx) -> Domain {
        self.columns.get(column as usize).map_or(ABSENT, |c| c.of(node))
    }

    /// One more than the largest domain of the column.
    pub fn domain_bound(&self, column: ColumnIdx) -> usize {
        self.columns.get(column as usize).map_or(0, Column::bound)
    }

    /// The nodes that have an image.
    pub fn image(&self, name: &str) -> Option<&ImageNodes> {
        self.images.get(name)
    }

    /// All pods on nodes, by footprint.
    pub fn counted(&self) -> impl Iterator<Item = &Counted> {
        self.counted.values()
    }

    /// The pods on nodes that have (anti-)affinity to other pods, by footprint.
    pub fn counted_with_terms(&self) -> impl Iterator<Item = &Counted> {
        self.with_terms.iter().filter_map(|id| self.counted.get(id))
    }

    /// The labels of the namespaces that are known.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Waiting pods for which room was made, by node name.
    pub fn nominated(&self) -> &BTreeMap<Box<str>, Vec<Arc<PlacedPod>>> {
        &self.nominated
    }

    /// Notes the node that a waiting pod is nominated to; `None` forgets it.
    pub fn nominate(&mut self, pod: &Arc<PlacedPod>, node: Option<&str>) {
        self.nominated.retain(|_, pods| {
            pods.retain(|p| p.uid != pod.uid);
            !pods.is_empty()
        });
        if let Some(node) = node {
            self.nominated.entry(node.into()).or_default().push(Arc::clone(pod));
        }
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Takes over a namespace's labels; `None` forgets it.
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
