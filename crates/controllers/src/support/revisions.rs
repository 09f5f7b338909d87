//! ControllerRevisions: the history of a DaemonSet's or StatefulSet's template, for rolling updates and rollbacks.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use knarr_api::kind::Kind;
use knarr_apimachinery::field::go_json;
use knarr_apimachinery::names::safe_encode;
use knarr_apimachinery::selector::Selector;
use knarr_client::{Client, Error, Lister, Patch, Result};
use serde_json::{Value, json};

use crate::support::owners::{Claim, adopt_patch, claim, controller_reference, release_patch, still_owns};

/// The longest prefix of a revision's name, so that the hash fits behind it.
const MAX_PREFIX: usize = 223;
/// How many names are tried, each with a higher collision count.
const MAX_COLLISIONS: usize = 32;

/// Returns the template as a revision stores it: a strategic patch that restores it.
pub fn data(template: &PodTemplateSpec) -> Value {
    // A template without fields of its own is an empty object, never null.
    let mut template = serde_json::to_value(template).unwrap_or_else(|_| json!({}));
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

fn data_of(revision: &ControllerRevision) -> &Value {
    &revision.data.0
}

/// Hashes the data, serialized as Go does, and the collision count, and encodes the hash in characters that form no
/// words.
///
/// Source: `pkg/controller/history` of Kubernetes 1.37, whose StatefulSets have revisions of the same names.
fn hash(data: &Value, collisions: i32) -> String {
    let bytes = go_json(&data.to_string());
    let all = bytes.bytes().chain(collisions.to_string().into_bytes());
    // FNV-1, 32 bits.
    let hash = all.fold(0x811c_9dc5_u32, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte));
    safe_encode(&hash.to_string())
}

fn next_number(revisions: &[ControllerRevision]) -> i64 {
    revisions.iter().filter_map(|r| r.revision).max().unwrap_or(0) + 1
}

/// The revision that matches a template.
#[derive(Debug, PartialEq)]
enum Found {
    /// The newest revision, at this index.
    Newest(usize),
    /// An older revision, at this index; a rollback makes it the newest.
    Older(usize),
    None,
}

/// Finds the revision of a template; `revisions` are sorted by number. The newest also matches if its data decodes to
/// the same template but is serialized differently, by another client or an older version.
fn find(revisions: &[ControllerRevision], template: &PodTemplateSpec, data: &Value) -> Found {
    let whole = |template: &PodTemplateSpec| {
        (template.metadata.clone().unwrap_or_default(), template.spec.clone().unwrap_or_default())
    };
    let means = |revision: &ControllerRevision| {
        template_of(revision).is_some_and(|known| whole(&known) == whole(template))
    };
    let newest = revisions.len().checked_sub(1).filter(|i| means(&revisions[*i]));
    match newest.or_else(|| revisions.iter().rposition(|r| data_of(r) == data)) {
        Some(i) if i + 1 == revisions.len() => Found::Newest(i),
        Some(i) => Found::Older(i),
        None => Found::None,
    }
}

/// The revisions of the objects of one controller.
pub struct Revisions {
    pub client: Client,
    pub lister: Lister<ControllerRevision>,
    /// The label with the hash.
    pub hash_label: &'static str,
}

impl Revisions {
    /// Returns the owner's revisions sorted by number, after adopting matching orphans and releasing those that no
    /// longer match.
    pub async fn claim<K: Kind>(&self, owner: &K, selector: &Selector) -> Result<Vec<ControllerRevision>> {
        let mut mine = Vec::new();
        for revision in self.lister.list_namespace(owner.namespace()) {
            let matches = selector.matches_optional(revision.metadata.labels.as_ref());
            let patch = match claim(owner, &revision.metadata, matches) {
                Claim::Keep => {
                    mine.push(ControllerRevision::clone(&revision));
                    continue;
                }
                Claim::Ignore => continue,
                Claim::Adopt => {
                    still_owns(&self.client, owner).await?;
                    adopt_patch(owner, revision.uid())
                }
                Claim::Release => release_patch(owner.uid(), revision.uid()),
            };
            let adopting = !patch["metadata"]["ownerReferences"][0]["controller"].is_null();
            let patch = Patch::Strategic(patch);
            let (namespace, name) = (revision.namespace(), revision.name());
            match self.client.patch::<ControllerRevision>(namespace, name, None, &patch).await {
                Ok(patched) if adopting => mine.push(patched),
                Ok(_) => {}
                Err(e) if e.is_not_found() || e.status().is_some_and(|s| s.reason() == "Invalid") => {}
                Err(e) => return Err(e),
            }
        }
        mine.sort_by(|a, b| (a.revision, a.name()).cmp(&(b.revision, b.name())));
        Ok(mine)
    }

    /// Returns the revision of the current template, which it creates or renumbers as the newest if needed;
    /// `revisions` then ends with it. `collisions` counts names that were taken by other data.
    pub async fn ensure<K: Kind>(
        &self,
        owner: &K,
        template: &PodTemplateSpec,
        revisions: &mut Vec<ControllerRevision>,
        collisions: &mut i32,
    ) -> Result<ControllerRevision> {
        let data = data(template);
        let newest = match find(revisions, template, &data) {
            Found::Newest(i) => return Ok(revisions[i].clone()),
            Found::Older(i) => {
                let mut revision = revisions.remove(i);
                revision.revision = Some(next_number(revisions));
                self.client.update(&revision).await?
            }
            Found::None => self.create(owner, template, data, next_number(revisions), collisions).await?,
        };
        revisions.push(newest.clone());
        Ok(newest)
    }

    async fn create<K: Kind>(
        &self,
        owner: &K,
        template: &PodTemplateSpec,
        data: Value,
        number: i64,
        collisions: &mut i32,
    ) -> Result<ControllerRevision> {
        still_owns(&self.client, owner).await?;
        for _ in 0..MAX_COLLISIONS {
            let revision = self.describe(owner, template, &data, number, *collisions);
            match self.client.create(&revision).await {
                Err(e) if e.is_already_exists() => {
                    let taken =
                        self.client.get::<ControllerRevision>(owner.namespace(), revision.name()).await?;
                    if *data_of(&taken) == data {
                        return Ok(taken);
                    }
                    *collisions += 1;
                }
                other => return other,
            }
        }
        Err(Error::Protocol(format!("no name is free for a revision of {}", owner.key())))
    }

    fn describe<K: Kind>(
        &self,
        owner: &K,
        template: &PodTemplateSpec,
        data: &Value,
        number: i64,
        collisions: i32,
    ) -> ControllerRevision {
        let hash = hash(data, collisions);
        let mut labels = template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
        labels.insert(self.hash_label.to_owned(), hash.clone());
        let prefix: String = owner.name().chars().take(MAX_PREFIX).collect();
        ControllerRevision {
            metadata: ObjectMeta {
                name: Some(format!("{prefix}-{hash}")),
                namespace: owner.meta().namespace.clone(),
                labels: Some(labels),
                annotations: owner.meta().annotations.clone(),
                owner_references: Some(vec![controller_reference(owner)]),
                ..ObjectMeta::default()
            },
            data: RawExtension(data.clone()),
            revision: Some(number),
        }
    }

    /// Deletes the oldest of these until `limit` are left; those for which `live` is true do not count and are kept.
    pub async fn truncate(
        &self,
        revisions: &[ControllerRevision],
        live: impl Fn(&ControllerRevision) -> bool,
        limit: i32,
    ) -> Result<()> {
        // A negative limit keeps all of them.
        let Ok(limit) = usize::try_from(limit) else { return Ok(()) };
        let history: Vec<_> = revisions.iter().filter(|r| !live(r)).collect();
        let surplus = history.len().saturating_sub(limit);
        for revision in history.into_iter().take(surplus) {
            let uid = Preconditions { uid: revision.metadata.uid.clone(), ..Preconditions::default() };
            let options = DeleteOptions { preconditions: Some(uid), ..DeleteOptions::default() };
            let deleted =
                self.client.delete::<ControllerRevision>(revision.namespace(), revision.name(), &options);
            match deleted.await {
                Err(e) if !e.is_not_found() && !e.is_conflict() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns a template with the pod labels that a revision describes; `None` if the data has another form.
pub fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    serde_json::from_value(data_of(revision).pointer("/spec/template")?.clone()).ok()
}

/// Returns the hash in the revision's label.
pub fn hash_of<'r>(revision: &'r ControllerRevision, label: &str) -> &'r str {
    revision.metadata.labels.as_ref().and_then(|l| l.get(label)).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        serde_json::from_value(json!({"spec": {"containers": [{"name": "c", "image": image}]}})).unwrap()
    }

    fn revision(number: i64, image: &str) -> ControllerRevision {
        let data = RawExtension(data(&template(image)));
        ControllerRevision { revision: Some(number), data, ..ControllerRevision::default() }
    }

    #[test]
    fn a_template_is_found_again() {
        let mut all = [revision(1, "a"), revision(2, "b"), revision(3, "c")];
        let of =
            |all: &[ControllerRevision], image: &str| find(all, &template(image), &data(&template(image)));
        assert_eq!(of(&all, "c"), Found::Newest(2));
        assert_eq!(of(&all, "a"), Found::Older(0));
        assert_eq!(of(&all, "d"), Found::None);
        all[2].data.0["spec"]["template"]["metadata"] = json!({"creationTimestamp": null});
        assert_eq!(of(&all, "c"), Found::Newest(2), "serialized as by older versions");
        assert_eq!(next_number(&all), 4);
        assert_eq!(template_of(&all[1]), Some(template("b")));
    }

    #[test]
    fn the_data_is_a_patch_that_replaces_the_template() {
        let data = data(&template("a"));
        assert_eq!(data["spec"]["template"]["$patch"], "replace");
        assert_ne!(hash(&data, 0), hash(&data, 1));
        // The value is kube-controller-manager 1.37's.
        assert_eq!(hash(&json!({"a": "x < y && z"}), 0), "5466878bb");
    }
}
