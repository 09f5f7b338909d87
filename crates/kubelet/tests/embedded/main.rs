//! Pods on the embedded runtime, as root, with real namespaces, cgroups, overlays and volumes.

mod handlers;
mod mounts;
mod resizes;
mod world;

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_kubelet::runtime::{ContainerRuntime, PodSandboxConfig};
use serde_json::json;

use world::World;

/// One pod that uses most features, through a restart of the server to its deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_lives_through_a_restart_and_leaves_nothing() {
    let mut world = World::new().await;
    world.add::<ConfigMap>(json!({
        "metadata": {"name": "cfg", "namespace": "default"}, "data": {"key": "from a map"},
    }));
    let script = "echo hello $(NAME) from $MY_POD at $MY_IP, $FROM_IMAGE; cat /data/part/file /cfg/key; echo; \
                  id -u; hostname; exec sleep 1000";
    world.add_pod(
        "web",
        json!({
            "terminationGracePeriodSeconds": 2,
            "securityContext": {"fsGroup": 2000},
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "cfg", "configMap": {"name": "cfg"}},
                {"name": "tree", "image": {"reference": "box:1", "pullPolicy": "Never"}},
            ],
            "initContainers": [{
                "name": "init", "image": "box:1",
                "command": ["sh", "-c", "mkdir -p /d/part; echo made by init > /d/part/file"],
                "volumeMounts": [{"name": "data", "mountPath": "/d"}],
            }],
            "containers": [{
                "name": "main", "image": "box:1",
                "command": ["sh", "-c"], "args": [script],
                "env": [
                    {"name": "NAME", "value": "world"},
                    {"name": "MY_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
                "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": false},
                "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}},
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "data", "mountPath": "/sub", "subPath": "part"},
                    {"name": "cfg", "mountPath": "/cfg"},
                    {"name": "tree", "mountPath": "/tree"},
                    {"name": "tree", "mountPath": "/tree-bin", "subPath": "bin"},
                ],
                "readinessProbe": {"exec": {"command": ["test", "-f", "/sub/file"]}, "periodSeconds": 1},
                "lifecycle": {"postStart": {"exec": {"command": ["touch", "/tmp/started"]}}},
            }],
        }),
    );
    world.until("readiness", "web", |w| w.container("web", "main").ready).await;
    assert_eq!(world.phase("web"), "Running");
    let id = world.container("web", "main").container_id.unwrap();
    let short = id.strip_prefix("knarr://").unwrap().to_owned();
    let expected = "hello world from web at 10.99.0.2, yes\nmade by init\nfrom a map\n1000\nweb";
    world.until("output", "web", |w| w.log("web", "main", 0) == expected).await;
    let sh = async |world: &World, script: &str| {
        let command = ["sh", "-c", script].map(str::to_owned);
        let output = world.embedded.exec_sync(&short, &command, 10).await.unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim_end().to_owned()
    };
    let resolv = sh(&world, "cat /etc/resolv.conf").await;
    assert!(
        resolv.starts_with("search default.svc.cluster.local svc.cluster.local cluster.local"),
        "{resolv}"
    );
    assert!(resolv.contains("nameserver 10.96.0.10\noptions ndots:5"), "{resolv}");
    assert!(sh(&world, "cat /etc/hosts").await.contains("10.99.0.2\tweb"));
    assert_eq!(
        sh(&world, "ls /tmp/started; cat /sub/file; id -G").await,
        "/tmp/started\nmade by init\n0 2000"
    );
    let tree = sh(&world, "ls /tree-bin/busybox; touch /tree/x; /tree/bin/busybox true").await;
    assert!(tree.starts_with("/tree-bin/busybox\n"), "{tree}");
    assert!(tree.contains("Read-only file system") && tree.contains("Permission denied"), "{tree}");
    let cgroup = "burstable/poduid-of-web";
    assert!(world.embedded.cgroups().exists(cgroup), "the pod has its cgroup");

    world.restart().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.container("web", "main").container_id.as_ref(), Some(&id));
    assert!(world.container("web", "main").ready);
    assert_eq!(world.container("web", "main").restart_count, 0);
    assert_eq!(sh(&world, "echo still here").await, "still here");

    let options = DeleteOptions { grace_period_seconds: Some(2), ..DeleteOptions::default() };
    world.api.client().delete::<Pod>("default", "web", &options).await.unwrap();
    world.until("the end", "web", |w| w.pod("web").is_none()).await;
    world.until("empty folders", "web", |w| !w.folder.join("kubelet/pods/uid-of-web").exists()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(world.embedded.list_pod_sandboxes().await.unwrap().is_empty());
    assert!(world.embedded.list_containers().await.unwrap().is_empty());
    assert!(world.embedded.images().snapshots().await.unwrap().is_empty());
    assert!(!world.embedded.cgroups().exists(cgroup));
    assert_eq!(std::fs::read_dir(world.folder.join("sandboxes")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(world.folder.join("kubelet/logs")).unwrap().count(), 0);
}

/// Unknown runtime handlers are refused, and not replaced by the default one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolation_that_is_not_there_is_refused() {
    let world = World::new().await;
    let config = PodSandboxConfig { runtime_handler: "kata".into(), ..PodSandboxConfig::default() };
    assert_eq!(
        world.embedded.run_pod_sandbox(&config).await.unwrap_err().to_string(),
        "failed to get sandbox runtime: no runtime for \"kata\" is configured"
    );
    assert!(world.embedded.list_pod_sandboxes().await.unwrap().is_empty());
}

/// `hostUsers: false`: each such pod has its own id range, which a restart of the kubelet does not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_with_a_user_namespace_of_their_own() {
    let mut world = World::new().await;
    world.add::<ConfigMap>(json!({
        "metadata": {"name": "cfg", "namespace": "default"}, "data": {"key": "from a map"},
    }));
    let script = "cut -c1-40 /proc/self/uid_map | tr -s ' '; id -u; stat -c %u:%g /bin/sh /cfg/key /data /etc/hosts; \
                  cat /cfg/key; echo; touch /data/file /new && stat -c %u:%g /data/file /new /; \
                  ls /tree >/dev/null && stat -c %u:%g /tree/bin/sh; exec sleep 1000";
    for name in ["one", "two"] {
        world.add_pod(
            name,
            json!({
                "hostUsers": false,
                "terminationGracePeriodSeconds": 1,
                "volumes": [
                    {"name": "data", "emptyDir": {}},
                    {"name": "cfg", "configMap": {"name": "cfg"}},
                    {"name": "tree", "image": {"reference": "box:1", "pullPolicy": "Never"}},
                ],
                "containers": [{
                    "name": "main", "image": "box:1", "command": ["sh", "-c", script],
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"},
                        {"name": "cfg", "mountPath": "/cfg"},
                        {"name": "tree", "mountPath": "/tree"},
                    ],
                }],
            }),
        );
        world.until("the pod's run", name, |w| w.log(name, "main", 0).lines().count() >= 11).await;
    }
    let expected =
        |first: u32| format!(" 0 {first} 65536\n0\n0:0\n0:0\n0:0\n0:0\nfrom a map\n0:0\n0:0\n0:0\n0:0");
    assert_eq!(world.log("one", "main", 0), expected(65_536));
    assert_eq!(world.log("two", "main", 0), expected(131_072));
    world.restart().await;
    let id = world.container("two", "main").container_id.unwrap();
    let short = id.strip_prefix("knarr://").unwrap();
    let output = world
        .embedded
        .exec_sync(
            short,
            &["sh", "-c", "id -u; cut -c1-40 /proc/self/uid_map | tr -s ' '"].map(str::to_owned),
            10,
        )
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n 0 131072 65536\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_containers_end() {
    let world = World::new().await;
    let pod = |policy: &str, script: &str, more: serde_json::Value| {
        let mut container = json!({"name": "main", "image": "box:1", "command": ["sh", "-c", script]});
        for (key, value) in more.as_object().into_iter().flatten() {
            container[key] = value.clone();
        }
        json!({"restartPolicy": policy, "containers": [container], "terminationGracePeriodSeconds": 1})
    };
    let file = json!({"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
    let logs = json!({"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "FallbackToLogsOnError"});
    let hungry = json!({"resources": {"limits": {"memory": "16Mi"}}});
    world.add_pod("done", pod("Never", "echo -n all well > /dev/termination-log", file));
    world.add_pod("told", pod("Never", "echo the last word; exit 3", logs));
    world.add_pod("oom", pod("Never", "x=a; while true; do x=$x$x$x$x; done", hungry));
    world.add_pod("nope", pod("Never", "", json!({"command": ["/no/such/program"]})));
    let loops = pod("Always", "exit 5", json!({}));
    world.add_pod("loops", loops);
    let ended = |w: &World, name: &str| {
        let state = w.container(name, "main").state.and_then(|s| s.terminated);
        state.map(|t| (t.exit_code, t.reason.unwrap_or_default(), t.message.unwrap_or_default()))
    };
    world.until("success", "done", |w| w.phase("done") == "Succeeded").await;
    assert_eq!(ended(&world, "done"), Some((0, "Completed".into(), "all well".into())));
    world.until("failure", "told", |w| w.phase("told") == "Failed").await;
    assert_eq!(ended(&world, "told"), Some((3, "Error".into(), "the last word\n".into())));
    world.until("the OOM kill", "oom", |w| w.phase("oom") == "Failed").await;
    assert_eq!(ended(&world, "oom").unwrap().1, "OOMKilled");
    world.until("the failed start", "nope", |w| w.phase("nope") == "Failed").await;
    let (code, reason, message) = ended(&world, "nope").unwrap();
    assert_eq!((code, reason.as_str()), (128, "StartError"));
    assert!(message.contains("no such file or directory"), "{message}");
    world
        .until("the back-off", "loops", |w| {
            let state = w.container("loops", "main").state.and_then(|s| s.waiting);
            state.and_then(|s| s.reason).as_deref() == Some("CrashLoopBackOff")
        })
        .await;
    assert_eq!(world.container("loops", "main").last_state.unwrap().terminated.unwrap().exit_code, 5);
}
