//! Which ConfigMaps and Secrets a pod refers to.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod};

/// A ConfigMap or a Secret, by name within the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference {
    ConfigMap(String),
    Secret(String),
}

/// Returns all objects that the pod's volumes, environment variables and image pulls need.
pub fn of_pod(pod: &Pod) -> BTreeSet<Reference> {
    let mut found = BTreeSet::new();
    let Some(spec) = &pod.spec else { return found };
    for secret in spec.image_pull_secrets.iter().flatten() {
        found.insert(Reference::Secret(secret.name.clone()));
    }
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        of_env(container.env.as_deref(), container.env_from.as_deref(), &mut found);
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        of_env(container.env.as_deref(), container.env_from.as_deref(), &mut found);
    }
    for volume in spec.volumes.iter().flatten() {
        found.extend(volume.config_map.as_ref().map(|c| Reference::ConfigMap(c.name.clone())));
        let secret = volume.secret.as_ref().and_then(|s| s.secret_name.clone());
        found.extend(secret.map(Reference::Secret));
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            found.extend(source.config_map.as_ref().map(|c| Reference::ConfigMap(c.name.clone())));
            found.extend(source.secret.as_ref().map(|s| Reference::Secret(s.name.clone())));
        }
    }
    found.retain(|(Reference::ConfigMap(name) | Reference::Secret(name))| !name.is_empty());
    found
}

fn of_env(env: Option<&[EnvVar]>, from: Option<&[EnvFromSource]>, found: &mut BTreeSet<Reference>) {
    for source in env.unwrap_or_default().iter().filter_map(|e| e.value_from.as_ref()) {
        found.extend(source.config_map_key_ref.as_ref().map(|r| Reference::ConfigMap(r.name.clone())));
        found.extend(source.secret_key_ref.as_ref().map(|r| Reference::Secret(r.name.clone())));
    }
    for source in from.unwrap_or_default() {
        found.extend(source.config_map_ref.as_ref().map(|r| Reference::ConfigMap(r.name.clone())));
        found.extend(source.secret_ref.as_ref().map(|r| Reference::Secret(r.name.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_places_are_looked_at() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"name": "a",
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "env-c", "key": "k"}}},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "env-s", "key": "k"}}}],
                "envFrom": [{"configMapRef": {"name": "from-c"}}]}],
            "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "from-s"}}]}],
            "volumes": [
                {"name": "1", "configMap": {"name": "vol-c"}},
                {"name": "2", "secret": {"secretName": "vol-s"}},
                {"name": "3", "projected": {"sources": [
                    {"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "proj-s"}}]}},
                {"name": "4", "emptyDir": {}}]
        }}))
        .unwrap();
        let names: Vec<String> = of_pod(&pod).into_iter().map(|r| format!("{r:?}")).collect();
        let want = [
            "ConfigMap(\"env-c\")",
            "ConfigMap(\"from-c\")",
            "ConfigMap(\"kube-root-ca.crt\")",
            "ConfigMap(\"vol-c\")",
            "Secret(\"env-s\")",
            "Secret(\"from-s\")",
            "Secret(\"proj-s\")",
            "Secret(\"pull\")",
            "Secret(\"vol-s\")",
        ];
        assert_eq!(names, want);
    }
}
