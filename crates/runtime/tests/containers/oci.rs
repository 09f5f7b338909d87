//! Tests of containers that an OCI runtime runs: Debian's runc.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_runtime::containers::{
    Bind, Cgroups, ContainerSpec, ExecRequest, IdRange, Mount, MountKind, PidMode, SandboxConfig,
    SeccompProfile, User,
};

use crate::world::{World, eventually, sandbox};

fn program(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is needed: apt-get install {name}"))
}

fn config() -> SandboxConfig {
    SandboxConfig { oci_runtime: Some(program("runc")), ..sandbox("s") }
}

async fn world(config: SandboxConfig) -> World {
    let world = World::new().await;
    world.runtime.run_sandbox(config).await.unwrap();
    world
}

/// Returns the runtime's own records, none of which should be left.
fn records(world: &World) -> Vec<String> {
    let root = world.options.state_dir.join("sandboxes/s/oci");
    fs::read_dir(root).map_or_else(
        |_| Vec::new(),
        |entries| entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect(),
    )
}

#[tokio::test]
async fn a_container_is_as_its_spec_says() {
    let world = world(config()).await;
    let data = world.folder.join("data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("file"), "of the volume\n").unwrap();
    let script = "id -u; id -g; id -G; hostname; pwd; echo $A; cat /data/file; touch /data/x || echo sealed; \
        grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t ' ' '; echo err >&2; exit 7";
    let mut spec = world.spec("c", &["sh", "-c", script]);
    spec.user = User { uid: 101, gid: 102, additional_gids: vec![103] };
    spec.env = vec!["A=b".into()];
    spec.cwd = "/tmp".into();
    spec.no_new_privileges = true;
    spec.seccomp = SeccompProfile::RuntimeDefault;
    let bind = Bind { source: data, read_only: true, ..Bind::default() };
    spec.mounts = vec![Mount { destination: "/data".into(), kind: MountKind::Bind(bind) }];
    let (code, log) = world.script(spec).await;
    let want = [
        "101",
        "102",
        "102 103",
        "host-s",
        "/tmp",
        "b",
        "of the volume",
        "CapBnd: 00000000a80425fb",
        "NoNewPrivs: 1",
        "Seccomp: 2",
    ];
    assert!(log.contains("sealed") && log.ends_with("err"), "{log}");
    let out: Vec<&str> = log.lines().filter(|line| want.contains(line)).collect();
    assert_eq!((code, out), (7, want.to_vec()), "{log}");
    eventually("the runtime's record to go", || records(&world).is_empty()).await;
}

#[tokio::test]
async fn commands_signals_and_the_end() {
    let world = world(config()).await;
    world
        .run(world.spec("c", &["sh", "-c", "trap 'echo asked; exit 3' TERM; while :; do sleep 0.05; done"]))
        .await;
    assert_eq!(world.sh("c", "echo $PATH; hostname; cat /proc/1/comm; exit 0").await.0, 0);
    for code in 0..20 {
        assert_eq!(world.sh("c", &format!("exit {code}")).await.0, code);
    }
    let status = world.runtime.container("c").unwrap().status;
    let cgroups = world.runtime.cgroups();
    assert!(cgroups.processes("besteffort/pods/c").contains(&status.pid), "the limits of its pod hold");
    let shims = Cgroups::detect(&world.options.shim_cgroup).unwrap();
    assert_eq!(shims.children(""), Vec::<String>::new(), "nothing of it is beside the shim");
    // As probes and users run them.
    let commands = (0..8).map(|code| (code, format!("exit {code}"))).collect::<Vec<_>>();
    let ends = commands.iter().map(async |(code, script)| (*code, world.sh("c", script).await.0));
    for (wanted, code) in futures_util::future::join_all(ends).await {
        assert_eq!(code, wanted);
    }
    let left = fs::read_dir(world.options.state_dir.join("sandboxes/s/containers/c")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("exec-")), "{left:?}");
    let args = vec!["nope".to_owned()];
    let error = world.runtime.exec_sync("c", args, None).await.unwrap_err().to_string();
    assert!(error.contains("executable file not found in $PATH"), "{error}");
    assert_eq!(records(&world), ["c"]);
    world.runtime.stop_container("c", Duration::from_secs(20)).await.unwrap();
    let status = world.runtime.wait_container("c").await.unwrap();
    assert_eq!((status.exit_code, world.log("c").as_str()), (Some(3), "asked"));
    // A container that ignores the stop signal is killed, with all its processes.
    world.run(world.spec("deaf", &["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"])).await;
    world.runtime.stop_container("deaf", Duration::from_millis(50)).await.unwrap();
    let status = world.runtime.wait_container("deaf").await.unwrap();
    assert_eq!((status.exit_code, status.signal), (Some(137), Some(9)));
    eventually("the runtime's records to go", || records(&world).is_empty()).await;
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let world = world(config()).await;
    world.runtime.create_container("s", world.spec("c", &["nope"])).await.unwrap();
    let error = world.runtime.start_container("c").await.unwrap_err().to_string();
    assert!(error.contains("unable to start container process: exec: \"nope\""), "{error}");
    assert_eq!(error.matches("unable to start").count(), 1, "{error}");
    eventually("the runtime's record to go", || records(&world).is_empty()).await;
    let missing = SandboxConfig { id: "m".into(), oci_runtime: Some("/no/such/runtime".into()), ..config() };
    world.runtime.run_sandbox(missing).await.unwrap();
    world.runtime.create_container("m", world.spec("d", &["true"])).await.unwrap();
    let error = world.runtime.start_container("d").await.unwrap_err().to_string();
    assert!(error.contains("run /no/such/runtime: no such file or directory"), "{error}");
    let ids = Some(IdRange { first: 1_500_000, count: 65_536 });
    let error = world.runtime.run_sandbox(SandboxConfig { id: "u".into(), user_namespace: ids, ..config() });
    assert!(error.await.is_err());
}

#[tokio::test]
async fn terminals() {
    let world = world(config()).await;
    let mut spec = world.spec("c", &["sh", "-c", "tty; read line; echo got $line"]);
    (spec.tty, spec.stdin) = (true, true);
    world.run(spec).await;
    eventually("the terminal", || world.log("c").contains("/dev/pts/0")).await;
    let args = ["sh", "-c", "tty; exit 5"].map(str::to_owned).to_vec();
    let request =
        ExecRequest { container_id: "c".into(), args, tty: true, stdout: true, ..Default::default() };
    let mut session = world.runtime.exec(request).await.unwrap();
    let mut text = Vec::new();
    let mut stdout = session.stdout.take().unwrap();
    // Reading a terminal whose other end is closed ends with an error.
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut text).await;
    assert!(String::from_utf8_lossy(&text).contains("/dev/pts/1"), "{text:?}");
}

#[tokio::test]
async fn containers_share_what_the_sandbox_has() {
    let world = world(SandboxConfig { shared_pid: true, ..config() }).await;
    let mut first = world.spec("first", &["sh", "-c", "echo shared > /dev/shm/file; sleep 1000"]);
    first.pid_mode = PidMode::Pod;
    world.run(first).await;
    let look = "cat /dev/shm/file; grep -l sleep /proc/[0-9]*/comm | wc -l; cat /proc/1/comm; \
        readlink /proc/self/ns/net";
    let of_the_host = fs::read_link("/proc/self/ns/net").unwrap().to_string_lossy().into_owned();
    let spec = ContainerSpec { pid_mode: PidMode::Pod, ..world.spec("second", &["sh", "-c", look]) };
    let (code, log) = world.script(spec).await;
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!((code, &lines[..3]), (0, &["shared", "1", "pause"][..]), "{log}");
    assert_ne!(lines[3], of_the_host);
}

/// When a command is given up, no process of the runtime's call outlives it, whatever the runtime is doing.
#[tokio::test]
async fn a_command_that_is_given_up_takes_the_runtimes_call_with_it() {
    let world = World::new().await;
    let slow = world.folder.join("slow-runc");
    let script = format!(
        "#!/bin/sh\nfor word; do [ \"$word\" = exec ] && {{ sleep 1000; exit 1; }}; done\nexec {} \"$@\"\n",
        program("runc").display()
    );
    fs::write(&slow, script).unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    let config = SandboxConfig { oci_runtime: Some(slow), ..config() };
    world.runtime.run_sandbox(config).await.unwrap();
    world.run(world.spec("c", &["sleep", "1000"])).await;
    let shims = Cgroups::detect(&world.options.shim_cgroup).unwrap();
    let before = shims.processes("");
    let output = world.runtime.exec_sync("c", vec!["true".into()], Some(Duration::from_secs(1))).await;
    assert!(output.is_err(), "{output:?}");
    eventually("the runtime's call to be gone", || shims.processes("") == before).await;
    let bundle = world.options.state_dir.join("sandboxes/s/containers/c");
    eventually("its files to be gone", || {
        let mut left = fs::read_dir(&bundle).unwrap().map(|entry| entry.unwrap().file_name());
        !left.any(|name| name.to_string_lossy().starts_with("exec-"))
    })
    .await;
}

#[tokio::test]
async fn nobody_can_change_the_hosts_null_device() {
    let world = world(config()).await;
    world.run(world.spec("c", &["sleep", "1000"])).await;
    // The mode stays the same: if the call is not refused, nothing changes.
    let (code, output) = world.sh("c", "chmod 0666 /proc/self/fd/0 2>&1").await;
    assert!(code != 0 && output.contains("Read-only file system"), "{code}: {output}");
}

#[tokio::test]
async fn those_that_could_take_over_the_runtimes_process_are_refused() {
    let world = world(config()).await;
    let mut spec = world.spec("c", &["true"]);
    spec.capabilities.add = vec!["SYS_PTRACE".into()];
    world.runtime.create_container("s", spec).await.unwrap();
    let error = world.runtime.start_container("c").await.unwrap_err().to_string();
    assert!(error.contains("SYS_PTRACE is refused"), "{error}");
}
