//! The objects of its namespace to which a pod refers by name: secrets, config maps, claims and others.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, Volume};

/// The annotation of mirror pods, which must not give access to any object.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The kinds of object to which a pod may refer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Secret,
    ConfigMap,
    Claim,
    ResourceClaim,
    ServiceAccount,
}

/// Returns whether any field of the pod refers to the object of this name.
pub fn refers_to(pod: &Pod, kind: Kind, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    if pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(MIRROR)) {
        return false;
    }
    match kind {
        Kind::ServiceAccount => spec.service_account_name.as_deref() == Some(name),
        Kind::ResourceClaim => resource_claim(pod, spec, name),
        Kind::Claim => spec.volumes.iter().flatten().any(|v| claim_of(pod, v).as_deref() == Some(name)),
        Kind::Secret => {
            let mut pull = spec.image_pull_secrets.iter().flatten();
            pull.any(|r| r.name == name)
                || in_containers(spec, kind, name)
                || spec.volumes.iter().flatten().any(|v| secret_of_volume(v, name))
        }
        Kind::ConfigMap => {
            in_containers(spec, kind, name)
                || spec.volumes.iter().flatten().any(|v| {
                    v.config_map.as_ref().is_some_and(|c| c.name == name)
                        || projected(v).any(|s| s.config_map.as_ref().is_some_and(|c| c.name == name))
                })
        }
    }
}

fn projected(volume: &Volume) -> impl Iterator<Item = &k8s_openapi::api::core::v1::VolumeProjection> {
    volume.projected.iter().flat_map(|p| p.sources.iter().flatten())
}

fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    let own = pod.metadata.name.as_deref().unwrap_or("");
    volume.ephemeral.as_ref().map(|_| format!("{own}-{}", volume.name))
}

fn resource_claim(pod: &Pod, spec: &PodSpec, name: &str) -> bool {
    let made = |wanted: &str| {
        let statuses = pod.status.iter().flat_map(|s| s.resource_claim_statuses.iter().flatten());
        statuses.into_iter().find(|s| s.name == wanted).and_then(|s| s.resource_claim_name.clone())
    };
    let named = spec.resource_claims.iter().flatten().any(|claim| match &claim.resource_claim_name {
        Some(own) => own == name,
        None => made(&claim.name).as_deref() == Some(name),
    });
    let extended = pod.status.as_ref().and_then(|s| s.extended_resource_claim_status.as_ref());
    named || extended.is_some_and(|s| s.resource_claim_name == name)
}

fn in_containers(spec: &PodSpec, kind: Kind, name: &str) -> bool {
    let ordinary = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ordinary = ordinary.map(|c| (c.env_from.as_deref(), c.env.as_deref()));
    let later = spec.ephemeral_containers.iter().flatten();
    let later = later.map(|c| (c.env_from.as_deref(), c.env.as_deref()));
    ordinary.chain(later).any(|(from, env)| in_env(from, env, kind, name))
}

fn in_env(from: Option<&[EnvFromSource]>, env: Option<&[EnvVar]>, kind: Kind, name: &str) -> bool {
    let of_source = |source: &EnvFromSource| match kind {
        Kind::Secret => source.secret_ref.as_ref().is_some_and(|r| r.name == name),
        _ => source.config_map_ref.as_ref().is_some_and(|r| r.name == name),
    };
    let of_variable = |variable: &EnvVar| {
        let source = variable.value_from.as_ref();
        match kind {
            Kind::Secret => source.and_then(|s| s.secret_key_ref.as_ref()).is_some_and(|r| r.name == name),
            _ => source.and_then(|s| s.config_map_key_ref.as_ref()).is_some_and(|r| r.name == name),
        }
    };
    from.unwrap_or_default().iter().any(of_source) || env.unwrap_or_default().iter().any(of_variable)
}

fn secret_of_volume(volume: &Volume, name: &str) -> bool {
    let plain = [
        volume.secret.as_ref().and_then(|s| s.secret_name.as_deref()),
        volume.azure_file.as_ref().map(|s| s.secret_name.as_str()),
    ];
    let references = [
        volume.cephfs.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.cinder.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.csi.as_ref().and_then(|s| s.node_publish_secret_ref.as_ref()),
        volume.flex_volume.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.iscsi.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.rbd.as_ref().and_then(|s| s.secret_ref.as_ref()),
        volume.scale_io.as_ref().map(|s| &s.secret_ref),
        volume.storageos.as_ref().and_then(|s| s.secret_ref.as_ref()),
    ];
    plain.contains(&Some(name))
        || references.into_iter().flatten().any(|r| r.name == name)
        || projected(volume).any(|s| s.secret.as_ref().is_some_and(|s| s.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finds_references() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {
                "serviceAccountName": "runner",
                "imagePullSecrets": [{"name": "pull"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}, {"name": "x", "resourceClaimName": "direct"}],
                "containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "settings"}}],
                    "env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}]}],
                "ephemeralContainers": [{"name": "d", "envFrom": [{"secretRef": {"name": "debug"}}]}],
                "volumes": [
                    {"name": "scratch", "ephemeral": {}},
                    {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "b", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "publish"}}},
                    {"name": "c", "projected": {"sources": [{"configMap": {"name": "ca"}}]}}],
            },
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-1"}]},
        });
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        let all = [
            (Kind::Secret, "pull"),
            (Kind::Secret, "key"),
            (Kind::Secret, "debug"),
            (Kind::Secret, "publish"),
            (Kind::ConfigMap, "settings"),
            (Kind::ConfigMap, "ca"),
            (Kind::Claim, "data"),
            (Kind::Claim, "p-scratch"),
            (Kind::ResourceClaim, "p-gpu-1"),
            (Kind::ResourceClaim, "direct"),
            (Kind::ServiceAccount, "runner"),
        ];
        for (kind, name) in all {
            assert!(refers_to(&pod, kind, name), "{kind:?} {name}");
        }
        assert!(!refers_to(&pod, Kind::ConfigMap, "pull") && !refers_to(&pod, Kind::ResourceClaim, "gpu"));
        pod.metadata.annotations = Some([(MIRROR.to_owned(), String::new())].into());
        assert!(!all.iter().any(|(kind, name)| refers_to(&pod, *kind, name)));
    }
}
