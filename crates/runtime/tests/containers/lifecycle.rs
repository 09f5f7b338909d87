//! Tests of the life cycle, from the sandbox to the exit code.

use std::time::Duration;

use knarr_runtime::containers::{ContainerState, Error, Event, SandboxState};

use crate::world::World;

#[tokio::test]
async fn a_container_runs_logs_and_exits() {
    let world = World::new().await;
    let mut events = world.runtime.events();
    let spec = world.spec("c", &["sh", "-c", "echo out; echo err >&2; hostname; echo $HOME $PATH; exit 3"]);
    let (code, log) = world.script(spec).await;
    assert_eq!(code, 3);
    for want in ["out", "err", "host-s", "/root /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    {
        assert!(log.lines().any(|line| line == want), "{want} in {log}");
    }
    let status = world.runtime.container("c").unwrap().status;
    assert_eq!((status.state, status.reason.as_str()), (ContainerState::Exited, "Error"));
    assert!(status.started_at <= status.finished_at && status.started_at.is_some());
    assert!(matches!(events.recv().await.unwrap(), Event::ContainerStarted { .. }));
    assert!(
        matches!(events.recv().await.unwrap(), Event::ContainerExited { status, .. } if status.exit_code == Some(3))
    );
    world.runtime.remove_container("c").await.unwrap();
    assert!(matches!(world.runtime.container("c"), Err(Error::ContainerNotFound(_))));
    assert!(!world.runtime.cgroups().exists("besteffort/pods/c"));
}

#[tokio::test]
async fn stop_is_polite_first() {
    let world = World::new().await;
    world.run(world.spec("polite", &["sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.05; done"])).await;
    world.run(world.spec("deaf", &["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"])).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let status = world.runtime.stop_container("polite", Duration::from_secs(10)).await.unwrap();
    assert_eq!(status.exit_code, Some(7));
    let status = world.runtime.stop_container("deaf", Duration::from_millis(200)).await.unwrap();
    assert_eq!((status.exit_code, status.signal), (Some(137), Some(9)));
}

#[tokio::test]
async fn starts_that_fail_are_worded_as_runc_words_them() {
    let world = World::new().await;
    world.sandbox("s").await;
    let cases = [
        ("a", "nope", "/", "exec: \"nope\": executable file not found in $PATH"),
        ("b", "/nope", "/", "exec: \"/nope\": stat /nope: no such file or directory"),
        ("c", "/etc/passwd", "/", "exec: \"/etc/passwd\": permission denied"),
        ("d", "/etc", "/", "exec: \"/etc\": is a directory"),
        (
            "e",
            "sh",
            "/etc/passwd",
            "chdir to cwd (\"/etc/passwd\") set in config.json failed: not a directory",
        ),
    ];
    for (id, program, cwd, want) in cases {
        let mut spec = world.spec(id, &[program]);
        spec.cwd = cwd.to_owned();
        world.runtime.create_container("s", spec).await.unwrap();
        let error = world.runtime.start_container(id).await.unwrap_err();
        assert_eq!(error.to_string(), format!("unable to start container process: {want}"));
        assert!(matches!(error, Error::Start { exit_code: 128, .. }));
        let status = world.runtime.container(id).unwrap().status;
        assert_eq!((status.state, status.exit_code), (ContainerState::Exited, Some(128)));
        assert_eq!(status.reason, "StartError");
    }
}

#[tokio::test]
async fn sandboxes_stop_and_go() {
    let world = World::new().await;
    world.run(world.spec("c", &["sleep", "1000"])).await;
    let pid = world.shim_pid("s");
    let netns = world.runtime.sandbox_status("s").unwrap().netns_path.unwrap();
    assert!(std::fs::File::open(&netns).is_ok());
    world.runtime.stop_sandbox("s").await.unwrap();
    world.runtime.stop_sandbox("s").await.unwrap();
    assert_eq!(world.runtime.sandbox_status("s").unwrap().state, SandboxState::NotReady);
    assert_eq!(world.runtime.container("c").unwrap().status.exit_code, Some(137));
    crate::world::eventually("the shim's end", || !std::path::Path::new(&format!("/proc/{pid}")).exists())
        .await;
    world.runtime.remove_sandbox("s").await.unwrap();
    world.runtime.remove_sandbox("s").await.unwrap();
    assert!(world.runtime.list_sandboxes().is_empty() && world.runtime.list_containers().is_empty());
    assert!(world.runtime.cgroups().children("besteffort/pods").is_empty());
}
