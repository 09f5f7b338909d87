//! Tests of resources: memory, processes, CPU, statistics.

use std::time::Duration;

use knarr_runtime::containers::{ContainerState, Event, Resources};

use crate::world::World;

#[tokio::test]
async fn too_much_memory_is_oom_killed() {
    let world = World::new().await;
    let mut spec = world.spec("c", &["sh", "-c", "head -c 100m /dev/zero | tail"]);
    spec.args = ["sh", "-c", "x=$(yes | head -c 60000000); echo survived"].map(str::to_owned).to_vec();
    spec.resources.memory_limit = Some(16 << 20);
    let (code, log) = world.script(spec).await;
    let status = world.runtime.container("c").unwrap().status;
    assert!(status.oom_killed && status.reason == "OOMKilled", "{status:?} {log}");
    assert_ne!((code, log.as_str()), (0, "survived"));
}

#[tokio::test]
async fn an_oom_kill_of_a_child_is_an_event() {
    let world = World::new().await;
    let mut events = world.runtime.events();
    let mut spec = world.spec("c", &["sh", "-c", "while :; do (x=$(yes | head -c 60000000)); sleep 1; done"]);
    spec.resources.memory_limit = Some(16 << 20);
    world.run(spec).await;
    let oom = async {
        loop {
            if matches!(events.recv().await.unwrap(), Event::ContainerOom { .. }) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), oom).await.unwrap();
    assert_eq!(world.runtime.container("c").unwrap().status.state, ContainerState::Running);
}

#[tokio::test]
async fn a_fork_bomb_is_contained_and_stopped() {
    let world = World::new().await;
    let mut spec =
        world.spec("c", &["sh", "-c", "(while :; do sleep 100 & done) 2>/dev/null; exec sleep 1000"]);
    spec.resources.pids_limit = Some(40);
    world.run(spec).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stats = world.runtime.container_stats("c").unwrap();
    assert!(stats.pids > 5 && stats.pids <= 40, "{stats:?}");
    world.runtime.stop_container("c", Duration::ZERO).await.unwrap();
    assert!(world.runtime.cgroups().processes("besteffort/pods/c").is_empty());
}

#[tokio::test]
async fn limits_can_change_and_are_measured() {
    let world = World::new().await;
    let mut spec = world.spec("c", &["sh", "-c", "while :; do :; done"]);
    spec.resources = Resources { cpu_shares: Some(512), cpu_quota: Some(20_000), ..Resources::default() };
    world.run(spec).await;
    let change = Resources { memory_limit: Some(64 << 20), pids_limit: Some(9), ..Resources::default() };
    world.runtime.update_resources("c", change).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stats = world.runtime.container_stats("c").unwrap();
    assert!(stats.cpu_usage_nanos > 1_000_000 && stats.pids == 1, "{stats:?}");
    assert!(stats.memory_usage_bytes > 0 && stats.memory_working_set_bytes <= stats.memory_usage_bytes);
}
