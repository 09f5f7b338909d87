//! Tests of sandboxes with their own user namespace.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use knarr_runtime::containers::{
    Bind, ContainerSpec, ExecRequest, IdRange, Mount, MountKind, PidMode, SandboxConfig,
};
use tokio::io::AsyncReadExt;

use crate::world::{World, sandbox};

const IDS: IdRange = IdRange { first: 1_500_000, count: 65_536 };

fn config() -> SandboxConfig {
    SandboxConfig { user_namespace: Some(IDS), ..sandbox("s") }
}

/// Creates a world whose sandbox `s` has a user namespace; `None` if the kernel cannot map the ids of this file
/// system.
async fn world() -> Option<World> {
    let world = World::new().await;
    world.runtime.run_sandbox(config()).await.unwrap();
    let probe = world.spec("probe", &["true"]);
    world.runtime.create_container("s", probe).await.unwrap();
    match world.runtime.start_container("probe").await {
        Err(error) if error.to_string().contains("MOUNT_ATTR_IDMAP") => {
            // A guest of `cargo xtask escapes` has a disk for these tests.
            assert!(std::env::var_os("KNARR_TEST_RUN_ON_DISK").is_none(), "{error}");
            eprintln!("skipped: {error}");
            None
        }
        other => {
            other.unwrap();
            Some(world)
        }
    }
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[tokio::test]
async fn root_inside_is_nobody_outside() {
    let Some(world) = world().await else { return };
    let data = world.folder.join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("of-root"), "").unwrap();
    fs::write(data.join("of-web"), "").unwrap();
    chown(data.join("of-web"), Some(101), Some(102)).unwrap();
    let script = "id -u; cat /proc/self/uid_map | tr -s ' '; echo $$; stat -c %u:%g /data/of-root /data/of-web /etc/passwd; \
        touch /data/new /in-image && echo made; grep CapEff /proc/self/status | cut -f2; \
        echo x > /dev/null && head -c1 /dev/zero | wc -c; df /dev/shm | grep -c shm; touch /dev/shm/x && echo shm; \
        hostname; ls /proc/sys | wc -l; echo 1 2>/dev/null > /proc/sys/kernel/domainname || echo sealed; sleep 1000";
    let mut spec = world.spec("c", &["sh", "-c", script]);
    let rootfs = spec.rootfs.clone();
    let bind = Bind { source: data.clone(), ..Bind::default() };
    spec.mounts = vec![Mount { destination: "/data".into(), kind: MountKind::Bind(bind) }];
    world.run(spec).await;
    crate::world::eventually("the container's output", || world.log("c").lines().count() >= 14).await;
    let log = world.log("c");
    let want = [
        "0",
        " 0 1500000 65536",
        "1",
        "0:0",
        "101:102",
        "0:0",
        "made",
        "00000000a80425fb",
        "1",
        "1",
        "shm",
        "host-s",
    ];
    assert_eq!(lines(&log)[..12], want, "{log}");
    assert_eq!(lines(&log)[13], "sealed", "{log}");
    // On disk the files belong to root, so that the next pod, with other ids, finds them as its root's.
    for file in [data.join("new"), rootfs.join("in-image")] {
        assert_eq!(fs::metadata(&file).unwrap().uid(), 0, "{file:?}");
    }
    let pid = world.runtime.container("c").unwrap().status.pid;
    assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), IDS.first);
    // Check commands and terminals, too.
    assert_eq!(world.sh("c", "id -u; cat /proc/self/uid_map | tr -s ' '").await.1, "0\n 0 1500000 65536");
    let args = ["sh", "-c", "tty; stat -c %u $(tty)"].map(str::to_owned).to_vec();
    let request =
        ExecRequest { container_id: "c".into(), args, tty: true, stdout: true, ..Default::default() };
    let mut streams = world.runtime.exec(request).await.unwrap();
    let mut seen = String::new();
    streams.stdout.take().unwrap().read_to_string(&mut seen).await.unwrap();
    assert_eq!(seen.replace('\r', ""), "/dev/pts/0\n0\n");
    assert_eq!(streams.wait().await.unwrap(), 0);
}

#[tokio::test]
async fn other_users_ends_and_limits() {
    let Some(world) = world().await else { return };
    let mut spec = world.spec("user", &["sh", "-c", "id -u; id -G; echo ok > /dev/stdout; exit 7"]);
    spec.user.uid = 101;
    spec.user.gid = 102;
    spec.user.additional_gids = vec![2000];
    assert_eq!(world.script(spec).await, (7, "101\n102 2000\nok".to_owned()));
    let mut spec = world.spec("beyond", &["true"]);
    spec.user.uid = 65_536;
    world.runtime.create_container("s", spec).await.unwrap();
    let error = world.runtime.start_container("beyond").await.unwrap_err().to_string();
    assert!(error.contains("user 65536 is beyond the 65536 ids"), "{error}");
    let missing = world.spec("missing", &["nope"]);
    world.runtime.create_container("s", missing).await.unwrap();
    let error = world.runtime.start_container("missing").await.unwrap_err().to_string();
    assert!(error.contains("executable file not found in $PATH"), "{error}");
    let mut spec = world.spec("tty", &["sh", "-c", "tty; stat -c %u /dev/console"]);
    spec.tty = true;
    assert_eq!(world.script(spec).await.1.replace('\r', ""), "/dev/pts/0\n0");
}

#[tokio::test]
async fn a_container_looks_into_another() {
    let Some(world) = world().await else { return };
    world.run(world.spec("app", &["sleep", "4321"])).await;
    let mut look = world.spec("look", &["sh", "-c", "ps -o args; ls /proc/1/root/bin | grep -c busybox"]);
    look.pid_mode = PidMode::Target("app".to_owned());
    let (code, log) = world.script(look).await;
    assert!(code == 0 && log.contains("sleep 4321"), "{log}");
}

#[tokio::test]
async fn a_shared_pid_namespace_belongs_to_it() {
    let world = World::new().await;
    world.runtime.run_sandbox(SandboxConfig { shared_pid: true, ..config() }).await.unwrap();
    let mut spec = world
        .spec("c", &["sh", "-c", "echo $$; grep Uid /proc/1/status | tr -s '\\t ' ' '; cat /proc/1/comm"]);
    spec.pid_mode = PidMode::Pod;
    world.runtime.create_container("s", spec).await.unwrap();
    match world.runtime.start_container("c").await {
        Err(error) if error.to_string().contains("MOUNT_ATTR_IDMAP") => return,
        other => drop(other.unwrap()),
    }
    world.runtime.wait_container("c").await.unwrap();
    let log = world.log("c");
    assert_ne!(lines(&log)[0], "1");
    assert_eq!(lines(&log)[1..], ["Uid: 65535 65535 65535 65535", "pause"]);
}

#[tokio::test]
async fn a_restarted_server_takes_it_up_again() {
    let Some(mut world) = world().await else { return };
    world.run(world.spec("c", &["sh", "-c", "sleep 1000"])).await;
    world.restart().await;
    assert_eq!(world.sh("c", "cat /proc/self/uid_map | tr -s ' '").await.1, " 0 1500000 65536");
    let spec: ContainerSpec = world.spec("d", &["id", "-u"]);
    assert_eq!(world.script(spec).await, (0, "0".to_owned()));
}

#[tokio::test]
async fn impossible_ones_are_refused() {
    let world = World::new().await;
    let ids = |first, count| Some(IdRange { first, count });
    for config in [
        SandboxConfig { host_network: true, ..config() },
        SandboxConfig { user_namespace: ids(0, 65_536), ..config() },
        SandboxConfig { user_namespace: ids(100_000, 0), ..config() },
        SandboxConfig { user_namespace: ids(u32::MAX - 65_535, 65_536), ..config() },
    ] {
        assert!(world.runtime.run_sandbox(config).await.is_err());
    }
}
