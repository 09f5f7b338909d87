//! The claims of pods: created from templates, recorded in the pod's status, and reserved if the pod is bound
//! already.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::devices::resourceclaim::foreign;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::{Patch, Result};
use serde_json::json;

use super::{BY_OWNER, POD_CLAIM, Work, failure};
use crate::support::owners::still_owns;
use crate::support::pod_state::has_ended;

/// The maximum length of a generated name's base. Source: upstream leaves room for a hyphen and five random
/// characters in a name of 63 bytes.
const MAX_BASE_BYTES: usize = 57;

fn claims(pod: &Pod) -> &[PodResourceClaim] {
    pod.spec.as_ref().and_then(|s| s.resource_claims.as_deref()).unwrap_or_default()
}

/// Returns the claim that the scheduler created for the pod's extended resources.
fn extended(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(&status.resource_claim_name)
}

/// Returns whether the pod uses claims.
pub fn has_claims(pod: &Pod) -> bool {
    !claims(pod).is_empty() || extended(pod).is_some()
}

/// What the pod's status records about a claim.
enum Recorded<'a> {
    /// No entry yet.
    Nothing,
    /// An entry without a name: the pod needs no claim here.
    NotNeeded,
    Name(&'a str),
}

fn recorded<'a>(pod: &'a Pod, claim: &'a PodResourceClaim) -> Recorded<'a> {
    if let Some(name) = &claim.resource_claim_name {
        return Recorded::Name(name);
    }
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref()).unwrap_or_default();
    match statuses.iter().find(|s| s.name == claim.name).map(|s| s.resource_claim_name.as_deref()) {
        None => Recorded::Nothing,
        Some(None) => Recorded::NotNeeded,
        Some(Some(name)) => Recorded::Name(name),
    }
}

/// Returns the names of the pod's claims, as far as they are known.
pub fn claim_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let named = claims(pod).iter().filter_map(|claim| match recorded(pod, claim) {
        Recorded::Name(name) => Some(name),
        _ => None,
    });
    named.chain(extended(pod))
}

/// Returns the names of the templates of the pod's claims.
pub fn template_names(pod: &Pod) -> impl Iterator<Item = &str> {
    claims(pod).iter().filter_map(|claim| claim.resource_claim_template_name.as_deref())
}

/// Returns whether the pod has ended or will never be started.
pub fn is_done(pod: &Pod) -> bool {
    has_ended(pod) || pod.metadata.deletion_timestamp.is_some() && !has_node(pod)
}

fn has_node(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty())
}

/// Returns the `generateName` of a pod's claim: `POD-CLAIM-`. If that is too long, both names are shortened in
/// proportion, and the hyphen at the end is omitted.
pub fn name_base(pod: &str, claim: &str) -> String {
    let base = format!("{pod}-{claim}-");
    if base.len() <= MAX_BASE_BYTES {
        return base;
    }
    let part = |name: &str| {
        let mut end = name.len() * MAX_BASE_BYTES / base.len();
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name[..end].to_owned()
    };
    format!("{}-{}", part(pod), part(claim))
}

/// Makes the pod's claim from its template.
pub fn from_template(pod: &Pod, claim: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let template = template.spec.clone().unwrap_or_default();
    let from = template.metadata.unwrap_or_default();
    let mut annotations = from.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), claim.to_owned());
    let metadata = ObjectMeta {
        generate_name: Some(name_base(pod.name(), claim)),
        namespace: pod.metadata.namespace.clone(),
        labels: from.labels,
        annotations: Some(annotations),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    };
    ResourceClaim { metadata, spec: template.spec, status: None }
}

impl Work {
    pub(super) async fn pod(&self, key: &ObjectKey) -> Result<()> {
        let Some(pod) = self.pods.get_key(key).filter(|p| p.metadata.deletion_timestamp.is_none()) else {
            return Ok(());
        };
        let mut made = Vec::new();
        for claim in claims(&pod) {
            match self.provide(&pod, claim).await {
                Ok(name) => made.extend(name.map(|name| (claim.name.clone(), name))),
                Err(error) => {
                    let text = format!("PodResourceClaim {}: {error}", claim.name);
                    self.cx.recorder.event(&*pod, EventType::Warning, "FailedResourceClaimCreation", text);
                    return Err(error);
                }
            }
        }
        if !made.is_empty() {
            self.record(&pod, made).await?;
        }
        if has_node(&pod) {
            self.reserve(&pod).await?;
        }
        Ok(())
    }

    /// Ensures that the claim exists; returns its name if the pod's status does not list it yet.
    async fn provide(&self, pod: &Pod, claim: &PodResourceClaim) -> Result<Option<String>> {
        match recorded(pod, claim) {
            Recorded::NotNeeded => return Ok(None),
            Recorded::Name(name) => {
                if claim.resource_claim_template_name.is_none() || self.is_there(pod, claim, name).await? {
                    return Ok(None);
                }
            }
            Recorded::Nothing => {}
        }
        let Some(template) = claim.resource_claim_template_name.as_deref() else {
            let (namespace, pod, name) = (pod.namespace(), pod.name(), &claim.name);
            return Err(failure(format!(
                "checking for claim before creating it: pod \"{namespace}/{pod}\", spec.resourceClaim {name:?}: none \
                 of the supported fields are set"
            )));
        };
        // An earlier claim may exist that was not recorded in the pod's status.
        let owned = self.claims.by_index(BY_OWNER, &format!("{}/{}", pod.namespace(), pod.uid()));
        let of = |c: &ResourceClaim| {
            c.metadata.annotations.as_ref().and_then(|a| a.get(POD_CLAIM)) == Some(&claim.name)
        };
        if let Some(found) = owned.iter().find(|c| of(c)) {
            return Ok(Some(found.name().to_owned()));
        }
        let key = (pod.uid().to_owned(), claim.name.clone());
        let lately = self.made().get(&key).cloned();
        if let Some(name) = lately {
            return Ok(Some(name));
        }
        let Some(found) = self.templates.get(pod.namespace(), template) else {
            return Err(failure(format!(
                "resource claim template {template:?}: resourceclaimtemplate.resource.k8s.io {template:?} not found"
            )));
        };
        still_owns(&self.cx.client, pod).await?;
        let wanted = from_template(pod, &claim.name, &found);
        let created = self.cx.client.create(&wanted).await;
        knarr_client::metrics::claim_created(created.is_ok(), super::has_admin_access(&wanted));
        let created = created.map_err(|e| failure(format!("create ResourceClaim : {e}")))?;
        self.made().insert(key, created.name().to_owned());
        if self.pods.get_key(&pod.key()).is_none_or(|shown| shown.uid() != pod.uid()) {
            // The pod is gone already, so no later event would remove the entry.
            self.forget(pod);
        }
        Ok(Some(created.name().to_owned()))
    }

    /// Returns whether the claim named in the pod's status exists and belongs to the pod.
    async fn is_there(&self, pod: &Pod, claim: &PodResourceClaim, name: &str) -> Result<bool> {
        if let Some(found) = self.claims.get(pod.namespace(), name) {
            return Ok(foreign(pod, &found).is_none());
        }
        match self.cx.client.get::<ResourceClaim>(pod.namespace(), name).await {
            Ok(found) => Ok(foreign(pod, &found).is_none()),
            Err(error) if error.is_not_found() => {
                self.made().remove(&(pod.uid().to_owned(), claim.name.clone()));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds the names of claims to the pod's status.
    async fn record(&self, pod: &Pod, made: Vec<(String, String)>) -> Result<()> {
        let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref());
        let known = statuses.unwrap_or_default().iter();
        let mut names: std::collections::BTreeMap<_, _> =
            known.filter_map(|s| Some((s.name.clone(), s.resource_claim_name.clone()?))).collect();
        names.extend(made);
        let statuses: Vec<_> =
            names.iter().map(|(name, claim)| json!({"name": name, "resourceClaimName": claim})).collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod.name(), "namespace": pod.namespace()},
            "status": {"resourceClaimStatuses": statuses}});
        let patch = Patch::Apply { object, force: true };
        let sent = self.applier.patch::<Pod>(pod.namespace(), pod.name(), Some("status"), &patch).await;
        sent.map(drop).map_err(|error| {
            let (namespace, pod) = (pod.namespace(), pod.name());
            failure(format!("update pod {namespace}/{pod} ResourceClaimStatuses: {error}"))
        })
    }

    /// Reserves allocated claims for a pod that was bound by another component than the scheduler.
    async fn reserve(&self, pod: &Pod) -> Result<()> {
        for of in claims(pod) {
            let name = match recorded(pod, of) {
                Recorded::Name(name) => name,
                Recorded::NotNeeded => continue,
                Recorded::Nothing => return Ok(()),
            };
            let Some(claim) = self.claims.get(pod.namespace(), name) else { return Ok(()) };
            if of.resource_claim_name.is_none()
                && let Some(why) = foreign(pod, &claim)
            {
                return Err(failure(why));
            }
            let status = claim.status.clone().unwrap_or_default();
            let reserved = status.reserved_for.iter().flatten().any(|r| r.uid == pod.uid());
            if status.allocation.is_none() || reserved {
                continue;
            }
            let mut next = (*claim).clone();
            let list = next.status.get_or_insert_default().reserved_for.get_or_insert_default();
            list.push(ResourceClaimConsumerReference {
                api_group: None,
                resource: "pods".to_owned(),
                name: pod.name().to_owned(),
                uid: pod.uid().to_owned(),
            });
            self.cx.client.update_status(&next).await?;
        }
        Ok(())
    }
}
