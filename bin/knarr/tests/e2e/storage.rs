//! Persistent volumes, static and dynamically provisioned.

use serde_json::{Value, json};

use crate::cluster::shared;
use crate::objects::{once, sleeper};

fn claim(name: &str, spec: Value) -> Value {
    let mut whole = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}});
    if let (Some(whole), Some(spec)) = (whole.as_object_mut(), spec.as_object()) {
        whole.extend(spec.clone());
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": whole})
}

fn with_claim(mut pod: Value, claim: &str) -> Value {
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    pod
}

#[test]
fn g1_claims_and_volumes_find_each_other() {
    let cluster = shared();
    let kubectl = cluster.namespace("g1");
    let folder = cluster.sandbox.path("g1");
    std::fs::create_dir_all(&folder).expect("folder");
    let volume = |name: &str, size: &str, tier: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "labels": {"tier": tier}},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": folder}}})
    };
    for (name, size, tier) in [("g1-large", "5Gi", "a"), ("g1-small", "1Gi", "a"), ("g1-other", "1Gi", "b")] {
        kubectl.apply(&volume(name, size, tier));
    }
    let manual = |extra: Value| {
        let mut spec = json!({"storageClassName": "manual"});
        if let (Some(spec), Some(extra)) = (spec.as_object_mut(), extra.as_object()) {
            spec.extend(extra.clone());
        }
        spec
    };
    kubectl.apply(&claim("named", manual(json!({"volumeName": "g1-large"}))));
    kubectl.apply(&claim("selecting", manual(json!({"selector": {"matchLabels": {"tier": "b"}}}))));
    kubectl.until("pvc selecting", "{.spec.volumeName}", "g1-other");
    kubectl.until("pvc named", "{.status.phase}", "Bound");
    kubectl.apply(&claim("any", manual(json!({}))));
    kubectl.until("pvc any", "{.spec.volumeName} {.status.capacity.storage}", "g1-small 1Gi");
    kubectl.apply(&claim("many-writers", manual(json!({"accessModes": ["ReadWriteMany"]}))));
    kubectl.until("pvc many-writers", "{.status.phase}", "Pending");

    kubectl.apply(&with_claim(sleeper("user"), "any"));
    kubectl.ready("user");
    kubectl.run("delete pvc any --wait=false");
    kubectl.until("pvc any", "{.metadata.finalizers[0]}", "kubernetes.io/pvc-protection");
    kubectl.run("delete pod user");
    kubectl.run("wait --for=delete pvc/any --timeout=60s");
    kubectl.until("pv g1-small", "{.status.phase}", "Released");
    kubectl.run("delete pv g1-small g1-large g1-other --wait=false");
}

#[test]
fn g1_a_recycled_volume_is_emptied_and_free_again() {
    let cluster = shared();
    let kubectl = cluster.namespace("g1-recycle");
    let folder = cluster.sandbox.path("g1-recycle");
    std::fs::create_dir_all(folder.join("deep/er")).expect("a folder");
    std::fs::write(folder.join("deep/.hidden"), "left").expect("a file");
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "g1-recycled"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "recycled",
            "persistentVolumeReclaimPolicy": "Recycle", "hostPath": {"path": folder}}}));
    kubectl.apply(&claim("data", json!({"storageClassName": "recycled"})));
    kubectl.until("pv g1-recycled", "{.status.phase}", "Bound");
    kubectl.run("delete pvc data");
    kubectl.until("pv g1-recycled", "{.status.phase}{.spec.claimRef}", "Available");
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 0, "nothing is left");
    kubectl.run("wait --for=delete pod/recycler-for-g1-recycled -n default --timeout=60s");
    kubectl.run("delete pv g1-recycled --wait=false");
}

#[test]
fn g2_a_volume_is_made_where_its_pod_goes_and_goes_with_its_claim() {
    let kubectl = shared().namespace("g2");
    let classes = kubectl.run("get storageclass");
    assert!(
        classes.contains("local-path (default)") && classes.contains("WaitForFirstConsumer"),
        "{classes}"
    );
    kubectl.apply(&claim("data", json!({})));
    assert!(kubectl.event("data", "WaitForFirstConsumer").contains("waiting for first consumer"));
    assert_eq!(kubectl.path("pvc data", "{.spec.storageClassName} {.status.phase}"), "local-path Pending");
    let mut writer = with_claim(once("writer", "id -u; echo kept > /data/file"), "data");
    writer["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
    kubectl.apply(&writer);
    kubectl.phase("writer", "Succeeded");
    assert_eq!(kubectl.run("logs writer"), "1000\n");
    kubectl.apply(&with_claim(once("reader", "cat /data/file"), "data"));
    kubectl.phase("reader", "Succeeded");
    assert_eq!(kubectl.run("logs reader"), "kept\n");
    let volume = kubectl.path("pvc data", "{.spec.volumeName}");
    let path = kubectl.path(&format!("pv {volume}"), "{.spec.local.path}");
    assert_eq!(std::fs::read_to_string(format!("{path}/file")).expect("the file on the node"), "kept\n");
    assert_eq!(kubectl.path(&format!("pv {volume}"), "{.spec.capacity.storage}"), "64Mi");
    kubectl.run("delete pod writer reader");
    kubectl.run("delete pvc data");
    kubectl.run(&format!("wait --for=delete pv/{volume} --timeout=60s"));
    assert!(!std::path::Path::new(&path).exists(), "the folder went with the volume");

    kubectl.apply(&claim("shared", json!({"accessModes": ["ReadWriteMany"]})));
    kubectl.apply(&with_claim(sleeper("sharer"), "shared"));
    let why = kubectl.event("shared", "ProvisioningFailed");
    assert!(why.contains("only supports ReadWriteOnce"), "{why}");
    kubectl.run("delete pod sharer");
}

#[test]
fn g2_an_ephemeral_volume_comes_and_goes_with_its_pod() {
    let kubectl = shared().namespace("g2-ephemeral");
    let mut pod = sleeper("user");
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    pod["spec"]["volumes"] = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
        "metadata": {"labels": {"of": "user"}}, "spec": claim("", json!({}))["spec"]}}}]);
    kubectl.apply(&pod);
    kubectl.ready("user");
    kubectl.run(["exec", "user", "--", "touch", "/scratch/file"]);
    assert_eq!(kubectl.path("pvc -l of=user", "{.items[0].metadata.name}"), "user-scratch");
    kubectl.run("delete pod user");
    kubectl.run("wait --for=delete pvc/user-scratch --timeout=60s");
}
