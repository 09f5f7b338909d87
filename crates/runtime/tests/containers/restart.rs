//! Tests that containers outlive the server, exit codes are kept, dead shims are noticed, and nothing is left
//! behind.

use std::time::Duration;

use knarr_runtime::containers::{ContainerState, Event, PurgeCgroups, SandboxState, purge};

use crate::world::{World, eventually};

#[tokio::test]
async fn a_restarted_server_takes_everything_up_again() {
    let mut world = World::new().await;
    let mut spec = world.spec("long", &["sh", "-c", "while :; do echo tick; sleep 0.05; done"]);
    spec.labels.insert("name".into(), "web".into());
    world.run(spec).await;
    world.run(world.spec("short", &["sh", "-c", "sleep 0.4; exit 9"])).await;
    world.runtime.create_container("s", world.spec("made", &["true"])).await.unwrap();
    let pid = world.runtime.container("long").unwrap().status.pid;
    // To a shim, a new handle without dropping the old one looks like a killed server.
    world.restart().await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    world.restart().await;
    let long = world.runtime.container("long").unwrap();
    assert_eq!((long.status.state, long.status.pid), (ContainerState::Running, pid));
    assert_eq!(long.spec.labels["name"], "web");
    let short = world.runtime.container("short").unwrap().status;
    assert_eq!((short.state, short.exit_code), (ContainerState::Exited, Some(9)));
    assert_eq!(world.runtime.container("made").unwrap().status.state, ContainerState::Created);
    world.runtime.start_container("made").await.unwrap();
    assert_eq!(world.runtime.wait_container("made").await.unwrap().exit_code, Some(0));
    assert_eq!(world.sh("long", "echo still").await.1, "still");
    assert!(world.log("long").lines().count() > 5);
}

#[tokio::test]
async fn a_dead_shim_takes_its_containers_along() {
    let mut world = World::new().await;
    world.run(world.spec("c", &["sleep", "1000"])).await;
    world.run(world.spec("done", &["sh", "-c", "exit 5"])).await;
    world.runtime.wait_container("done").await.unwrap();
    let container = world.runtime.container("c").unwrap().status.pid;
    let mut events = world.runtime.events();
    // SAFETY: the shim of this test's own sandbox.
    unsafe { libc::kill(world.shim_pid("s"), libc::SIGKILL) };
    let status = world.runtime.wait_container("c").await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (Some(137), "ContainerStatusUnknown"));
    assert!(matches!(events.recv().await.unwrap(), Event::ContainerExited { .. }));
    assert_eq!(world.runtime.container("done").unwrap().status.exit_code, Some(5));
    assert_eq!(world.runtime.sandbox_status("s").unwrap().state, SandboxState::NotReady);
    eventually("the container's end", || !std::path::Path::new(&format!("/proc/{container}")).exists()).await;
    world.restart().await;
    assert_eq!(world.runtime.container("c").unwrap().status.exit_code, Some(137));
    world.runtime.remove_container("c").await.unwrap();
    world.runtime.remove_sandbox("s").await.unwrap();
    assert!(world.runtime.list_sandboxes().is_empty());
}

/// A newer server meets an older shim, and an older server a newer one.
#[tokio::test]
async fn sandboxes_of_other_versions() {
    let mut world = World::new().await;
    world.run(world.spec("c", &["sh", "-c", "setsid sleep 1000 & sleep 1000"])).await;
    let pid = world.runtime.container("c").unwrap().status.pid;
    let path = world.options.state_dir.join("sandboxes/s/sandbox.json");
    let rewrite = |version: Option<u32>| {
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        match version {
            Some(version) => record["version"] = version.into(),
            None => drop(record.as_object_mut().unwrap().remove("version").expect("a version")),
        }
        std::fs::write(&path, record.to_string()).unwrap();
    };
    rewrite(None);
    world.restart().await;
    assert_eq!(world.runtime.sandbox_status("s").unwrap().state, SandboxState::Ready);
    assert_eq!(world.sh("c", "echo still").await.1, "still");
    rewrite(Some(9));
    world.restart().await;
    assert!(world.runtime.list_sandboxes().is_empty());
    assert!(!path.exists());
    eventually("the container's end", || !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
    eventually("an empty cgroup", || world.runtime.cgroups().processes("").is_empty()).await;
    // The name is free for the pod's next sandbox.
    world.sandbox("s").await;
}

#[tokio::test]
async fn a_shim_says_what_it_does_not_understand() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::new().await;
    world.sandbox("s").await;
    let folder = std::fs::File::open(world.options.state_dir.join("sandboxes/s")).unwrap();
    let path = format!("/proc/self/fd/{}/shim.sock", std::os::fd::AsRawFd::as_raw_fd(&folder));
    let mut shim = tokio::net::UnixStream::connect(path).await.unwrap();
    let spec = world.spec("c", &["true"]);
    let mut later = serde_json::to_value(&spec).unwrap();
    later["confined_by"] = "something new".into();
    let known = serde_json::to_value(&spec).unwrap();
    for (number, spec, want) in [(1, later, "unknown field `confined_by`"), (2, known, "\"Container\"")] {
        let body = serde_json::json!({"number": number, "body": {"Create": spec}}).to_string();
        shim.write_u32_le(body.len() as u32).await.unwrap();
        shim.write_u32_le(0).await.unwrap();
        shim.write_all(body.as_bytes()).await.unwrap();
        let length = shim.read_u32_le().await.unwrap();
        shim.read_u32_le().await.unwrap();
        let mut answer = vec![0; length as usize];
        shim.read_exact(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains(want) && answer.contains(&format!("\"number\":{number}")), "{answer}");
    }
}

#[tokio::test]
async fn purge_leaves_nothing() {
    let world = World::new().await;
    world.run(world.spec("c", &["sh", "-c", "setsid sleep 1000 & sleep 1000"])).await;
    let pid = world.runtime.container("c").unwrap().status.pid;
    let (world, report) = tokio::task::spawn_blocking(move || {
        let report = world.purge().unwrap();
        (world, report)
    })
    .await
    .unwrap();
    assert_eq!(report.sandboxes, 1);
    assert!(!world.options.state_dir.exists());
    eventually("the container's end", || !std::path::Path::new(&format!("/proc/{pid}")).exists()).await;
    assert!(!world.runtime.cgroups().exists(""));
    assert_eq!(world.purge().unwrap(), Default::default());
}

#[tokio::test]
async fn purge_leaves_what_another_state_folder_has_in_the_same_cgroups() {
    let world = World::new().await;
    world.run(world.spec("c", &["sleep", "1000"])).await;
    let pid = world.runtime.container("c").unwrap().status.pid;
    let mut options = world.options.clone();
    options.state_dir = world.folder.join("other");
    let other = knarr_runtime::containers::Runtime::open(options.clone()).await.unwrap();
    other.run_sandbox(crate::world::sandbox("t")).await.unwrap();
    let pods = ["burstable/podgone".to_owned()];
    other.cgroups().create(&pods[0], &Default::default()).unwrap();
    let cgroups = PurgeCgroups { root: &options.cgroup_root, shims: &options.shim_cgroup, pods: &pods };
    let report = purge(&options.state_dir, cgroups).unwrap();
    assert_eq!(report.sandboxes, 1);
    assert!(!options.state_dir.exists());
    let there = world.runtime.cgroups();
    assert!(!there.exists("besteffort/podt") && !there.exists(&pods[0]) && !there.exists("burstable"));
    assert!(there.processes("besteffort/pods").contains(&pid), "the other one's container runs on");
    assert_eq!(world.sh("c", "echo still").await.1, "still");
}

#[tokio::test]
async fn logs_are_reopened_after_rotation() {
    let world = World::new().await;
    world.run(world.spec("c", &["sh", "-c", "while :; do echo tick; sleep 0.02; done"])).await;
    let log = world.log_path("c");
    eventually("a line", || !world.log("c").is_empty()).await;
    let rotated = log.with_extension("1");
    std::fs::rename(&log, &rotated).unwrap();
    world.runtime.reopen_log("c").await.unwrap();
    eventually("a line in the new file", || !world.log("c").is_empty()).await;
    let before = std::fs::metadata(&rotated).unwrap().len();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(std::fs::metadata(&rotated).unwrap().len(), before);
}

/// Not a test of its own: the server that the next test kills.
#[tokio::test]
#[ignore = "run by a_killed_server_leaves_containers_running"]
async fn server_to_be_killed() {
    let Some(world) = World::from_env().await else { return };
    world.run(world.spec("long", &["sleep", "1000"])).await;
    world.run(world.spec("short", &["sh", "-c", "sleep 0.5; echo bye; exit 9"])).await;
    std::fs::write(world.folder.join("up"), "").unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_server_leaves_containers_running() {
    let mut world = World::new().await;
    let mut server = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restart::server_to_be_killed", "--ignored", "--nocapture"])
        .envs(world.env())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the server's containers", || world.folder.join("up").exists()).await;
    server.kill().unwrap();
    server.wait().unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    world.restart().await;
    assert_eq!(world.runtime.sandbox_status("s").unwrap().state, SandboxState::Ready);
    assert_eq!(world.sh("long", "echo alive").await.1, "alive");
    let short = world.runtime.container("short").unwrap().status;
    assert_eq!((short.exit_code, world.log("short").as_str()), (Some(9), "bye"));
    let status = world.runtime.stop_container("long", Duration::ZERO).await.unwrap();
    assert_eq!(status.exit_code, Some(137));
}
