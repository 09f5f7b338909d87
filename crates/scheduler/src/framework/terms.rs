//! Parsed terms of inter-pod affinity and anti-affinity: which pods a term selects, and in which topology.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, WeightedPodAffinityTerm};
use knarr_apimachinery::selector::Selector;

use super::footprint::Footprint;

/// The labels of namespaces, by the namespaces' names.
pub type Namespaces = HashMap<Box<str>, BTreeMap<String, String>>;

/// One affinity term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    pub namespaces: BTreeSet<String>,
    /// Selects nothing if the term has no namespaceSelector.
    pub namespace_selector: Selector,
    pub selector: Selector,
    pub topology_key: Box<str>,
}

impl Term {
    fn parse(term: &PodAffinityTerm, own_namespace: &str) -> Self {
        // The API server has validated selectors; one that does not parse selects nothing.
        let parse =
            |selector| Selector::from_label_selector(selector).unwrap_or_else(|_| Selector::nothing());
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(own_namespace.to_owned());
        }
        Self {
            namespaces,
            namespace_selector: parse(term.namespace_selector.as_ref()),
            selector: parse(term.label_selector.as_ref()),
            topology_key: term.topology_key.as_str().into(),
        }
    }

    /// Returns whether the term selects a pod with this footprint.
    pub fn matches(&self, pod: &Footprint, namespaces: &Namespaces) -> bool {
        let in_namespace = || {
            self.namespaces.contains(&*pod.namespace)
                || self.namespace_selector.is_everything()
                || !self.namespace_selector.is_nothing() && {
                    let empty = BTreeMap::new();
                    let labels = namespaces.get(&*pod.namespace).unwrap_or(&empty);
                    self.namespace_selector.matches(labels)
                }
        };
        in_namespace() && self.selector.matches(&pod.labels)
    }
}

/// All affinity terms of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    pub required: Vec<Term>,
    pub required_anti: Vec<Term>,
    /// The terms with their weights.
    pub preferred: Vec<(i64, Term)>,
    /// The terms with their weights.
    pub preferred_anti: Vec<(i64, Term)>,
}

impl Terms {
    /// Parses the terms of a pod's affinity.
    pub fn of(pod: &Pod) -> Self {
        let Some(affinity) = pod.spec.as_ref().and_then(|s| s.affinity.as_ref()) else {
            return Self::default();
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let required = |terms: &Option<Vec<PodAffinityTerm>>| {
            terms.iter().flatten().map(|t| Term::parse(t, namespace)).collect()
        };
        let preferred = |terms: &Option<Vec<WeightedPodAffinityTerm>>| {
            let weighted = terms.iter().flatten();
            weighted.map(|t| (i64::from(t.weight), Term::parse(&t.pod_affinity_term, namespace))).collect()
        };
        let mut all = Self::default();
        if let Some(a) = &affinity.pod_affinity {
            all.required = required(&a.required_during_scheduling_ignored_during_execution);
            all.preferred = preferred(&a.preferred_during_scheduling_ignored_during_execution);
        }
        if let Some(a) = &affinity.pod_anti_affinity {
            all.required_anti = required(&a.required_during_scheduling_ignored_during_execution);
            all.preferred_anti = preferred(&a.preferred_during_scheduling_ignored_during_execution);
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        self.required.is_empty()
            && self.required_anti.is_empty()
            && self.preferred.is_empty()
            && self.preferred_anti.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{labelled, pod, term};
    use crate::snapshot::Snapshot;

    #[test]
    fn namespaces_are_the_pods_own_the_listed_ones_or_the_selected_ones() {
        let mut cluster = Snapshot::default();
        cluster.set_namespace("prod", Some(labelled(&[("tier", "prod")])));
        let target = |namespace: &str| {
            let mut target = pod("t").label("app", "db").build();
            target.metadata.namespace = Some(namespace.into());
            Footprint::of(&target)
        };
        let plain = term(&[("app", "db")], "zone");
        let listed = PodAffinityTerm { namespaces: Some(vec!["other".into()]), ..plain.clone() };
        let selector = |labels: &[(&str, &str)]| PodAffinityTerm {
            namespace_selector: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector {
                match_labels: Some(labelled(labels)),
                ..Default::default()
            }),
            ..plain.clone()
        };
        // term; whether it selects the pod in its own namespace, in `other`, in `prod`
        let table = [
            (plain.clone(), true, false, false),
            (listed, false, true, false),
            (selector(&[]), true, true, true),
            (selector(&[("tier", "prod")]), false, false, true),
        ];
        for (term, own, other, prod) in table {
            let parsed = Term::parse(&term, "default");
            let means = |namespace| parsed.matches(&target(namespace), cluster.namespaces());
            assert_eq!((means("default"), means("other"), means("prod")), (own, other, prod), "{term:?}");
        }
    }
}
