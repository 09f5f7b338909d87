//! OwnerReferencesPermissionEnforcement: changing an object's owners needs the permission to delete it, and blocking
//! an owner's deletion needs the permission to set the owner's finalizers.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::Context;
use knarr_auth::authz::{self, Decision};

pub struct OwnerReferencesPermissionEnforcement;

#[async_trait]
impl Plugin for OwnerReferencesPermissionEnforcement {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        // A binding or an eviction cannot change owners, and a status update keeps them.
        let pods_part = attributes.resource.group.is_empty()
            && attributes.resource.plural == "pods"
            && matches!(attributes.subresource, "status" | "binding" | "eviction");
        let old = attributes.old.map_or(&[][..], owners);
        let new = owners(&attributes.object);
        if pods_part || new == old {
            return Ok(());
        }
        if attributes.operation != Operation::Create {
            let types = attributes.resource;
            let delete = authz::Attributes {
                verb: "delete".into(),
                group: types.group.into(),
                version: types.version.into(),
                resource: types.plural.into(),
                subresource: attributes.subresource.into(),
                namespace: attributes.namespace.into(),
                name: attributes.name.into(),
                ..authz::Attributes::default()
            };
            if let Some(why) = refusal(&context.authorizer.authorize(attributes.user, &delete).await) {
                let why = format!("cannot set an ownerRef on a resource you can't delete: {why}, <nil>");
                return Err(attributes.forbidden(&why));
            }
        }
        let blocking = newly_blocking(new, old);
        if blocking.is_empty() {
            return Ok(());
        }
        let anything = finalizers("*", "*", "*", "", "*");
        if context.authorizer.authorize(attributes.user, &anything).await.is_allowed() {
            return Ok(());
        }
        for owner in blocking {
            check_owner(attributes, context, owner).await?;
        }
        Ok(())
    }
}

/// Checks the permission for each resource that the owner may belong to: the user must be able to set its finalizers.
async fn check_owner(
    attributes: &Attributes<'_>,
    context: &Context<'_>,
    owner: &Value,
) -> Result<(), StatusError> {
    let text = |field: &str| owner[field].as_str().unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let of_kind = |s: &&std::sync::Arc<knarr_registry::served::Served>| {
        s.resource.types.kind == kind && s.resource.types.api_version() == api_version
    };
    let mut known = false;
    for served in context.registry.table.snapshot().iter().filter(of_kind) {
        known = true;
        let types = served.resource.types;
        let namespace = if types.namespaced { attributes.namespace } else { "" };
        let wanted = finalizers(types.group, types.version, types.plural, namespace, text("name"));
        if let Some(why) = refusal(&context.authorizer.authorize(attributes.user, &wanted).await) {
            let why = format!(
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: {why}, <nil>"
            );
            return Err(attributes.forbidden(&why));
        }
    }
    if known {
        return Ok(());
    }
    Err(attributes.forbidden(&format!(
        "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} Kind {kind}: no matches for kind {kind:?} in version {api_version:?}"
    )))
}

fn refusal(decision: &Decision) -> Option<String> {
    (!decision.is_allowed()).then(|| decision.reason().to_owned())
}

fn finalizers(group: &str, version: &str, resource: &str, namespace: &str, name: &str) -> authz::Attributes {
    authz::Attributes {
        verb: "update".into(),
        group: group.into(),
        version: version.into(),
        resource: resource.into(),
        subresource: "finalizers".into(),
        namespace: namespace.into(),
        name: name.into(),
        ..authz::Attributes::default()
    }
}

fn owners(object: &Value) -> &[Value] {
    object.pointer("/metadata/ownerReferences").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the owners whose deletion the object newly blocks.
fn newly_blocking<'v>(new: &'v [Value], old: &[Value]) -> Vec<&'v Value> {
    let blocks = |o: &Value| o["blockOwnerDeletion"] == true;
    let did = |o: &Value| old.iter().any(|b| b["uid"] == o["uid"] && blocks(b));
    new.iter().filter(|o| blocks(o) && !did(o)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_blocks_anew() {
        let owner = |uid: &str, blocks: bool| json!({"uid": uid, "blockOwnerDeletion": blocks});
        let old = [owner("a", true), owner("b", false)];
        let new = [owner("a", true), owner("b", true), owner("c", true), owner("d", false)];
        let found: Vec<_> = newly_blocking(&new, &old).iter().map(|o| o["uid"].clone()).collect();
        assert_eq!(found, ["b", "c"]);
        assert!(owners(&json!({"metadata": {"ownerReferences": 1}})).is_empty());
    }
}
