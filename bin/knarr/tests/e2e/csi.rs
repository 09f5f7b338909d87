//! Storage drivers (CSI): they register with the kubelet, and pods get their volumes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::csi_driver::{Driver, NAME};
use crate::kubectl::Kubectl;
use crate::objects::{once, secret, sleeper};
use crate::sandbox::wait_for;

fn csi_driver(attach_required: bool) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": NAME},
        "spec": {"attachRequired": attach_required, "podInfoOnMount": true, "fsGroupPolicy": "File",
            "tokenRequests": [{"audience": "vault"}], "serviceAccountTokenInSecrets": attach_required,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"]}})
}

/// Creates a volume that exists already, and a claim that is bound to it.
fn static_volume(kubectl: &Kubectl<'_>, driver: &Driver, name: &str) {
    std::fs::create_dir_all(driver.data.join("volumes").join(name)).expect("folder");
    let reference = json!({"name": "key", "namespace": kubectl.namespace()});
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "mountOptions": ["noatime"], "claimRef": {"namespace": kubectl.namespace(), "name": name},
            "csi": {"driver": NAME, "volumeHandle": name, "nodeStageSecretRef": reference}}}));
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "none", "volumeName": name}}));
    kubectl.until(&format!("pvc {name}"), "{.status.phase}", "Bound");
}

fn with_volume(mut pod: Value, volume: Value) -> Value {
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    pod["spec"]["volumes"] = json!([volume]);
    pod
}

fn claimed(pod: Value, claim: &str) -> Value {
    with_volume(pod, json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}}))
}

/// Waits until nothing of a driver's volumes is mounted, and no record of them is left.
fn nothing_is_left(cluster: &Cluster) {
    wait_for("no volume left on the node", Duration::from_secs(60), || {
        let mounts = cluster.sandbox.sh("grep -c kubernetes.io.csi /proc/self/mountinfo || true");
        let records = cluster.sandbox.sh("find $0/data/kubelet -name vol_data.json | wc -l");
        (mounts.trim() == "0" && records.trim() == "0").then_some(())
    });
}

#[test]
fn a4_pods_get_volumes_of_a_csi_driver() {
    let mut cluster = Cluster::start();
    {
        // The restart in between is easier without the test's own namespace.
        let kubectl = cluster.admin();
        kubectl.eventually("get csinode -o name", |out| out.contains("knarr-test"));
        kubectl.apply(&csi_driver(false));
        kubectl.apply(&secret("key", json!({"password": "sesame"})));
        // A pod that is created before its driver waits for it.
        kubectl.apply(&with_volume(sleeper("early"), json!({"name": "data", "csi": {"driver": NAME}})));
        let message = kubectl.event("early", "FailedMount");
        assert_eq!(
            message.trim(),
            format!(
                "MountVolume.SetUp failed for volume \"data\" : kubernetes.io/csi: mounter.SetUpAt failed to get CSI \
                 client: driver name {NAME} not found in the list of registered CSI drivers"
            )
        );
    }
    let mut driver = Driver::start(&cluster);
    {
        let kubectl = cluster.admin();
        kubectl.ready("early");
        assert_eq!(driver.until_called("Registered"), "Registered true ");
        let drivers = kubectl.json("csinode knarr-test")["spec"]["drivers"].clone();
        let topology = format!("topology.{NAME}/node");
        assert_eq!(
            drivers,
            json!([{"name": NAME, "nodeID": "the-node", "topologyKeys": [topology], "allocatable": {"count": 7}}])
        );
        let node = kubectl.json("node knarr-test");
        assert_eq!(node["metadata"]["labels"][&topology], "here");
        let ids = format!("{{\"{NAME}\":\"the-node\"}}");
        assert_eq!(node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"], ids);
        let inline = driver.until_called("NodePublishVolume");
        assert!(inline.ends_with("pod=early ephemeral=true tokens=attribute options="), "{inline}");

        static_volume(&kubectl, &driver, "kept");
        let mut writer = claimed(once("writer", "id -G; touch /data/group; echo kept > /data/file"), "kept");
        writer["spec"]["securityContext"] = json!({"runAsUser": 1000, "fsGroup": 2000});
        kubectl.apply(&writer);
        kubectl.phase("writer", "Succeeded");
        kubectl.run("delete pod writer");
        driver.until_called("NodeUnstageVolume kept");
        let staged = driver.until_called("NodeStageVolume kept");
        assert_eq!(staged, "NodeStageVolume kept secret=sesame device=");
        let published = driver.until_called("NodePublishVolume kept");
        assert!(
            published.ends_with("pod=writer ephemeral=false tokens=attribute options=noatime"),
            "{published}"
        );

        // Two pods of a node share the staged volume; without the driver, running pods keep running.
        kubectl.apply(&claimed(sleeper("one"), "kept"));
        kubectl.apply(&claimed(sleeper("two"), "kept"));
        kubectl.ready("one");
        kubectl.ready("two");
        assert_eq!(kubectl.run("exec two -- cat /data/file"), "kept\n");
        assert_eq!(driver.count("NodeStageVolume kept"), 2);
        let figures = kubectl.run("get --raw /api/v1/nodes/knarr-test/proxy/metrics");
        let used = "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"kept\"} 40";
        assert!(figures.lines().any(|line| line == used), "{figures}");
        for operation in ["volume_mount", "volume_unmount", "unmount_device"] {
            let done = format!(
                "storage_operation_duration_seconds_count{{volume_plugin=\"kubernetes.io/csi:{NAME}\",\
                 operation_name=\"{operation}\",status=\"success\",migrated=\"false\"}} "
            );
            assert!(figures.contains(&done), "{done}\n{figures}");
        }
        let summary = kubectl.run("get --raw /api/v1/nodes/knarr-test/proxy/stats/summary");
        assert!(summary.contains(r#""pvcRef":{"name":"kept","namespace":"default"}"#), "{summary}");
        kubectl.run("delete pod one");
        assert_eq!(driver.count("NodeUnstageVolume kept"), 1);
    }
    cluster.kill_server();
    cluster.start_server();
    let kubectl = cluster.admin();
    assert_eq!(kubectl.run("exec two -- cat /data/file"), "kept\n");
    driver.stop(&cluster);
    kubectl.until("csinode knarr-test", "{.spec.drivers[*].name}", "");
    kubectl.run("delete pod two early --wait=false");
    let driver = Driver::start(&cluster);
    kubectl.run("wait --for=delete pod/two pod/early --timeout=60s");
    nothing_is_left(&cluster);
    assert_eq!(driver.count("NodeUnstageVolume kept"), 2);
    assert!(cluster.sandbox.path("csi/volumes/kept/file").exists(), "the data stays");
}

#[test]
fn a4_volumes_are_attached_before_they_are_mounted() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("csi");
    kubectl.apply(&csi_driver(true));
    kubectl.apply(&secret("key", json!({"password": "sesame"})));
    let driver = Driver::start(&cluster);
    static_volume(&kubectl, &driver, "disk");
    kubectl.apply(&claimed(sleeper("user"), "disk"));
    let unique = format!("kubernetes.io/csi/{NAME}^disk");
    kubectl.until("node knarr-test", "{.status.volumesInUse[0]}", &unique);
    let attachment = kubectl.run("get volumeattachments -o name").trim().to_owned();
    assert_eq!(
        kubectl.path(&attachment, "{.spec.attacher} {.spec.nodeName} {.spec.source.persistentVolumeName}"),
        format!("{NAME} knarr-test disk")
    );
    // The test takes the part of the external attacher.
    let patch = |status: &Value| {
        let status = json!({"status": status}).to_string();
        kubectl.run(["patch", &attachment, "--subresource=status", "--type=merge", "-p", &status]);
    };
    patch(&json!({"attached": false, "attachError": {"message": "no such disk"}}));
    let failed = kubectl.event("user", "FailedAttachVolume");
    assert_eq!(failed.trim(), "AttachVolume.Attach failed for volume \"disk\" : no such disk");
    assert_eq!(driver.count("NodeStageVolume"), 0);
    patch(&json!({"attached": true, "attachError": null, "attachmentMetadata": {"device": "sdx"}}));
    kubectl.ready("user");
    let succeeded = kubectl.event("user", "SuccessfulAttachVolume");
    assert_eq!(succeeded.trim(), "AttachVolume.Attach succeeded for volume \"disk\"");
    assert_eq!(driver.until_called("NodeStageVolume"), "NodeStageVolume disk secret=sesame device=sdx");
    kubectl.until("node knarr-test", "{.status.volumesAttached[0].name}", &unique);
    let published = driver.until_called("NodePublishVolume");
    assert!(published.contains("tokens=secret"), "{published}");

    kubectl.run("delete pod user");
    kubectl.eventually("get volumeattachments -o name", str::is_empty);
    kubectl.until("node knarr-test", "{.status.volumesInUse}{.status.volumesAttached}", "");
    nothing_is_left(&cluster);
}
