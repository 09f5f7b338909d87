//! Fields that no component acts on cause a warning; one request for each.

use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, PODS, config_map, default_account};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const NETWORKING: &str = "/apis/networking.k8s.io/v1/namespaces/default";

/// Returns a pod with these fields in its spec and in its container.
fn pod(spec: Value, container: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    pod["spec"]["containers"][0].as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod
}

fn volume(source: Value) -> Value {
    let mut volume = json!({"name": "v"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    pod(json!({"volumes": [volume]}), json!({}))
}

fn named(spec: Value) -> Value {
    json!({"metadata": {"name": "x"}, "spec": spec})
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"name": "x", "annotations": {key: value}}, "spec": {"ports": [{"port": 80}]}})
}

/// Returns the collection, the object and the expected warning.
fn cases() -> Vec<(String, Value, &'static str)> {
    let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
    let device = json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    let file = json!({"fileKeyRef": {"volumeName": "v", "path": "f", "key": "K"}});
    let ports = json!([{"port": 80}]);
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let nfs = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "nfs": {"server": "s", "path": "/"}});
    let local = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "mountOptions": ["noexec"],
        "local": {"path": "/data"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n"]}]}]}}});
    let mut formatted = local.clone();
    formatted["local"]["fsType"] = "ext4".into();
    let class = json!({"metadata": {"name": "c"}, "provisioner": "rancher.io/local-path",
        "mountOptions": ["noexec"], "parameters": {"nodePath": "/data"}});
    let windows = json!({"windowsOptions": {"runAsUserName": "a"}});
    let pods = [
        (
            pod(json!({"volumes": [claim]}), device),
            "spec.containers[0].volumeDevices: block volumes are not supported",
        ),
        (
            pod(json!({}), json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}})),
            "spec.containers[0].resources.limits.ephemeral-storage: counted by the scheduler, and not enforced",
        ),
        (
            pod(
                json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
                json!({"env": [{"name": "K", "valueFrom": file}]}),
            ),
            "spec.containers[0].env[0].valueFrom.fileKeyRef: environment variables from files are not supported",
        ),
        (
            pod(json!({}), json!({"restartPolicy": "Always", "restartPolicyRules": rule})),
            "spec.containers[0].restartPolicyRules[0].action: RestartAllContainers is not supported",
        ),
        (
            pod(json!({"resourceClaims": [{"name": "r", "resourceClaimName": "r"}]}), json!({})),
            "spec.resourceClaims: devices are allocated, and no driver prepares them",
        ),
        (
            pod(json!({"securityContext": {"seLinuxChangePolicy": "Recursive"}}), json!({})),
            "spec.securityContext.seLinuxChangePolicy: not supported",
        ),
        (
            pod(json!({"securityContext": windows}), json!({})),
            "spec.securityContext.windowsOptions: nodes run Linux",
        ),
        (
            pod(json!({}), json!({"securityContext": windows})),
            "spec.containers[0].securityContext.windowsOptions: nodes run Linux",
        ),
        (
            volume(json!({"emptyDir": {"sizeLimit": "1Gi"}})),
            "spec.volumes[0].emptyDir: sizeLimit is not enforced",
        ),
        (
            volume(json!({"emptyDir": {"medium": "HugePages"}})),
            "spec.volumes[0].emptyDir.medium: huge pages are not supported",
        ),
        (volume(json!({"nfs": {"server": "s", "path": "/"}})), "spec.volumes[0].nfs: there is no plugin"),
    ];
    let mut all: Vec<_> = pods.into_iter().map(|(body, text)| (PODS.to_owned(), body, text)).collect();
    let others = [
        ("/api/v1/persistentvolumes".to_owned(), named(nfs), "spec.nfs: there is no plugin"),
        (
            "/api/v1/persistentvolumes".to_owned(),
            named(local),
            "spec.mountOptions: only CSI volumes are mounted with options",
        ),
        (
            "/api/v1/persistentvolumes".to_owned(),
            named(formatted),
            "spec.local.fsType: a device behind a local volume is neither formatted nor mounted",
        ),
        (CLASSES.to_owned(), class.clone(), "mountOptions: the built-in provisioner has none"),
        (CLASSES.to_owned(), class, "parameters: the built-in provisioner has none"),
        (
            format!("{NETWORKING}/networkpolicies"),
            named(json!({"podSelector": {}})),
            "spec: the built-in pod network does not enforce NetworkPolicies",
        ),
        (
            format!("{NETWORKING}/ingresses"),
            named(json!({"defaultBackend": backend})),
            "spec: there is no built-in ingress controller",
        ),
        (
            SERVICES.to_owned(),
            named(json!({"type": "LoadBalancer", "ports": ports})),
            "spec.type: there is no built-in load balancer",
        ),
        (
            SERVICES.to_owned(),
            named(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": ports})),
            "spec.externalTrafficPolicy: the built-in service proxy does not answer health checks",
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices".to_owned(),
            json!({"metadata": {"name": "x"}, "addressType": "IPv4", "ports": [], "endpoints": [
                {"addresses": ["192.0.2.1"], "zone": "a", "hints": {"forZones": [{"name": "a"}]}},
            ]}),
            "endpoints[0].hints.forZones: the built-in service proxy does not prefer endpoints",
        ),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims".to_owned(),
            named(json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "local-path",
                "resources": {"requests": {"storage": "1Gi"}}})),
            "spec.resources.requests.storage: the size of local-path volumes is not enforced",
        ),
        (
            SERVICES.to_owned(),
            named(json!({"trafficDistribution": "PreferSameZone", "ports": ports})),
            "spec.trafficDistribution: the built-in service proxy does not prefer endpoints",
        ),
        (
            SERVICES.to_owned(),
            annotated("service.kubernetes.io/topology-mode", "Auto"),
            "metadata.annotations: topology-mode: the built-in service proxy",
        ),
        (
            "/apis/storage.k8s.io/v1/csidrivers".to_owned(),
            json!({"metadata": {"name": "a.b"}, "spec": {"seLinuxMount": true}}),
            "spec.seLinuxMount: volumes are mounted without SELinux labels",
        ),
    ];
    all.extend(others);
    all
}

#[tokio::test]
async fn what_is_not_kept_is_warned_of() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    let body = pod(json!({}), json!({"lifecycle": {"stopSignal": "SIGUSR1"}}));
    let reply = u.post(PODS, &body).await;
    let text =
        "spec.containers[0].lifecycle.stopSignal: not kept: the feature gate ContainerStopSignals is off";
    assert!(reply.warnings.iter().any(|w| w.contains(text)), "{:?}", reply.warnings);
    let kept = reply.expect(201);
    assert_eq!(kept.pointer("/spec/containers/0/lifecycle/stopSignal"), None);
    u.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.expect(201);
    let policy = json!({"spec": {"podPreemptionPolicy": {"disableResizePreemption": ["a"]}}});
    let reply = u.patch("/api/v1/nodes/n", "merge-patch+json", &policy).await;
    let text = "spec.podPreemptionPolicy: not kept";
    assert!(reply.warnings.iter().any(|w| w.contains(text)), "{:?}", reply.warnings);
    assert_eq!(reply.expect(200)["spec"].get("podPreemptionPolicy"), None);
}

#[tokio::test]
async fn shards_are_not_answered_without_a_word() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("c")).await.expect(201);
    let query = "shardSelector=shardRange(object.metadata.uid,%270x0%27,%270x8%27)";
    let list = u.get(&format!("{CONFIG_MAPS}?{query}")).await;
    assert!(list.warnings.iter().any(|w| w.contains("shardSelector: lists and watches have no shards")));
    assert_eq!(list.expect(200)["items"][0]["metadata"]["name"], "c");
    let refused = u.delete(&format!("{CONFIG_MAPS}?{query}")).await;
    assert_eq!(refused.message(), "shardSelector: collections have no shards: nothing was deleted");
    u.get(&format!("{CONFIG_MAPS}/c")).await.expect(200);
}

#[tokio::test]
async fn what_nothing_acts_on_is_warned_of() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    for (uri, body, text) in cases() {
        let reply = u.post(&format!("{uri}?dryRun=All"), &body).await;
        let warnings = reply.warnings.clone();
        reply.expect(201);
        let start = format!("299 - \"{text}");
        assert!(warnings.iter().any(|w| w.starts_with(&start)), "{text}: {warnings:?}");
    }
    let silent = u.post(CONFIG_MAPS, &config_map("c")).await;
    assert_eq!(silent.warnings, [""; 0]);
}
