//! Tests of what a container sees and may do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_runtime::containers::{
    Bind, ContainerSpec, Mount, MountKind, PidMode, Propagation, Rlimit, SeccompProfile, User,
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::world::{World, sandbox};

fn bind(source: &std::path::Path, destination: &str, read_only: bool) -> Mount {
    let source = source.to_owned();
    Mount {
        destination: destination.into(),
        kind: MountKind::Bind(Bind { source, read_only, ..Bind::default() }),
    }
}

async fn lines(world: &World, spec: ContainerSpec) -> Vec<String> {
    world.script(spec).await.1.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn default_surroundings() {
    let world = World::new().await;
    let script = "ls /dev | tr '\\n' ' '; echo; echo $$; ls /sys/firmware | wc -l; \
        head -c1 /proc/kcore | wc -c; echo x > /proc/sys/kernel/domainname; echo $?; touch /sys/x; echo $?; \
        grep -c . /proc/self/mountinfo > /dev/null; df -m /dev/shm | grep -c 64; grep CapEff /proc/self/status | cut -f2; \
        grep NoNewPrivs /proc/self/status | cut -f2; ls -d /sys/fs/cgroup/memory /sys/fs/cgroup/cgroup.procs 2>/dev/null | wc -l; \
        ls /proc/self/fd | wc -l; ip link | grep -c lo:; cat /dev/mem > /dev/null; echo $?";
    let mut spec = world.spec("c", &["sh", "-c", script]);
    // The script's own error messages are discarded.
    spec.args[2] = format!("exec 2>/dev/null; {script}");
    let got = lines(&world, spec).await;
    let want = ["1", "0", "0", "1", "1", "1", "00000000a80425fb", "0", "1", "4", "1", "1"];
    assert_eq!(
        got[0].trim(),
        "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    assert_eq!(got[1..], want);
}

#[tokio::test]
async fn users_and_privileges() {
    let world = World::new().await;
    let mut spec = world.spec("c", &["sh", "-c", "id -u; id -G; echo $HOME; grep CapEff /proc/self/status | cut -f2; echo ok > /dev/stdout; touch /x 2>/dev/null || echo refused"]);
    spec.user = User { uid: 101, gid: 102, additional_gids: vec![2000, 3000] };
    spec.no_new_privileges = true;
    spec.seccomp = SeccompProfile::RuntimeDefault;
    let got = lines(&world, spec).await;
    assert_eq!(got[..5], ["101", "102 2000 3000", "/srv", "0000000000000000", "ok"], "{got:?}");
    assert_eq!(got.last().unwrap(), "refused");
    let mut spec = world.spec("p", &["sh", "-c", "mount -t tmpfs none /tmp && echo mounted; ls /dev | wc -l; touch /sys/fs/cgroup 2>/dev/null; grep Seccomp: /proc/self/status | cut -f2"]);
    spec.privileged = true;
    spec.seccomp = SeccompProfile::RuntimeDefault;
    let got = lines(&world, spec).await;
    assert_eq!((got[0].as_str(), got.last().unwrap().as_str()), ("mounted", "0"));
    let mut spec = world.spec("a", &["sh", "-c", "grep -E 'Cap(Eff|Amb)' /proc/self/status | cut -f2"]);
    spec.user.uid = 101;
    spec.capabilities.drop = vec!["ALL".into()];
    spec.capabilities.add = vec!["NET_BIND_SERVICE".into()];
    spec.capabilities.ambient = vec!["NET_BIND_SERVICE".into()];
    assert_eq!(lines(&world, spec).await, ["0000000000000400", "0000000000000400"]);
}

#[tokio::test]
async fn seccomp_profiles() {
    let world = World::new().await;
    let script = "unshare -m true 2>/dev/null && echo unshared || echo refused; mkdir /tmp/d 2>/dev/null && echo made || echo unmade";
    let mut spec = world.spec("d", &["sh", "-c", script]);
    spec.seccomp = SeccompProfile::RuntimeDefault;
    assert_eq!(lines(&world, spec).await, ["refused", "made"]);
    let mut spec = world.spec("l", &["sh", "-c", script]);
    spec.capabilities.add = vec!["SYS_ADMIN".into()];
    let profile = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}"#;
    spec.seccomp = SeccompProfile::Localhost(profile.into());
    let got = lines(&world, spec).await;
    assert_eq!((got[0].as_str(), got[1].as_str()), ("unshared", "unmade"));
    let mut spec = world.spec("bad", &["true"]);
    spec.seccomp = SeccompProfile::Localhost("{".into());
    world.runtime.create_container("s", spec).await.unwrap();
    assert!(world.runtime.start_container("bad").await.unwrap_err().to_string().contains("seccomp profile"));
}

#[tokio::test]
async fn mounts() {
    let world = World::new().await;
    let data = world.folder.join("data");
    fs::create_dir_all(data.join("sub")).unwrap();
    fs::write(data.join("file"), "content").unwrap();
    let script = "cat /a/file /b/c/file; touch /a/new && echo wrote; touch /b/c/new 2>/dev/null || echo read-only; \
        echo; cat /etc/hosts; ls /deep; df -m /t | grep -c /t; touch /x 2>/dev/null || echo sealed; ls /escape";
    let mut spec = world.spec("c", &["sh", "-c", script]);
    symlink("/", spec.rootfs.join("escape-link")).unwrap();
    spec.mounts = vec![
        bind(&data, "/a", false),
        bind(&data, "/b/c", true),
        bind(&data.join("file"), "/etc/hosts", true),
        // A link to the root stays inside the container.
        bind(&data, "/escape-link/escape", true),
        bind(&data.join("sub"), "/deep/er/and/deeper", false),
        Mount {
            destination: "/t".into(),
            kind: MountKind::Tmpfs { size_bytes: Some(1 << 20), mode: 0o755, read_only: false },
        },
    ];
    spec.readonly_rootfs = true;
    let got = lines(&world, spec).await;
    let want = ["contentcontentwrote", "read-only", "", "contenter", "1", "sealed", "file", "new", "sub"];
    assert_eq!(got, want);
    assert!(!std::path::Path::new("/escape").exists());
    let mut spec = world.spec("missing", &["true"]);
    spec.mounts = vec![bind(std::path::Path::new("/no/such"), "/a", false)];
    world.runtime.create_container("s", spec).await.unwrap();
    let error = world.runtime.start_container("missing").await.unwrap_err().to_string();
    assert!(
        error.contains("error mounting \"/no/such\" to rootfs at \"/a\": no such file or directory"),
        "{error}"
    );
}

#[tokio::test]
async fn propagation_needs_a_shared_mount() {
    let world = World::new().await;
    let private = Mounted::new(&world.folder.join("private"), MsFlags::MS_PRIVATE);
    world.sandbox("s").await;
    for (id, propagation, words) in [
        ("both", Propagation::Bidirectional, "but it is not a shared mount"),
        ("one", Propagation::HostToContainer, "but it is not a shared or slave mount"),
    ] {
        let spec = propagating(&world, id, &private.0, propagation);
        world.runtime.create_container("s", spec).await.unwrap();
        let error = world.runtime.start_container(id).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn mounts_arrive_where_they_are_propagated() {
    let world = World::new().await;
    let shared = Mounted::new(&world.folder.join("shared"), MsFlags::MS_SHARED);
    world.sandbox("s").await;
    for (id, propagation) in [
        ("none", Propagation::Private),
        ("one", Propagation::HostToContainer),
        ("both", Propagation::Bidirectional),
    ] {
        let spec = propagating(&world, id, &shared.0, propagation);
        world.runtime.create_container("s", spec).await.unwrap();
        world.runtime.start_container(id).await.unwrap();
    }
    let below = |name: &str| {
        let mounted = Mounted::new(&shared.0.join(name), MsFlags::MS_SHARED);
        fs::write(mounted.0.join("file"), "seen").unwrap();
        mounted
    };
    let of_host = below("host");
    for (id, seen) in [("none", false), ("one", true), ("both", true)] {
        let (_, text) = world.sh(id, "cat /a/host/file").await;
        assert_eq!(text == "seen", seen, "{id}: {text}");
    }
    for (id, arrives) in [("none", false), ("one", false), ("both", true)] {
        let script = format!("mkdir /a/{id} && mount -t tmpfs t /a/{id} && echo x > /a/{id}/file");
        assert_eq!(world.sh(id, &script).await, (0, String::new()));
        assert_eq!(shared.0.join(id).join("file").exists(), arrives, "{id}");
        assert_eq!(world.sh(id, &format!("umount /a/{id}")).await, (0, String::new()));
    }
    for id in ["none", "one", "both"] {
        world.runtime.stop_container(id, Duration::ZERO).await.unwrap();
    }
    drop(of_host);
}

/// A tmpfs that is mounted until dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(path: &Path, propagation: MsFlags) -> Self {
        fs::create_dir_all(path).unwrap();
        let nothing = None::<&str>;
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), nothing).unwrap();
        mount(nothing, path, nothing, propagation, nothing).unwrap();
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Returns a spec that sleeps and may mount, with the folder at /a.
fn propagating(world: &World, id: &str, source: &Path, propagation: Propagation) -> ContainerSpec {
    let mut spec = world.spec(id, &["sleep", "1000"]);
    spec.privileged = true;
    let kind = MountKind::Bind(Bind { source: source.to_owned(), propagation, ..Bind::default() });
    spec.mounts = vec![Mount { destination: "/a".into(), kind }];
    spec
}

#[tokio::test]
async fn pid_namespaces() {
    let world = World::new().await;
    let mut config = sandbox("s");
    config.shared_pid = true;
    world.runtime.run_sandbox(config).await.unwrap();
    let mut first = world.spec("one", &["sleep", "4321"]);
    first.pid_mode = PidMode::Pod;
    world.run(first).await;
    let mut second = world.spec("two", &["sh", "-c", "ps -o args; (setsid sleep 1234 &); exit 6"]);
    second.pid_mode = PidMode::Pod;
    let (code, log) = world.script(second).await;
    assert!(code == 6 && log.contains("sleep 4321"), "{log}");
    assert!(!world.sh("one", "ps -o args").await.1.contains("sleep 1234"), "left behind");
    let mut host = world.spec("host", &["sh", "-c", "ps | wc -l; readlink /proc/self/ns/pid"]);
    host.pid_mode = PidMode::Host;
    let got = lines(&world, host).await;
    assert_eq!(got[1], fs::read_link("/proc/self/ns/pid").unwrap().to_string_lossy());
    let mut own = world.spec("own", &["sh", "-c", "ps | wc -l"]);
    own.pid_mode = PidMode::Container;
    let own: i32 = lines(&world, own).await[0].parse().unwrap();
    assert!(own <= 4, "{own}");
}

#[tokio::test]
async fn a_container_looks_into_another() {
    let world = World::new().await;
    world.sandbox("s").await;
    let look = |id: &str| {
        let mut spec = world.spec(id, &["sh", "-c", "ps -o args; cat /proc/1/root/mark; exit 6"]);
        spec.pid_mode = PidMode::Target("app".to_owned());
        spec
    };
    world.runtime.create_container("s", look("early")).await.unwrap();
    let error = world.runtime.start_container("early").await.unwrap_err().to_string();
    assert!(error.contains("target container \"app\" is not running"), "{error}");
    let app = world.spec("app", &["sleep", "4321"]);
    fs::write(app.rootfs.join("mark"), "here").unwrap();
    world.run(app).await;
    world.run(world.spec("other", &["sleep", "1234"])).await;
    let (code, log) = world.script(look("look")).await;
    assert!(code == 6 && log.contains("sleep 4321") && log.contains("here"), "{log}");
    assert!(!log.contains("sleep 1234"), "only the one that it names: {log}");
}

#[tokio::test]
async fn sandbox_namespaces_and_sysctls() {
    let world = World::new().await;
    let mut config = sandbox("s");
    config.sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "80".into());
    config.sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    world.runtime.run_sandbox(config).await.unwrap();
    let script = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced; touch /dev/shm/seen; readlink /proc/self/ns/net";
    let got = lines(&world, world.spec("a", &["sh", "-c", script])).await;
    assert_eq!(got[..2], ["80", "1"]);
    assert_ne!(got[2], fs::read_link("/proc/self/ns/net").unwrap().to_string_lossy());
    assert_eq!(lines(&world, world.spec("b", &["ls", "/dev/shm"])).await, ["seen"]);
    let mut host = sandbox("h");
    (host.host_network, host.host_ipc) = (true, true);
    world.runtime.run_sandbox(host).await.unwrap();
    assert_eq!(world.runtime.sandbox_status("h").unwrap().netns_path, None);
    let spec = world.spec("net", &["sh", "-c", "for n in net uts ipc; do readlink /proc/self/ns/$n; done"]);
    world.runtime.create_container("h", spec).await.unwrap();
    world.runtime.start_container("net").await.unwrap();
    world.runtime.wait_container("net").await.unwrap();
    let own = ["net", "uts", "ipc"]
        .map(|name| fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string());
    assert_eq!(world.log("net"), own.join("\n"));
    let mut bad = sandbox("bad");
    bad.sysctls.insert("kernel.panic".into(), "1".into());
    let error = world.runtime.run_sandbox(bad).await.unwrap_err().to_string();
    assert!(error.contains("sysctl \"kernel.panic\" is not in a separate kernel namespace"), "{error}");
    assert!(world.runtime.sandbox_status("bad").is_err());
}

#[tokio::test]
async fn rlimits_stay_within_the_machine() {
    let world = World::new().await;
    let mut spec = world.spec("c", &["sh", "-c", "ulimit -n; ulimit -c"]);
    let limit = |kind: &str, value| Rlimit { kind: kind.into(), soft: value, hard: value };
    spec.rlimits = vec![limit("RLIMIT_NOFILE", 512), limit("RLIMIT_CORE", 0)];
    spec.oom_score_adj = Some(-500);
    assert_eq!(lines(&world, spec).await, ["512", "0"]);
    let mut spec = world.spec("d", &["true"]);
    spec.rlimits = vec![limit("RLIMIT_NOFILE", 1 << 20)];
    assert_eq!(world.script(spec).await.0, 0);
}
