//! The cached work of a shape: its filters and scores, with their results for each node. It is updated from the
//! snapshot's log, so that after a pod is placed only the row of its node is evaluated again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::points::{NodeFilter, NodeScore, NodeView, PreFilter, Scope};
use super::profile::Profile;
use super::shape::Shape;
use super::status::{Code, Status};
use crate::metrics::Metrics;
use crate::snapshot::{BitSet, Change, NodeIdx, Snapshot};

/// A filter that is active for a shape.
pub struct ActiveFilter {
    pub plugin: &'static str,
    pub scope: Scope,
    pub filter: Box<dyn NodeFilter>,
}

/// A score that is active for a shape.
pub struct ActiveScore {
    pub plugin: &'static str,
    pub weight: i64,
    pub scope: Scope,
    pub score: Box<dyn NodeScore>,
    /// Raw scores by node, for scores of [`Scope::Row`].
    raw: Vec<i64>,
}

/// The results of all plugins for a shape.
#[derive(Default)]
pub struct Work {
    pub filters: Vec<ActiveFilter>,
    pub scores: Vec<ActiveScore>,
    /// The nodes that are not excluded, where filters named nodes, with those filters.
    pub only: Option<(BitSet, BTreeSet<&'static str>)>,
    /// The plugins that rejected the shape on every node, with the status.
    pub rejected: Option<(BTreeSet<&'static str>, Status)>,
    /// The evaluated nodes that pass all filters of [`Scope::Row`].
    local: BitSet,
    /// The nodes whose rows have not been evaluated, because no search has got that far.
    pending: BitSet,
    /// The number of pending nodes.
    left: usize,
    /// How long preparing the scores took.
    pub pre_score: Duration,
    /// Set while the durations of plugins are recorded.
    pub measured: Option<Arc<Metrics>>,
    position: u64,
    versions: Vec<u64>,
    /// The number of row evaluations so far, for tests.
    pub judged: u64,
}

impl Work {
    /// Runs PreFilter and PreScore of every plugin for the shape; evaluates no node yet.
    pub fn prepare(profile: &Profile, cluster: &Snapshot, shape: &Shape) -> Self {
        let mut work = Self { position: cluster.log().position(), ..Self::default() };
        work.versions = versions(profile, cluster, shape).collect();
        for plugin in &profile.points.filter {
            let made = profile.timed("PreFilter", plugin.name(), || {
                let made = plugin.pre_filter(cluster, shape);
                let code = made.code();
                (made, code)
            });
            match made {
                PreFilter::Skip => {}
                PreFilter::Reject(status) => {
                    work.rejected = Some((BTreeSet::from([plugin.name()]), status));
                    return work;
                }
                PreFilter::Check { filter, only } => {
                    work.filters.push(ActiveFilter { plugin: plugin.name(), scope: plugin.scope(), filter });
                    if let Some(names) = only
                        && !work.limit(cluster, plugin.name(), &names)
                    {
                        return work;
                    }
                }
            }
        }
        let begun = profile.now();
        for (plugin, weight) in &profile.points.score {
            let made = profile.timed("PreScore", plugin.name(), || {
                let made = plugin.pre_score(cluster, shape);
                let code = if made.is_some() { Code::Success } else { Code::Skip };
                (made, code)
            });
            if let Some(score) = made {
                let (plugin, scope) = (plugin.name(), plugin.scope());
                work.scores.push(ActiveScore { plugin, weight: *weight, scope, score, raw: Vec::new() });
            }
        }
        work.pre_score = profile.now().saturating_sub(begun);
        work
    }

    /// Excludes all nodes but these names. Returns false when no node is left.
    fn limit(&mut self, cluster: &Snapshot, plugin: &'static str, names: &[String]) -> bool {
        let named: BitSet = names.iter().filter_map(|name| cluster.find(name)).collect();
        let (nodes, mut plugins) = match self.only.take() {
            None => (named, BTreeSet::new()),
            Some((nodes, plugins)) => (nodes.iter().filter(|at| named.contains(*at)).collect(), plugins),
        };
        plugins.insert(plugin);
        if nodes.is_empty() && names.is_empty() {
            let list = plugins.iter().copied().collect::<Vec<_>>();
            let message = match list.as_slice() {
                [one] => format!("node(s) didn't satisfy plugin {one}"),
                several => format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", several.join(" ")),
            };
            self.rejected = Some((plugins, Status::unresolvable(message)));
            return false;
        }
        self.only = Some((nodes, plugins));
        true
    }

    /// Returns why filters exclude the node, if they do: the name of the first of those filters, and the status of all.
    pub fn left_out(&self, at: NodeIdx) -> Option<(&'static str, Status)> {
        let (only, plugins) = self.only.as_ref()?;
        let first = plugins.iter().next().filter(|_| !only.contains(at))?;
        let list: Vec<_> = plugins.iter().copied().collect();
        let message = format!("node(s) didn't satisfy plugin(s) [{}]", list.join(" "));
        Some((first, Status::unresolvable(message)))
    }

    /// Prepares the shape. Its rows are evaluated when they are needed.
    pub fn new(profile: &Profile, cluster: &Snapshot, shape: &Shape) -> Self {
        let mut work = Self::prepare(profile, cluster, shape);
        if work.rejected.is_some() {
            return work;
        }
        for active in work.scores.iter_mut().filter(|s| s.scope == Scope::Row) {
            active.raw.resize(cluster.bound(), 0);
        }
        work.pending = cluster.live().clone();
        work.left = work.pending.count();
        work
    }

    /// Returns whether the node passes all filters of [`Scope::Row`].
    pub fn passes_local(&mut self, cluster: &Snapshot, at: NodeIdx) -> bool {
        if self.pending.contains(at) {
            self.judge(cluster, at);
        }
        self.local.contains(at)
    }

    /// The nodes that pass all filters of [`Scope::Row`]; evaluates all pending rows.
    pub fn local(&mut self, cluster: &Snapshot) -> &BitSet {
        std::mem::take(&mut self.pending).iter().for_each(|at| self.judge(cluster, at));
        self.left = 0;
        &self.local
    }

    /// The nodes that pass, if every row has been evaluated.
    pub fn all_local(&self) -> Option<&BitSet> {
        (self.left == 0).then_some(&self.local)
    }

    /// Returns the next passing node at or after `from`, in the order of the rows.
    pub fn next_local(&mut self, cluster: &Snapshot, from: NodeIdx) -> Option<NodeIdx> {
        loop {
            let known = self.local.iter_from(from).next();
            let open = self.pending.iter_from(from).next();
            match (known, open) {
                (Some(known), Some(open)) if open < known => self.judge(cluster, open),
                (None, Some(open)) => self.judge(cluster, open),
                (known, _) => return known,
            }
        }
    }

    /// Applies the changes since the last call. Returns true when that was not possible and the work was prepared
    /// again.
    pub fn catch_up(&mut self, profile: &Profile, cluster: &Snapshot, shape: &Shape) -> bool {
        let stale = || !self.versions.iter().copied().eq(versions(profile, cluster, shape));
        let anew = stale() || !self.replay(cluster);
        if anew {
            let judged = self.judged;
            *self = Self::new(profile, cluster, shape);
            self.judged += judged;
        }
        anew
    }

    fn replay(&mut self, cluster: &Snapshot) -> bool {
        let Some(changes) = cluster.log().since(self.position) else { return false };
        let mut rows: Vec<NodeIdx> = Vec::new();
        for change in changes {
            match change {
                Change::Structure(_) | Change::Namespace => return false,
                Change::Node(at) => rows.push(*at),
                Change::Pod { node, footprint, delta } => {
                    rows.push(*node);
                    for active in self.filters.iter_mut().filter(|f| f.scope == Scope::Cluster) {
                        active.filter.pod_changed(cluster, *node, footprint, *delta);
                    }
                    for active in self.scores.iter_mut().filter(|s| s.scope == Scope::Cluster) {
                        active.score.pod_changed(cluster, *node, footprint, *delta);
                    }
                }
            }
        }
        self.position = cluster.log().position();
        if self.rejected.is_none() {
            rows.sort_unstable();
            rows.dedup();
            // Pending rows are evaluated later anyway, in the state they have then.
            rows.retain(|at| !self.pending.contains(*at));
            rows.into_iter().for_each(|at| self.judge(cluster, at));
        }
        true
    }

    /// Evaluates one row.
    fn judge(&mut self, cluster: &Snapshot, at: NodeIdx) {
        self.judged += 1;
        if self.pending.contains(at) {
            self.pending.set(at, false);
            self.left -= 1;
        }
        let node = NodeView { cluster, at, row: cluster.row(at) };
        let possible = self.only.as_ref().is_none_or(|(only, _)| only.contains(at));
        let mut local = self.filters.iter().filter(|f| f.scope == Scope::Row);
        let passes = possible && local.all(|f| f.filter.passes(&node));
        self.local.set(at, passes);
        if passes {
            for active in self.scores.iter_mut().filter(|s| s.scope == Scope::Row) {
                active.raw[at as usize] = active.score.score(&node);
            }
        }
    }

    /// Returns whether there are no filters with cluster scope.
    pub fn is_local(&self) -> bool {
        self.filters.iter().all(|f| f.scope == Scope::Row)
    }

    /// Returns whether the node, which passes the filters of its row, also passes those with cluster scope.
    pub fn passes_cluster(&self, node: &NodeView) -> bool {
        self.filters.iter().filter(|f| f.scope == Scope::Cluster).all(|f| f.filter.passes(node))
    }

    /// Returns the weighted sum of all scores for each feasible node. The rows of these nodes must have been evaluated.
    pub fn totals(&mut self, cluster: &Snapshot, feasible: &[NodeIdx]) -> Vec<i64> {
        let mut totals = vec![0i64; feasible.len()];
        let mut scores = Vec::with_capacity(feasible.len());
        for active in &mut self.scores {
            active.scores(cluster, feasible, &mut scores);
            active.score.normalize(cluster, feasible, &mut scores);
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += score * active.weight;
            }
        }
        totals
    }
}

impl ActiveScore {
    /// Fills `scores` with the raw scores of these nodes, which pass all filters.
    pub(crate) fn scores(&mut self, cluster: &Snapshot, feasible: &[NodeIdx], scores: &mut Vec<i64>) {
        scores.clear();
        self.score.begin(cluster, feasible);
        if self.scope == Scope::Row {
            scores.extend(feasible.iter().map(|at| self.raw[*at as usize]));
        } else {
            let view = |at: &NodeIdx| NodeView { cluster, at: *at, row: cluster.row(*at) };
            scores.extend(feasible.iter().map(|at| self.score.score(&view(at))));
        }
    }
}

fn versions<'a>(
    profile: &'a Profile,
    cluster: &'a Snapshot,
    shape: &'a Shape,
) -> impl Iterator<Item = u64> + 'a {
    let filters = profile.points.filter.iter().map(|p| p.version(cluster, shape));
    filters.chain(profile.points.score.iter().map(|(p, _)| p.version(cluster, shape)))
}
