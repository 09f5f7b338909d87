//! Warnings about fields that are stored but that no component of this program acts on.
//!
//! Upstream accepts these fields, and other components (CNI plugins, an ingress controller) may act on them, so they
//! are not refused. A client that sets one gets a `Warning` header.

use serde_json::Value;

/// A field that no component acts on.
pub struct Field {
    resource: On,
    /// The path, such as `spec.type`, or below the pod spec `volumes[*].emptyDir`. `a|b` stands for either name,
    /// `IN_TREE` for each name in [`IN_TREE`].
    path: &'static str,
    /// Returns whether this value needs a warning; the arguments are the value and the object (or the pod spec).
    when: fn(&Value, &Value) -> bool,
    text: &'static str,
}

enum On {
    /// Pods and all resources with a pod template. The path starts at the pod spec.
    Pods,
    /// Group and plural.
    Resource(&'static str, &'static str),
}

/// The resources that contain a pod spec, and its path.
const POD_SPECS: &[(&str, &str, &str)] = &[
    ("", "pods", "spec"),
    ("", "podtemplates", "template.spec"),
    ("", "replicationcontrollers", "spec.template.spec"),
    ("apps", "deployments", "spec.template.spec"),
    ("apps", "replicasets", "spec.template.spec"),
    ("apps", "daemonsets", "spec.template.spec"),
    ("apps", "statefulsets", "spec.template.spec"),
    ("batch", "jobs", "spec.template.spec"),
    ("batch", "cronjobs", "spec.jobTemplate.spec.template.spec"),
];

/// In-tree volumes for which the kubelet has no plugin. In-tree cloud volumes are not migrated to CSI drivers either.
const IN_TREE: &str = "awsElasticBlockStore|azureDisk|azureFile|cephfs|cinder|fc|flexVolume|flocker|gcePersistentDisk\
    |gitRepo|glusterfs|iscsi|nfs|photonPersistentDisk|portworxVolume|quobyte|rbd|scaleIO|storageos|vsphereVolume";
const NO_PLUGIN: &str =
    "there is no plugin for volumes of this kind: the kubelet will not start pods that mount it";

const NO_WINDOWS: &str = "nodes run Linux: options for Windows do nothing";

pub const FIELDS: &[Field] = &[
    pods(
        "containers|initContainers|ephemeralContainers[*].volumeDevices",
        filled,
        "block volumes are not supported: the container will not start",
    ),
    pods(
        "containers|initContainers[*].resources.limits.ephemeral-storage",
        filled,
        "counted by the scheduler, and not enforced on the node",
    ),
    pods(
        "containers|initContainers|ephemeralContainers[*].env[*].valueFrom.fileKeyRef",
        filled,
        "environment variables from files are not supported: the container will not start",
    ),
    pods(
        "containers|initContainers[*].restartPolicyRules[*].action",
        |action, _| action == "RestartAllContainers",
        "RestartAllContainers is not supported: no node will run the pod",
    ),
    pods(
        "resourceClaims",
        filled,
        "devices are allocated, and no driver prepares them: containers start without them",
    ),
    pods(
        "securityContext.seLinuxChangePolicy",
        filled,
        "not supported: labels of volumes are left as they are",
    ),
    pods(
        "volumes[*].emptyDir",
        |source, _| !source["sizeLimit"].is_null() && matches!(source["medium"].as_str(), None | Some("")),
        "sizeLimit is not enforced for volumes on disk",
    ),
    pods(
        "volumes[*].emptyDir.medium",
        |medium, _| medium.as_str().is_some_and(|m| m.starts_with("HugePages")),
        "huge pages are not supported: the pod will not start",
    ),
    pods("volumes[*].IN_TREE", filled, NO_PLUGIN),
    pods("securityContext.windowsOptions", filled, NO_WINDOWS),
    pods(
        "containers|initContainers|ephemeralContainers[*].securityContext.windowsOptions",
        filled,
        NO_WINDOWS,
    ),
    of("", "persistentvolumes", "spec.IN_TREE", filled, NO_PLUGIN),
    of(
        "",
        "persistentvolumes",
        "spec.mountOptions",
        |options, volume| filled(options, volume) && volume["spec"]["csi"].is_null(),
        "only CSI volumes are mounted with options",
    ),
    of(
        "",
        "persistentvolumes",
        "spec.local.fsType",
        filled,
        "a device behind a local volume is neither formatted nor mounted",
    ),
    of(
        "storage.k8s.io",
        "storageclasses",
        "mountOptions",
        of_local_paths,
        "the built-in provisioner has none",
    ),
    of("storage.k8s.io", "storageclasses", "parameters", of_local_paths, "the built-in provisioner has none"),
    of(
        "networking.k8s.io",
        "networkpolicies",
        "spec",
        |_, _| true,
        "the built-in pod network does not enforce NetworkPolicies: all traffic stays allowed unless a CNI plugin \
         enforces them",
    ),
    of(
        "networking.k8s.io",
        "ingresses",
        "spec",
        |spec, _| spec["ingressClassName"].is_null(),
        "there is no built-in ingress controller, and the Ingress names no class: nothing serves it",
    ),
    of(
        "",
        "services",
        "spec.type",
        |type_, service| type_ == "LoadBalancer" && service["spec"]["loadBalancerClass"].is_null(),
        "there is no built-in load balancer: the Service gets no external address unless another controller sets one",
    ),
    of(
        "",
        "services",
        "spec.externalTrafficPolicy",
        |policy, service| policy == "Local" && service["spec"]["type"] == "LoadBalancer",
        "the built-in service proxy does not answer health checks on healthCheckNodePort",
    ),
    of(
        "",
        "services",
        "spec.trafficDistribution",
        |wish, _| wish.as_str().is_some_and(|wish| wish != "PreferSameNode"),
        "the built-in service proxy does not prefer endpoints of its own zone",
    ),
    of(
        "",
        "services",
        "metadata.annotations",
        |all, _| {
            ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"]
                .iter()
                .any(|key| matches!(all[*key].as_str(), Some("Auto" | "auto")))
        },
        "topology-mode: the built-in service proxy does not prefer endpoints of its own zone",
    ),
    of(
        "discovery.k8s.io",
        "endpointslices",
        "endpoints[*].hints.forZones",
        filled,
        "the built-in service proxy does not prefer endpoints of its own zone",
    ),
    of(
        "",
        "persistentvolumeclaims",
        "spec.resources.requests.storage",
        |_, claim| claim["spec"]["storageClassName"] == "local-path",
        "the size of local-path volumes is not enforced: they may fill their node's disk",
    ),
    of(
        "storage.k8s.io",
        "csidrivers",
        "spec.seLinuxMount",
        |mount, _| *mount == true,
        "volumes are mounted without SELinux labels",
    ),
];

const fn pods(path: &'static str, when: fn(&Value, &Value) -> bool, text: &'static str) -> Field {
    Field { resource: On::Pods, path, when, text }
}

const fn of(
    group: &'static str,
    plural: &'static str,
    path: &'static str,
    when: fn(&Value, &Value) -> bool,
    text: &'static str,
) -> Field {
    Field { resource: On::Resource(group, plural), path, when, text }
}

/// Returns whether the value is neither absent nor empty.
fn filled(value: &Value, _: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

/// Returns whether the field is set in a StorageClass of the built-in provisioner.
fn of_local_paths(value: &Value, class: &Value) -> bool {
    class["provisioner"] == "rancher.io/local-path"
        && value.as_object().is_none_or(|map| !map.is_empty())
        && filled(value, class)
}

/// Returns the warnings for an object that is written; for an update, only those that the old object did not cause.
pub fn warnings(group: &str, plural: &str, new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut found = all(group, plural, new);
    if let Some(before) = old.filter(|_| !found.is_empty()).map(|old| all(group, plural, old)) {
        found.retain(|text| !before.contains(text));
    }
    found
}

fn all(group: &str, plural: &str, object: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let of_pods = POD_SPECS.iter().find(|(g, p, _)| (*g, *p) == (group, plural));
    let spec = of_pods.and_then(|(.., path)| {
        let pointer = format!("/{}", path.replace('.', "/"));
        Some((*path, object.pointer(&pointer)?))
    });
    for field in FIELDS {
        let (prefix, root) = match (&field.resource, spec) {
            (On::Pods, Some((prefix, spec))) => (prefix, spec),
            (On::Resource(g, p), _) if (*g, *p) == (group, plural) => ("", object),
            _ => continue,
        };
        visit(root, field.path, prefix.to_owned(), &mut |path, value| {
            if (field.when)(value, root) {
                out.push(format!("{path}: {}", field.text));
            }
        });
    }
    out
}

/// Calls `found` with the path and the value of each match of the pattern.
fn visit(value: &Value, pattern: &str, at: String, found: &mut dyn FnMut(&str, &Value)) {
    if pattern.is_empty() {
        found(&at, value);
        return;
    }
    let (first, rest) = pattern.split_once('.').unwrap_or((pattern, ""));
    let (names, is_list) = first.strip_suffix("[*]").map_or((first, false), |names| (names, true));
    let names = if names == "IN_TREE" { IN_TREE } else { names };
    for name in names.split('|') {
        let Some(child) = value.get(name) else { continue };
        let at = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        if !is_list {
            visit(child, rest, at, found);
            continue;
        }
        for (i, item) in child.as_array().into_iter().flatten().enumerate() {
            visit(item, rest, format!("{at}[{i}]"), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_nothing_acts_on_is_named_with_its_path() {
        let spec = json!({
            "containers": [{"name": "a"}, {"name": "b", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}],
                "resources": {"limits": {"cpu": "1", "ephemeral-storage": "1Gi"}}}],
            "volumes": [{"name": "c", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                {"name": "d", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "e", "nfs": {"server": "s", "path": "/"}}],
        });
        let expected = |at: &str| {
            [
                "containers[1].volumeDevices: block volumes are not supported: the container will not start",
                "containers[1].resources.limits.ephemeral-storage: counted by the scheduler, and not enforced on the node",
                "volumes[1].emptyDir: sizeLimit is not enforced for volumes on disk",
                "volumes[2].nfs: there is no plugin for volumes of this kind: the kubelet will not start pods that mount it",
            ]
            .map(|text| format!("{at}.{text}"))
        };
        assert_eq!(warnings("", "pods", &json!({"spec": spec}), None), expected("spec"));
        let cron = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}});
        assert_eq!(
            warnings("batch", "cronjobs", &cron, None),
            expected("spec.jobTemplate.spec.template.spec")
        );
        assert_eq!(warnings("", "configmaps", &json!({"spec": spec}), None), [""; 0]);
    }

    #[test]
    fn a_change_is_warned_of_once() {
        let pod =
            |debug: Value| json!({"spec": {"resourceClaims": [{"name": "c"}], "ephemeralContainers": debug}});
        let (old, new) = (
            pod(json!([])),
            pod(json!([{"name": "d", "volumeDevices": [{"name": "v", "devicePath": "/v"}]}])),
        );
        assert_eq!(warnings("", "pods", &old, None).len(), 1);
        assert_eq!(warnings("", "pods", &old, Some(&old)), [""; 0]);
        assert_eq!(
            warnings("", "pods", &new, Some(&old)),
            [
                "spec.ephemeralContainers[0].volumeDevices: block volumes are not supported: the container will not start"
            ]
        );
    }

    #[test]
    fn values_decide() {
        let service = |spec: Value| warnings("", "services", &json!({"spec": spec}), None).len();
        for (spec, count) in [
            (json!({"type": "ClusterIP", "trafficDistribution": "PreferSameNode"}), 0),
            (json!({"type": "LoadBalancer"}), 1),
            (
                json!({"type": "LoadBalancer", "loadBalancerClass": "a.b/c", "externalTrafficPolicy": "Local"}),
                1,
            ),
            (json!({"trafficDistribution": "PreferSameZone"}), 1),
        ] {
            assert_eq!(service(spec.clone()), count, "{spec}");
        }
    }
}
