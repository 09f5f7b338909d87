//! ResourceQuota accounting: what an object uses, which quotas count it, and whether they allow it.
//!
//! Pure functions over JSON, for admission, which charges writes, and for the quota controller, which sums up
//! existing objects. Objects are untrusted and may have any shape: fields of an unexpected shape count as no usage.
//!
//! Source: `k8s.io/kubernetes/pkg/quota/v1`, `k8s.io/apiserver/pkg/quota/v1`.

mod amounts;
mod check;
mod claims;
mod pods;
mod scopes;
mod services;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

pub use amounts::{Amounts, add, at_most, list, mask, without_zeros};
pub use check::{Charge, Limited, Refusal, check};
pub use pods::{requests as pod_requests, spec_limits, spec_requests};
pub use scopes::{Requirement, requirements};

/// Resources whose objects are never counted.
const IGNORED: [(&str, &str); 10] = [
    ("", "bindings"),
    ("", "componentstatuses"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("", "events"),
    ("events.k8s.io", "events"),
];

/// How objects of one resource are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluator {
    Pods,
    Services,
    PersistentVolumeClaims,
    ResourceClaims,
    /// Counts objects only, under these names.
    Count(Vec<String>),
}

/// The operation on an object, as far as quotas distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
}

/// Returns `count/pods` or `count/deployments.apps`.
pub fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") }
}

impl Evaluator {
    /// Returns the evaluator of this resource; `None` if its objects are never counted.
    pub fn of(group: &str, plural: &str) -> Option<Self> {
        if IGNORED.contains(&(group, plural)) {
            return None;
        }
        Some(match (group, plural) {
            ("", "pods") => Self::Pods,
            ("", "services") => Self::Services,
            ("", "persistentvolumeclaims") => Self::PersistentVolumeClaims,
            ("resource.k8s.io", "resourceclaims") => Self::ResourceClaims,
            // Quotas could count these by their bare names before `count/…` existed.
            ("", "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets") => {
                Self::Count(vec![count_name(group, plural), plural.to_owned()])
            }
            _ => Self::Count(vec![count_name(group, plural)]),
        })
    }

    /// Returns group and plural of the resource that this name in a quota counts, so that the controller can list it.
    /// Names with `count/…` may mean any resource, custom ones included.
    pub fn resource_of(name: &str) -> Option<(String, String)> {
        if let Some(counted) = name.strip_prefix("count/") {
            let (plural, group) = counted.split_once('.').unwrap_or((counted, ""));
            return Some((group.to_owned(), plural.to_owned()));
        }
        let core = |plural: &str| Some((String::new(), plural.to_owned()));
        let known = [
            (Self::Pods, "", "pods"),
            (Self::Services, "", "services"),
            (Self::PersistentVolumeClaims, "", "persistentvolumeclaims"),
            (Self::ResourceClaims, "resource.k8s.io", "resourceclaims"),
        ];
        match name {
            "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets" => core(name),
            _ => known
                .iter()
                .find(|(e, ..)| e.tracks(name))
                .map(|(_, group, plural)| ((*group).to_owned(), (*plural).to_owned())),
        }
    }

    /// Returns whether this name in a quota counts objects of this resource.
    pub fn tracks(&self, name: &str) -> bool {
        match self {
            Self::Pods => pods::tracks(name),
            Self::Services => services::tracks(name),
            Self::PersistentVolumeClaims => claims::volumes_track(name),
            Self::ResourceClaims => claims::devices_track(name),
            Self::Count(names) => names.iter().any(|n| n == name),
        }
    }

    /// Returns whether this write can change the usage.
    pub fn handles(&self, operation: Operation, subresource: &str, new: &Value, old: Option<&Value>) -> bool {
        match (self, subresource) {
            (Self::Pods, "resize") => operation == Operation::Update,
            (Self::Pods, "") => {
                let changed = old.is_some_and(|o| pods::is_terminating(o) != pods::is_terminating(new));
                operation == Operation::Create || changed
            }
            (Self::PersistentVolumeClaims, "status") => old.is_some_and(|o| claims::counts_anew(new, o)),
            (Self::Services | Self::PersistentVolumeClaims | Self::ResourceClaims, "") => true,
            (Self::Count(_), "") => operation == Operation::Create,
            _ => false,
        }
    }

    /// Returns the usage of an object.
    pub fn usage(&self, object: &Value, now: Timestamp) -> Amounts {
        match self {
            Self::Pods => pods::usage(object, now),
            Self::Services => services::usage(object),
            Self::PersistentVolumeClaims => claims::volume_usage(object),
            Self::ResourceClaims => claims::device_usage(object),
            Self::Count(names) => names.iter().map(|n| (n.clone(), amounts::count(1))).collect(),
        }
    }

    /// Checks that the object sets the fields that are needed to count these names.
    pub fn constraints(&self, names: &BTreeSet<String>, object: &Value) -> Result<(), String> {
        match self {
            Self::Pods => pods::constraints(names, object),
            _ => Ok(()),
        }
    }

    /// Returns whether the object is in the scope.
    pub fn in_scope(&self, requirement: &Requirement, object: &Value) -> bool {
        match self {
            Self::Pods => pods::in_scope(requirement, object),
            Self::PersistentVolumeClaims => claims::in_scope(requirement, object),
            _ => false,
        }
    }

    /// Returns whether a quota with these hard limits and scopes counts the object.
    pub fn matches(&self, hard: &Amounts, scopes: &[Requirement], object: &Value) -> bool {
        hard.keys().any(|name| self.tracks(name)) && scopes.iter().all(|s| self.in_scope(s, object))
    }
}

/// Returns the usage of all objects of one resource in a quota, zero included, for the quota's names that the
/// resource tracks.
///
/// `quota` is the complete ResourceQuota. The controller adds the results of all evaluators.
pub fn used<'a>(
    evaluator: &Evaluator,
    quota: &Value,
    objects: impl IntoIterator<Item = &'a Value>,
    now: Timestamp,
) -> Amounts {
    let hard = list(&quota["spec"]["hard"]);
    let names: BTreeSet<String> = hard.keys().filter(|n| evaluator.tracks(n)).cloned().collect();
    if names.is_empty() {
        return Amounts::new();
    }
    let scopes = requirements(&quota["spec"]);
    let mut sum: Amounts = names.iter().map(|n| (n.clone(), amounts::count(0))).collect();
    for object in objects {
        if scopes.iter().all(|s| evaluator.in_scope(s, object)) {
            add(&mut sum, &evaluator.usage(object, now));
        }
    }
    mask(&sum, &names)
}

#[cfg(test)]
mod tests;
