//! ServiceAccountNodeAudienceRestriction: a kubelet may request tokens only for the audiences that its pod's volumes
//! use.

use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Verdict, may, no};
use crate::Context;
use crate::{Attributes, lookup};
use knarr_registry::attributes::text;

const CLAIMS: (&str, &str, &str) = ("", "v1", "persistentvolumeclaims");
const VOLUMES: (&str, &str, &str) = ("", "v1", "persistentvolumes");
const DRIVERS: (&str, &str, &str) = ("storage.k8s.io", "v1", "csidrivers");
/// The in-tree volume types that were migrated to CSI, and their CSI drivers.
const MIGRATED: [(&str, &str); 7] = [
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

/// Checks the audience of a TokenRequest that is bound to this pod.
pub async fn check(pod: &Value, attributes: &Attributes<'_>, context: &Context<'_>) -> Verdict {
    let audiences = &attributes.object["spec"]["audiences"];
    let audience = match audiences.as_array().map_or(&[][..], Vec::as_slice) {
        [] => "",
        [one] => one.as_str().unwrap_or(""),
        _ => return no("node may only request 0 or 1 audiences"),
    };
    match named_by_volumes(pod, audience, context).await {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(why) => return no(format!("error validating audience {audience:?}: {why}")),
    }
    if may(attributes, context, "request-serviceaccounts-token-audience", audience, attributes.name).await {
        return Ok(());
    }
    no(format!("{} is not authorized to request tokens for audience {audience:?}", attributes.user.name))
}

/// Returns whether a volume of the pod needs tokens of this audience. A volume whose driver cannot be determined is
/// an error only if no other volume needs the audience.
async fn named_by_volumes(pod: &Value, audience: &str, context: &Context<'_>) -> Result<bool, String> {
    let mut errors = Vec::new();
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        if is_projected(volume, audience) {
            return Ok(true);
        }
        match asked_by_driver(pod, volume, audience, context).await {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => errors.push(error.message().to_owned()),
        }
    }
    match errors.as_slice() {
        [] => Ok(false),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn is_projected(volume: &Value, audience: &str) -> bool {
    let sources = volume["projected"]["sources"].as_array();
    let mut tokens = sources.into_iter().flatten().map(|s| &s["serviceAccountToken"]);
    tokens.any(|t| t.is_object() && text(t, "/audience") == audience)
}

async fn asked_by_driver(
    pod: &Value,
    volume: &Value,
    audience: &str,
    context: &Context<'_>,
) -> Result<bool, StatusError> {
    let own_claim = format!("{}-{}", text(pod, "/metadata/name"), text(volume, "/name"));
    let driver = if volume["ephemeral"]["volumeClaimTemplate"].is_object() {
        driver_of_claim(pod, &own_claim, context).await?
    } else if volume["persistentVolumeClaim"].is_object() {
        driver_of_claim(pod, text(volume, "/persistentVolumeClaim/claimName"), context).await?
    } else {
        driver_of(volume)
    };
    if driver.is_empty() {
        return Ok(false);
    }
    let driver = required(context, DRIVERS, "", &driver).await?;
    let requests = driver["spec"]["tokenRequests"].as_array();
    Ok(requests.into_iter().flatten().any(|r| text(r, "/audience") == audience))
}

async fn driver_of_claim(pod: &Value, claim: &str, context: &Context<'_>) -> Result<String, StatusError> {
    let claim = required(context, CLAIMS, text(pod, "/metadata/namespace"), claim).await?;
    let volume = required(context, VOLUMES, "", text(&claim, "/spec/volumeName")).await?;
    Ok(driver_of(&volume["spec"]))
}

/// Returns the CSI driver of a volume source; empty if it has none.
fn driver_of(source: &Value) -> String {
    let csi = text(source, "/csi/driver");
    if !csi.is_empty() {
        return csi.to_owned();
    }
    let migrated = MIGRATED.iter().find(|(kind, _)| source[*kind].is_object());
    migrated.map_or("", |(_, driver)| driver).to_owned()
}

async fn required(
    context: &Context<'_>,
    resource: (&str, &str, &str),
    namespace: &str,
    name: &str,
) -> Result<Value, StatusError> {
    let found = lookup::value(context, resource, namespace, name).await?;
    found.ok_or_else(|| super::missing(resource, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn projected_tokens_name_audiences() {
        let volume = json!({"name": "v", "projected": {"sources": [
            {"configMap": {"name": "c"}},
            {"serviceAccountToken": {"path": "own"}},
            {"serviceAccountToken": {"path": "t", "audience": "vault"}}]}});
        for (audience, expected) in [("", true), ("vault", true), ("other", false)] {
            assert_eq!(is_projected(&volume, audience), expected, "{audience}");
        }
        assert!(!is_projected(&json!({"name": "v", "emptyDir": {}}), ""));
    }

    #[test]
    fn drivers_of_sources() {
        for (source, expected) in [
            (json!({"csi": {"driver": "d"}}), "d"),
            (json!({"awsElasticBlockStore": {"volumeID": "v"}}), "ebs.csi.aws.com"),
            (json!({"emptyDir": {}}), ""),
        ] {
            assert_eq!(driver_of(&source), expected);
        }
    }
}
