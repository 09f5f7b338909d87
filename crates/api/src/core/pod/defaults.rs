//! Defaults of pod specs, shared by pods and all kinds with pod templates.

use serde_json::{Value, json};

use super::image;
use crate::core::claim_spec;
use crate::defaults::{Fields, blank, child, existing, items, text, unset};
use crate::dropped;
use crate::prepare::object;

/// Sets the defaults of a Pod, with those that only pods have: requests from limits, host ports, service links.
pub fn pod(value: &mut Value) {
    let fields = object(value);
    let spec = child(fields, "spec");
    pod_spec(spec);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|s| s < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    unset(spec, "enableServiceLinks", true);
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            requests_from_limits(container);
            if host_network {
                for port in items(container, "ports") {
                    let inside = port.get("containerPort").cloned().unwrap_or(Value::Null);
                    blank(port, "hostPort", inside);
                }
            }
        }
    }
    if let Some(status) = existing(fields, "status") {
        addresses(status);
    }
}

/// Sets the defaults of a workload's `spec.template`, which exists even if the request has none.
pub fn template(workload: &mut Value) {
    let spec = child(object(workload), "spec");
    pod_spec(child(child(spec, "template"), "spec"));
}

fn requests_from_limits(container: &mut Fields) {
    let Some(resources) = existing(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    if limits.is_empty() {
        return;
    }
    let requests = child(resources, "requests");
    for (name, quantity) in limits {
        unset(requests, &name, quantity);
    }
}

/// Makes `podIP` and the first of `podIPs` equal; the single one takes precedence.
fn addresses(status: &mut Fields) {
    let first = status.get("podIPs").and_then(|ips| ips.get(0)).and_then(|ip| ip.get("ip")).cloned();
    let single = text(status, "podIP").to_owned();
    match first {
        Some(first) if single.is_empty() => {
            status.insert("podIP".to_owned(), first);
        }
        first if !single.is_empty() && first.as_ref().and_then(Value::as_str) != Some(&*single) => {
            status.insert("podIPs".to_owned(), json!([{"ip": single}]));
        }
        _ => {}
    }
}

/// Sets the defaults of a pod spec, in a pod or in a template.
pub fn pod_spec(spec: &mut Fields) {
    dropped::drop_from_pod(spec);
    let mut account = text(spec, "serviceAccountName").to_owned();
    if account.is_empty() {
        account = text(spec, "serviceAccount").to_owned();
    }
    if !account.is_empty() {
        spec.insert("serviceAccountName".to_owned(), json!(account));
        spec.insert("serviceAccount".to_owned(), json!(account));
    }
    blank(spec, "dnsPolicy", "ClusterFirst");
    blank(spec, "restartPolicy", "Always");
    unset(spec, "securityContext", json!({}));
    unset(spec, "terminationGracePeriodSeconds", 30);
    blank(spec, "schedulerName", "default-scheduler");
    for volume in items(spec, "volumes") {
        self::volume(volume);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items(spec, list) {
            self::container(container);
        }
    }
}

fn container(container: &mut Fields) {
    let policy = image::pull_policy(text(container, "image"));
    blank(container, "imagePullPolicy", policy);
    blank(container, "terminationMessagePath", "/dev/termination-log");
    blank(container, "terminationMessagePolicy", "File");
    unset(container, "resources", json!({}));
    for port in items(container, "ports") {
        blank(port, "protocol", "TCP");
    }
    for env in items(container, "env") {
        let Some(from) = existing(env, "valueFrom") else { continue };
        if let Some(field) = existing(from, "fieldRef") {
            blank(field, "apiVersion", "v1");
        }
        if let Some(file) = existing(from, "fileKeyRef") {
            unset(file, "optional", false);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = existing(container, probe) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = existing(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(get) = existing(lifecycle, hook).and_then(|hook| existing(hook, "httpGet")) {
                http_get(get);
            }
        }
    }
}

fn probe(probe: &mut Fields) {
    blank(probe, "timeoutSeconds", 1);
    blank(probe, "periodSeconds", 10);
    blank(probe, "successThreshold", 1);
    blank(probe, "failureThreshold", 3);
    if let Some(get) = existing(probe, "httpGet") {
        http_get(get);
    }
    if let Some(grpc) = existing(probe, "grpc") {
        unset(grpc, "service", "");
    }
}

fn http_get(get: &mut Fields) {
    blank(get, "path", "/");
    blank(get, "scheme", "HTTP");
}

/// Modes are decimal in JSON: 420 is 0644.
const FILE_MODE: i64 = 0o644;

fn volume(volume: &mut Fields) {
    if volume.iter().all(|(name, source)| name == "name" || source.is_null()) {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = existing(volume, source) {
            unset(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(host_path) = existing(volume, "hostPath") {
        unset(host_path, "type", "");
    }
    if let Some(downward) = existing(volume, "downwardAPI") {
        downward_items(downward);
    }
    if let Some(projected) = existing(volume, "projected") {
        for source in items(projected, "sources") {
            if let Some(downward) = existing(source, "downwardAPI") {
                downward_items(downward);
            }
            if let Some(token) = existing(source, "serviceAccountToken") {
                unset(token, "expirationSeconds", 3600);
            }
        }
    }
    if let Some(image) = existing(volume, "image") {
        let policy = image::pull_policy(text(image, "reference"));
        blank(image, "pullPolicy", policy);
    }
    if let Some(claim) = existing(volume, "ephemeral").and_then(|e| existing(e, "volumeClaimTemplate")) {
        claim_spec::default_spec(child(claim, "spec"));
    }
    network_volume(volume);
}

fn downward_items(downward: &mut Fields) {
    for item in items(downward, "items") {
        if let Some(field) = existing(item, "fieldRef") {
            blank(field, "apiVersion", "v1");
        }
    }
}

/// Sets the defaults of volume sources that pods and persistent volumes share.
pub fn network_volume(volume: &mut Fields) {
    if let Some(iscsi) = existing(volume, "iscsi") {
        blank(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = existing(volume, "rbd") {
        blank(rbd, "pool", "rbd");
        blank(rbd, "user", "admin");
        blank(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(disk) = existing(volume, "azureDisk") {
        unset(disk, "cachingMode", "ReadWrite");
        unset(disk, "kind", "Shared");
        unset(disk, "fsType", "ext4");
        unset(disk, "readOnly", false);
    }
    if let Some(scale_io) = existing(volume, "scaleIO") {
        blank(scale_io, "storageMode", "ThinProvisioned");
        blank(scale_io, "fsType", "xfs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_becomes_a_whole_one() {
        let mut value = json!({"metadata": {"name": "a"}, "spec": {
            "serviceAccount": "me", "hostNetwork": true,
            "containers": [{
                "name": "c", "image": "nginx",
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"port": 80}},
                "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }],
            "volumes": [
                {"name": "v"},
                {"name": "s", "secret": {"secretName": "s"}},
                {"name": "h", "hostPath": {"path": "/x"}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            ],
        }});
        pod(&mut value);
        assert_eq!(
            value["spec"],
            json!({
                "serviceAccount": "me", "serviceAccountName": "me", "hostNetwork": true,
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler",
                "enableServiceLinks": true,
                "containers": [{
                    "name": "c", "image": "nginx", "imagePullPolicy": "Always",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                    "livenessProbe": {
                        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                    },
                    "env": [{"name": "X", "valueFrom": {
                        "fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}}],
                }],
                "volumes": [
                    {"name": "v", "emptyDir": {}},
                    {"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
                    {"name": "h", "hostPath": {"path": "/x", "type": ""}},
                    {"name": "p", "projected": {"defaultMode": 420,
                        "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}},
                ],
            })
        );
        let once = value.clone();
        pod(&mut value);
        assert_eq!(value, once);
    }

    #[test]
    fn pod_addresses_agree() {
        for (before, after) in [
            (json!({"podIP": "1"}), json!({"podIP": "1", "podIPs": [{"ip": "1"}]})),
            (json!({"podIPs": [{"ip": "1"}]}), json!({"podIP": "1", "podIPs": [{"ip": "1"}]})),
            (json!({"podIP": "2", "podIPs": [{"ip": "1"}]}), json!({"podIP": "2", "podIPs": [{"ip": "2"}]})),
            (json!({}), json!({})),
        ] {
            let mut status = before.clone();
            addresses(object(&mut status));
            assert_eq!(status, after, "{before}");
        }
    }
}
