//! Revisions: which ReplicaSet is the newest, its name and number, and which old ones are beyond the history limit.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;
use knarr_apimachinery::names::{DNS_SUBDOMAIN_MAX, safe_encode};

use super::sizes::{limits, newest, replicas, sum, wanted};
use crate::support::owners::controller_reference;

pub const REVISION: &str = "deployment.kubernetes.io/revision";
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
pub const HASH_LABEL: &str = "pod-template-hash";
/// Annotations that are not copied from a Deployment to its ReplicaSets.
pub const OWN_ANNOTATIONS: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];
/// The length at which the oldest numbers are dropped from the revision history.
const MAX_HISTORY: usize = 2000;
/// The revisionHistoryLimit that keeps everything.
const KEEP_ALL: i32 = i32::MAX;

/// Returns the number in an annotation, if it parses.
pub fn number_annotation(meta: &ObjectMeta, key: &str) -> Option<i32> {
    meta.annotations.as_ref()?.get(key)?.parse().ok()
}

/// Returns the revision in the annotation; 0 if there is none.
pub fn revision(meta: &ObjectMeta) -> i64 {
    meta.annotations.as_ref().and_then(|a| a.get(REVISION)?.parse().ok()).unwrap_or(0)
}

fn template_of(deployment: &Deployment) -> PodTemplateSpec {
    deployment.spec.template.clone()
}

/// Returns the template without the hash label, for comparisons.
pub fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let meta = template.metadata.get_or_insert_default();
    if let Some(labels) = &mut meta.labels {
        labels.remove(HASH_LABEL);
    }
    meta.labels = meta.labels.take().filter(|l| !l.is_empty());
    meta.annotations = meta.annotations.take().filter(|a| !a.is_empty());
    meta.creation_timestamp = None;
    template
}

/// Returns the index of the set with the Deployment's current template; the oldest one if there are several.
pub fn find_newest(deployment: &Deployment, sets: &[ReplicaSet]) -> Option<usize> {
    let wanted = without_hash(&template_of(deployment));
    let same = |set: &ReplicaSet| set.spec.template.as_ref().is_some_and(|t| without_hash(t) == wanted);
    let created =
        |i: &usize| (sets[*i].metadata.creation_timestamp.as_ref().map(|t| t.0), sets[*i].name().to_owned());
    (0..sets.len()).filter(|i| same(&sets[*i])).min_by_key(created)
}

/// Hashes the template and the collision count, and encodes the hash in characters that form no words.
pub fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    // serde_json writes struct fields in a fixed order and the maps are sorted: equal templates give equal bytes.
    let bytes = serde_json::to_vec(template).unwrap_or_default();
    let mut hash = fnv1a(0x811c_9dc5, &bytes);
    if let Some(collisions) = collisions {
        hash = fnv1a(hash, &collisions.to_le_bytes());
    }
    safe_encode(&hash.to_string())
}

/// FNV-1a, 32 bits.
fn fnv1a(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Makes the ReplicaSet for the Deployment's current template. `old` are all other sets.
pub fn new_set(deployment: &Deployment, old: &[ReplicaSet]) -> ReplicaSet {
    let spec = deployment.spec.clone();
    let hash = template_hash(&spec.template, deployment.status.as_ref().and_then(|s| s.collision_count));
    let mut template = spec.template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
    let size = newest(deployment, 0, sum(old));
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(set_name(deployment.name(), &hash)),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: ReplicaSetSpec {
            replicas: Some(size),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        },
        status: None,
    };
    annotate_newest(deployment, &mut set, next_revision(old));
    annotate_sizes(deployment, &mut set);
    set
}

/// Returns the Deployment's name, cut if the result would be too long, with the hash.
fn set_name(deployment: &str, hash: &str) -> String {
    let mut room = DNS_SUBDOMAIN_MAX.saturating_sub(hash.len() + 1).min(deployment.len());
    while !deployment.is_char_boundary(room) {
        room -= 1;
    }
    format!("{}-{hash}", &deployment[..room])
}

/// Returns the highest revision among the old sets plus 1.
pub fn next_revision(old: &[ReplicaSet]) -> i64 {
    old.iter().map(|s| revision(&s.metadata)).max().unwrap_or(0) + 1
}

/// Records in a set's annotations the sizes that proportional scaling refers to.
pub fn annotate_sizes(deployment: &Deployment, set: &mut ReplicaSet) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    let wanted = wanted(deployment);
    annotations.insert(DESIRED_REPLICAS.to_owned(), wanted.to_string());
    annotations.insert(MAX_REPLICAS.to_owned(), wanted.saturating_add(limits(deployment).0).to_string());
}

/// Updates the newest set's annotations: the Deployment's own, and a revision of at least `next`.
pub fn annotate_newest(deployment: &Deployment, set: &mut ReplicaSet, next: i64) {
    let old_revision = revision(&set.metadata);
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !OWN_ANNOTATIONS.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    if old_revision >= next {
        return;
    }
    annotations.insert(REVISION.to_owned(), next.to_string());
    if old_revision > 0 {
        let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
        *history = extend_history(history, old_revision);
    }
}

fn extend_history(history: &str, revision: i64) -> String {
    let mut numbers: Vec<&str> = history.split(',').filter(|n| !n.is_empty()).collect();
    let revision = revision.to_string();
    numbers.push(&revision);
    while numbers.len() > 1 && numbers.iter().map(|n| n.len() + 1).sum::<usize>() > MAX_HISTORY {
        numbers.remove(0);
    }
    numbers.join(",")
}

/// Copies the newest set's revision to the Deployment; returns whether that changed it.
pub fn annotate_deployment(deployment: &mut Deployment, newest: &ReplicaSet) -> bool {
    let Some(value) = newest.metadata.annotations.as_ref().and_then(|a| a.get(REVISION)).cloned() else {
        return false;
    };
    let annotations: &mut BTreeMap<_, _> = deployment.metadata.annotations.get_or_insert_default();
    annotations.insert(REVISION.to_owned(), value.clone()).as_ref() != Some(&value)
}

/// Returns the old sets beyond the history limit that have no pods.
pub fn beyond_history<'s>(deployment: &Deployment, old: &'s [ReplicaSet]) -> Vec<&'s ReplicaSet> {
    let limit = deployment.spec.revision_history_limit.unwrap_or(10);
    if limit == KEEP_ALL {
        return Vec::new();
    }
    let mut alive: Vec<&ReplicaSet> =
        old.iter().filter(|s| s.metadata.deletion_timestamp.is_none()).collect();
    let surplus = alive.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    alive.sort_by_key(|s| revision(&s.metadata));
    let idle = |s: &&ReplicaSet| {
        let status = s.status.clone().unwrap_or_default();
        status.replicas == 0 && replicas(s) == 0 && status.observed_generation >= s.metadata.generation
    };
    alive.into_iter().take(surplus).filter(idle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::testing::{deployment, set};

    #[test]
    fn the_hash_follows_the_template() {
        let (a, b) = (deployment(1).image("web:v1").build(), deployment(1).image("web:v2").build());
        let hash = |d: &Deployment, n| template_hash(&template_of(d), n);
        assert_eq!(hash(&a, None), hash(&deployment(9).image("web:v1").build(), None));
        assert_ne!(hash(&a, None), hash(&b, None));
        assert_ne!(hash(&a, None), hash(&a, Some(1)));
        assert!(hash(&a, None).chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)));
    }

    #[test]
    fn undo_renumbers_the_revision_and_keeps_the_old_number_in_mind() {
        let v1 = deployment(5).image("web:v1").build();
        let mut first = new_set(&v1, &[]);
        assert_eq!(revision(&first.metadata), 1);
        let second = new_set(&deployment(5).image("web:v2").build(), std::slice::from_ref(&first));
        assert_eq!(revision(&second.metadata), 2);
        assert_eq!(find_newest(&v1, &[second.clone(), first.clone()]), Some(1));
        annotate_newest(&v1, &mut first, next_revision(&[second]));
        assert_eq!(revision(&first.metadata), 3);
        assert_eq!(first.metadata.annotations.unwrap()[REVISION_HISTORY], "1");
    }

    #[test]
    fn a_new_set_is_named_and_labelled_by_its_hash() {
        let set = new_set(&deployment(3).image("web:v1").build(), &[]);
        let hash = set.metadata.labels.as_ref().unwrap()[HASH_LABEL].clone();
        assert_eq!(set.name(), format!("web-{hash}"));
        let spec = set.spec;
        assert_eq!(spec.selector.match_labels.unwrap()[HASH_LABEL], hash);
        assert_eq!(spec.replicas, Some(3));
    }

    #[test]
    fn history_beyond_the_limit_goes_oldest_first_unless_it_has_pods() {
        let mut d = deployment(1).build();
        d.spec.revision_history_limit = Some(1);
        let old = [
            set("r2", 0).annotated(REVISION, "2").build(),
            set("r1", 1).annotated(REVISION, "1").build(),
            set("r3", 0).annotated(REVISION, "3").build(),
        ];
        let gone: Vec<_> = beyond_history(&d, &old).iter().map(|s| s.name()).collect();
        assert_eq!(gone, ["r2"]);
    }

    #[test]
    fn the_history_annotation_stays_bounded() {
        let mut history = String::new();
        for n in 0..1000 {
            history = extend_history(&history, n);
        }
        assert!(history.len() <= MAX_HISTORY && history.ends_with(",999"));
    }
}
