//! Pods whose RuntimeClass selects an OCI runtime: runc, as packaged by Debian.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_kubelet::embedded::OciHandler;
use knarr_kubelet::runtime::{ContainerRuntime, RuntimeHandler};
use knarr_runtime::containers::OciProgram;
use serde_json::json;

use crate::world::World;

fn runc() -> PathBuf {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join("runc")).find(|path| path.exists());
    found.expect("runc is needed: apt-get install runc")
}

async fn world() -> World {
    let program = OciProgram::open(&runc()).unwrap();
    let world = World::with_handlers(vec![OciHandler { name: "runc".to_owned(), program }]).await;
    for (class, handler) in [("other", "runc"), ("missing", "nothing")] {
        world.add::<RuntimeClass>(json!({"metadata": {"name": class}, "handler": handler}));
    }
    world
}

/// Returns the containers for which OCI runtimes keep state.
fn records(world: &World) -> Vec<String> {
    let sandboxes = std::fs::read_dir(world.options.state_dir.join("sandboxes")).unwrap();
    let roots = sandboxes.map(|sandbox| sandbox.unwrap().path().join("oci"));
    let entries = roots.flat_map(|root| std::fs::read_dir(root).into_iter().flatten());
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_lives_through_a_restart_by_its_runtime() {
    let mut world = world().await;
    let script = "id -u; cat /data/file; touch /ready; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let exec = |command: &str| json!({"exec": {"command": ["sh", "-c", command]}, "periodSeconds": 1});
    world.add_pod(
        "web",
        json!({
            "runtimeClassName": "other",
            "overhead": {"cpu": "250m", "memory": "16Mi"},
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [{
                "name": "init", "image": "box:1", "command": ["sh", "-c", "echo of the init container > /d/file"],
                "volumeMounts": [{"name": "data", "mountPath": "/d"}],
                "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}},
            }],
            "containers": [{
                "name": "main", "image": "box:1", "command": ["sh", "-c", script],
                "securityContext": {"runAsUser": 1000, "runAsGroup": 0},
                "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": true,
                                  "recursiveReadOnly": "IfPossible"}],
                "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}},
                "readinessProbe": exec("test -e /tmp/ready || test -e /ready"),
                "livenessProbe": exec("test ! -e /tmp/sick"),
            }],
        }),
    );
    world.until("two lines", "web", |w| w.log("web", "main", 0).lines().count() >= 2).await;
    assert_eq!(
        world.log("web", "main", 0).lines().take(2).collect::<Vec<_>>(),
        ["1000", "of the init container"]
    );
    world.until("its id", "web", |w| w.container("web", "main").container_id.is_some()).await;
    let id = world.container("web", "main").container_id.unwrap();
    let bare = id.strip_prefix("knarr://").unwrap().to_owned();
    let sh = async |world: &World, script: &str| {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let output = world.embedded.exec_sync(&bare, &command, 10).await.unwrap();
        (output.exit_code, String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    assert!(!world.container("web", "main").ready);
    assert_eq!(sh(&world, "touch /tmp/ready && cat /proc/1/comm").await, (0, "sh".to_owned()));
    world.until("readiness", "web", |w| w.container("web", "main").ready).await;
    assert_eq!(records(&world), [bare.as_str()]);
    // The pod's cgroup includes the overhead.
    let cgroups = world.embedded.cgroups();
    let v1 = format!("/sys/fs/cgroup/memory/{}/memory.limit_in_bytes", cgroups.full_path("poduid-of-web"));
    let v2 = format!("/sys/fs/cgroup/{}/memory.max", cgroups.full_path("poduid-of-web"));
    let limit = std::fs::read_to_string(v1).or_else(|_| std::fs::read_to_string(v2)).unwrap();
    assert_eq!(limit.trim(), (80 << 20).to_string());

    world.restart().await;
    world.until("the same readiness", "web", |w| w.container("web", "main").ready).await;
    assert_eq!(world.container("web", "main").container_id.as_ref(), Some(&id));
    assert_eq!(sh(&world, "exit 7").await.0, 7);
    // A container whose probe fails is restarted.
    assert_eq!(sh(&world, "touch /tmp/sick").await.0, 0);
    world.until("another start", "web", |w| w.container("web", "main").restart_count == 1).await;
    world
        .until("its end", "web", |w| {
            w.container("web", "main").last_state.unwrap_or_default().terminated.is_some()
        })
        .await;
    let ended = world.container("web", "main").last_state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (0, Some("Completed")));

    let options = DeleteOptions { grace_period_seconds: Some(5), ..DeleteOptions::default() };
    world.api.client().delete::<Pod>("default", "web", &options).await.unwrap();
    world.until("the end", "web", |w| w.pod("web").is_none()).await;
    world.until("no cgroup", "web", |w| !w.embedded.cgroups().exists("poduid-of-web")).await;
    let sandboxes = |w: &World| std::fs::read_dir(w.options.state_dir.join("sandboxes")).unwrap().count();
    world.until("no sandbox", "web", |w| sandboxes(w) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_are_listed_and_others_refused() {
    let world = world().await;
    let features = world.embedded.features();
    let names: Vec<&str> = features.handlers.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["", "runc"]);
    let RuntimeHandler { recursive_read_only_mounts, user_namespaces, .. } = features.handlers[1];
    assert_eq!((recursive_read_only_mounts, user_namespaces), (true, false), "of runc 1.1");
    let refused = async |name: &str, spec: serde_json::Value, why: &str| {
        world.add_pod(name, spec);
        let emitted = |w: &World| {
            let mut events = w.api.all::<Event>().into_iter();
            let reason = Some("FailedCreatePodSandBox".to_owned());
            events.any(|e| {
                e.involved_object.name.as_deref() == Some(name)
                    && e.reason == reason
                    && e.message.unwrap_or_default().contains(why)
            })
        };
        world.until("a refusal", name, emitted).await;
        assert!(world.container(name, "c").container_id.is_none());
    };
    let containers = json!([{"name": "c", "image": "box:1"}]);
    let missing = json!({"runtimeClassName": "missing", "containers": containers});
    refused("a", missing, "failed to get sandbox runtime: no runtime for \"nothing\" is configured").await;
    let own_users = json!({"runtimeClassName": "other", "hostUsers": false, "containers": containers});
    refused("b", own_users, "RuntimeClass handler \"runc\" does not support user namespaces").await;
    assert!(world.embedded.list_pod_sandboxes().await.unwrap().is_empty());
}
