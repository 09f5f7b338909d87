//! Why a pod fits on no node: which plugin rejected which node, and the text that events and conditions show.

use std::collections::{BTreeMap, BTreeSet};

use crate::framework::Status;
use crate::snapshot::NodeIdx;

/// The name that stands for extenders among the plugins that rejected a pod.
pub const EXTENDER: &str = "Extender";

/// A plugin's answer about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub plugin: &'static str,
    pub status: Status,
}

/// The outcome of filtering when no node is left.
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    /// Nodes in the cluster.
    pub nodes: usize,
    verdicts: Vec<Verdict>,
    /// Each node that was filtered, with the index of its verdict in `verdicts`.
    of_node: Vec<(NodeIdx, usize)>,
    /// Set when a plugin rejected the pod before any node was filtered.
    pub pre_filter: Option<String>,
    /// The message of the last preemption attempt.
    pub post_filter: Option<String>,
    /// The plugins that gave these verdicts.
    pub plugins: BTreeSet<&'static str>,
}

impl Diagnosis {
    /// Creates a diagnosis of a cluster with this many nodes.
    pub fn new(nodes: usize) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// Records that a plugin rejected a node.
    pub fn reject(&mut self, node: NodeIdx, plugin: &'static str, status: Status) {
        self.plugins.insert(plugin);
        // The latest verdicts are the most likely to repeat, and only few are different.
        let verdict = Verdict { plugin, status };
        let known = self.verdicts.iter().rposition(|v| *v == verdict);
        let at = known.unwrap_or_else(|| {
            self.verdicts.push(verdict);
            self.verdicts.len() - 1
        });
        self.of_node.push((node, at));
    }

    /// The rejected nodes, each with the first verdict against it.
    pub fn rejected(&self) -> impl Iterator<Item = (NodeIdx, &Verdict)> {
        self.of_node.iter().map(|(node, at)| (*node, &self.verdicts[*at]))
    }

    /// Returns the message of events and conditions, for example `0/5 nodes are available: 1 Insufficient cpu, 4
    /// node(s) were unschedulable.`
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let mut text = format!("0/{} nodes are available:", self.nodes);
        if let Some(reason) = &self.pre_filter {
            text.push_str(&format!(" {reason}."));
        } else {
            let parts = self.histogram();
            if !parts.is_empty() {
                text.push_str(&format!(" {}.", parts.join(", ")));
            }
        }
        if let Some(message) = &self.post_filter {
            text.push_str(&format!(" {message}"));
        }
        text
    }

    fn histogram(&self) -> Vec<String> {
        let mut of_verdict = vec![0usize; self.verdicts.len()];
        self.of_node.iter().for_each(|(_, at)| of_verdict[*at] += 1);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (verdict, n) in self.verdicts.iter().zip(of_verdict) {
            for reason in &verdict.status.reasons {
                *counts.entry(reason).or_insert(0) += n;
            }
        }
        let mut parts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        parts.sort();
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Code;

    #[test]
    fn reasons_are_counted_and_sorted() {
        let mut diagnosis = Diagnosis::new(3);
        let nodes: [&[&'static str]; 3] = [
            &["Insufficient cpu", "Insufficient memory"],
            &["Insufficient cpu"],
            &["node(s) were unschedulable"],
        ];
        for (at, reasons) in nodes.into_iter().enumerate() {
            let reasons = reasons.iter().map(|r| (*r).into()).collect();
            diagnosis.reject(at as NodeIdx, "X", Status { code: Code::Unschedulable, reasons });
        }
        assert_eq!(
            diagnosis.message(),
            "0/3 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, 2 Insufficient cpu."
        );
        assert_eq!(diagnosis.rejected().count(), 3);
    }

    #[test]
    fn special_cases_have_their_own_words() {
        assert_eq!(Diagnosis::default().message(), "no nodes available to schedule pods");
        let early = Diagnosis { pre_filter: Some("nothing matches".into()), ..Diagnosis::new(2) };
        assert_eq!(early.message(), "0/2 nodes are available: nothing matches.");
    }
}
