//! Pods that are resized while they run, and the limits in their cgroups.

use std::process::Command;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use knarr_kubelet::runtime::ContainerRuntime as _;
use serde_json::{Value, json};

use crate::world::World;

fn requirements(value: &Value) -> ResourceRequirements {
    serde_json::from_value(value.clone()).unwrap()
}

/// Returns the CPU quota in microseconds and the memory limit in bytes of the cgroup whose path has this suffix.
fn limits(world: &World, suffix: &str) -> (String, String) {
    let read = |names: [&str; 2]| {
        let [v1, v2] = names.map(|name| format!("*{}*{suffix}/{name}", world.options.cgroup_root));
        let find = Command::new("find").args(["/sys/fs/cgroup", "-path", &v1, "-o", "-path", &v2]).output();
        let found = String::from_utf8(find.unwrap().stdout).unwrap();
        let path = found.lines().next().expect("a cgroup with limits");
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().next().unwrap_or_default().to_owned()
    };
    (read(["cpu.cfs_quota_us", "cpu.max"]), read(["memory.limit_in_bytes", "memory.max"]))
}

/// KEP-1287: an init container is resized while it runs, and is not restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_init_container_is_resized_while_it_runs() {
    let world = World::new().await;
    let before = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "200m", "memory": "32Mi"}});
    let after = json!({"requests": {"cpu": "150m"}, "limits": {"cpu": "300m", "memory": "48Mi"}});
    world.add_pod(
        "slow",
        json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "signals", "emptyDir": {}}],
            "initContainers": [{
                "name": "prepare", "image": "box:1", "resources": before,
                "command": ["sh", "-c", "echo begun; until test -f /signals/go; do sleep 0.05; done"],
                "volumeMounts": [{"name": "signals", "mountPath": "/signals"}],
            }],
            "containers": [{"name": "main", "image": "box:1"}],
        }),
    );
    let runs = |w: &World| w.container("slow", "prepare").state.is_some_and(|s| s.running.is_some());
    world.until("the init container", "slow", runs).await;
    let id = world.container("slow", "prepare").container_id.unwrap();
    let short = id.strip_prefix("knarr://").unwrap().to_owned();
    assert_eq!(limits(&world, &short), ("20000".into(), (32 << 20).to_string()));

    world.api.edit::<Pod>("default", "slow", |pod| {
        let containers = pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap();
        containers[0].resources = Some(requirements(&after));
        pod.metadata.generation = Some(2);
    });
    let has = |w: &World| w.container("slow", "prepare").resources == Some(requirements(&after));
    world.until("the new size in the status", "slow", has).await;
    assert_eq!(limits(&world, &short), ("30000".into(), (48 << 20).to_string()));
    let in_force = world.embedded.container_limits(&short).await.unwrap();
    assert_eq!((in_force.cpu_quota, in_force.memory_limit), (Some(30_000), Some(48 << 20)));
    let status = world.container("slow", "prepare");
    assert_eq!((status.container_id, status.restart_count), (Some(id), 0));
    assert_eq!(world.log("slow", "prepare", 0), "begun");

    std::fs::write(
        world.folder.join("kubelet/pods/uid-of-slow/volumes/kubernetes.io~empty-dir/signals/go"),
        "",
    )
    .unwrap();
    world.until("the main container", "slow", |w| w.container("slow", "main").ready).await;
}

/// KEP-5419: the pod's own cgroup is resized, and its status shows the actual resources.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pod_is_resized_as_a_whole() {
    let world = World::new().await;
    let before =
        json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}});
    let after =
        json!({"requests": {"cpu": "150m", "memory": "48Mi"}, "limits": {"cpu": "300m", "memory": "96Mi"}});
    world.add_pod(
        "whole",
        json!({
            "terminationGracePeriodSeconds": 1,
            "resources": before,
            "containers": [{"name": "main", "image": "box:1"}],
        }),
    );
    let status = |w: &World| w.pod("whole").and_then(|p| p.status).unwrap_or_default();
    world.until("the pod", "whole", |w| w.container("whole", "main").ready).await;
    let id = world.container("whole", "main").container_id;
    let cgroup = "burstable/poduid-of-whole";
    assert_eq!(limits(&world, cgroup), ("20000".into(), (64 << 20).to_string()));
    assert_eq!(status(&world).resources, Some(requirements(&before)));

    world.api.edit::<Pod>("default", "whole", |pod| {
        pod.spec.as_mut().unwrap().resources = Some(requirements(&after));
        pod.metadata.generation = Some(2);
    });
    let has = |w: &World| status(w).resources == Some(requirements(&after));
    world.until("the new size in the status", "whole", has).await;
    assert_eq!(limits(&world, cgroup), ("30000".into(), (96 << 20).to_string()));
    let short = id.as_deref().and_then(|id| id.strip_prefix("knarr://")).unwrap();
    assert_eq!(
        limits(&world, short),
        ("30000".into(), (96 << 20).to_string()),
        "the container has none of its own"
    );
    assert_eq!(status(&world).allocated_resources, requirements(&after).requests);
    assert_eq!(world.container("whole", "main").container_id, id, "it was not restarted");
}
