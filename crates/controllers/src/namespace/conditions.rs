//! The conditions that explain why a namespace still exists.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NamespaceCondition, NamespaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Type, and the reason and message of the false condition, in the order in which they are listed.
const CONDITIONS: [(&str, &str, &str); 5] = [
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
];

/// The results of one pass over the content.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Findings {
    pub discovery_failure: Option<String>,
    pub malformed_group_version: Option<String>,
    /// One error for each resource that could not be deleted.
    pub errors: Vec<String>,
    /// The number of remaining objects by resource, such as `pods.` or `deployments.apps`.
    pub remaining: BTreeMap<String, usize>,
    /// The number of remaining objects by the finalizer they wait for.
    pub finalizers: BTreeMap<String, usize>,
}

impl Findings {
    /// Returns reason and message of a condition that is true.
    fn trouble(&self, type_: &str) -> Option<(&'static str, String)> {
        match type_ {
            "NamespaceDeletionDiscoveryFailure" => Some(("DiscoveryFailed", self.discovery_failure.clone()?)),
            "NamespaceDeletionGroupVersionParsingFailure" => {
                Some(("GroupVersionParsingFailed", self.malformed_group_version.clone()?))
            }
            "NamespaceDeletionContentFailure" if !self.errors.is_empty() => {
                let mut errors = self.errors.clone();
                errors.sort();
                let (count, all) = (errors.len(), errors.join(", "));
                let text = format!("Failed to delete all resource types, {count} remaining: {all}");
                Some(("ContentDeletionFailed", text))
            }
            "NamespaceContentRemaining" if !self.remaining.is_empty() => {
                let all = list(&self.remaining, "has");
                Some(("SomeResourcesRemain", format!("Some resources are remaining: {all}")))
            }
            "NamespaceFinalizersRemaining" if !self.finalizers.is_empty() => {
                let all = list(&self.finalizers, "in");
                let text = format!("Some content in the namespace has finalizers remaining: {all}");
                Some(("SomeFinalizersRemain", text))
            }
            _ => None,
        }
    }

    /// Updates the conditions; returns whether any changed.
    pub fn write(&self, status: &mut NamespaceStatus, now: Timestamp) -> bool {
        let conditions = status.conditions.get_or_insert_default();
        let mut changed = false;
        for (type_, well_reason, well_message) in CONDITIONS {
            let trouble = self.trouble(type_);
            let state = if trouble.is_some() { "True" } else { "False" };
            let (reason, message) = trouble.unwrap_or((well_reason, well_message.to_owned()));
            let known = conditions.iter().position(|c| c.type_ == type_);
            let since = known.map(|i| &conditions[i]).filter(|c| c.status == state);
            let next = NamespaceCondition {
                last_transition_time: match since {
                    Some(same) => same.last_transition_time.clone(),
                    None => Some(Time(now)),
                },
                message: Some(message),
                reason: Some(reason.to_owned()),
                status: state.to_owned(),
                type_: type_.to_owned(),
            };
            match known {
                Some(i) if conditions[i] == next => continue,
                Some(i) => conditions[i] = next,
                None => conditions.push(next),
            }
            changed = true;
        }
        changed
    }
}

fn list(counts: &BTreeMap<String, usize>, relation: &str) -> String {
    let all = counts.iter().map(|(name, count)| format!("{name} {relation} {count} resource instances"));
    all.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'s>(status: &'s NamespaceStatus, type_: &str) -> &'s NamespaceCondition {
        status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == type_).unwrap()
    }

    #[test]
    fn conditions_follow_the_findings() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let mut status = NamespaceStatus::default();
        assert!(Findings::default().write(&mut status, at(1)));
        assert!(!Findings::default().write(&mut status, at(2)), "nothing new");
        assert_eq!(status.conditions.as_ref().unwrap().len(), 5);

        let stuck = Findings {
            remaining: BTreeMap::from([("configmaps.".into(), 2), ("jobs.batch".into(), 1)]),
            finalizers: BTreeMap::from([("example.com/hold".into(), 3)]),
            errors: vec!["b".into(), "a".into()],
            ..Findings::default()
        };
        assert!(stuck.write(&mut status, at(3)));
        let table = [
            (
                "NamespaceContentRemaining",
                "SomeResourcesRemain",
                "Some resources are remaining: configmaps. has 2 resource instances, jobs.batch has 1 resource \
                 instances",
            ),
            (
                "NamespaceFinalizersRemaining",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: example.com/hold in 3 resource instances",
            ),
            (
                "NamespaceDeletionContentFailure",
                "ContentDeletionFailed",
                "Failed to delete all resource types, 2 remaining: a, b",
            ),
        ];
        for (type_, reason, message) in table {
            let condition = find(&status, type_);
            assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("True", Some(reason)));
            assert_eq!(condition.message.as_deref(), Some(message));
            assert_eq!(condition.last_transition_time, Some(Time(at(3))));
        }
        let fewer = Findings { errors: vec!["a".into()], ..stuck };
        assert!(fewer.write(&mut status, at(4)));
        let condition = find(&status, "NamespaceDeletionContentFailure");
        assert_eq!(condition.last_transition_time, Some(Time(at(3))), "still failing");
        assert_eq!(find(&status, "NamespaceDeletionDiscoveryFailure").status, "False");
    }
}
