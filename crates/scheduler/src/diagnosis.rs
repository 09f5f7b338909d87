//! Why a pod fits nowhere: which node was turned down by whom, and the words that events and conditions show.

use std::collections::{BTreeMap, BTreeSet};

use crate::framework::Status;

/// The outcome of filtering when no node is left.
#[derive(Debug, Clone, Default)]
pub struct Diagnosis {
    /// Nodes in the cluster.
    pub nodes: usize,
    /// Each node that was looked at, and the verdict on it.
    pub rejected: Vec<(String, Status)>,
    /// Set when a plugin turned the pod down before any node was looked at.
    pub pre_filter: Option<String>,
    /// The plugins whose verdicts these are.
    pub plugins: BTreeSet<&'static str>,
}

impl Diagnosis {
    /// `0/5 nodes are available: 1 Insufficient cpu, 4 node(s) were unschedulable.`
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let head = format!("0/{} nodes are available:", self.nodes);
        if let Some(reason) = &self.pre_filter {
            return format!("{head} {reason}.");
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in self.rejected.iter().flat_map(|(_, status)| &status.reasons) {
            *counts.entry(reason).or_insert(0) += 1;
        }
        let mut parts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        parts.sort();
        if parts.is_empty() { head } else { format!("{head} {}.", parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_and_sorted() {
        let rejected = |name: &str, reasons: &[&'static str]| {
            let reasons = reasons.iter().map(|r| (*r).into()).collect();
            (name.to_owned(), Status { code: crate::framework::Code::Unschedulable, reasons })
        };
        let diagnosis = Diagnosis {
            nodes: 3,
            rejected: vec![
                rejected("a", &["Insufficient cpu", "Insufficient memory"]),
                rejected("b", &["Insufficient cpu"]),
                rejected("c", &["node(s) were unschedulable"]),
            ],
            ..Diagnosis::default()
        };
        assert_eq!(
            diagnosis.message(),
            "0/3 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, 2 Insufficient cpu."
        );
    }

    #[test]
    fn special_cases_have_their_own_words() {
        assert_eq!(Diagnosis::default().message(), "no nodes available to schedule pods");
        let early =
            Diagnosis { nodes: 2, pre_filter: Some("nothing matches".into()), ..Diagnosis::default() };
        assert_eq!(early.message(), "0/2 nodes are available: nothing matches.");
    }
}
