//! A test's runtime with its own state folder and cgroups, and a root file system with busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use knarr_runtime::containers::{
    Cgroups, ContainerSpec, Error, PurgeCgroups, PurgeReport, Runtime, RuntimeOptions, SandboxConfig, purge,
};

static NEXT: AtomicU32 = AtomicU32::new(0);

const APPLETS: &[&str] = &[
    "sh", "cat", "echo", "sleep", "ls", "id", "ps", "kill", "env", "pwd", "true", "false", "touch", "mkdir",
    "mount", "umount", "hostname", "head", "dd", "stty", "tty", "stat", "readlink", "grep", "wc", "seq",
    "tail", "test", "chmod", "rm", "yes", "nc", "ip", "unshare", "chroot", "setsid", "date", "printf",
    "ulimit", "tr", "cut", "nproc", "df",
];

pub struct World {
    pub folder: PathBuf,
    pub options: RuntimeOptions,
    pub runtime: Runtime,
}

impl World {
    pub async fn new() -> Self {
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::geteuid() }, 0, "these tests need root");
        assert!(Path::new("/bin/busybox").exists(), "these tests need busybox-static");
        let name = format!("knarr-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self::named(&name).await
    }

    /// Returns the world of the process that started this one, see [`World::env`].
    pub async fn from_env() -> Option<Self> {
        let name = std::env::var("KNARR_TEST_WORLD").ok()?;
        Some(Self::named(&name).await)
    }

    pub fn env(&self) -> [(&'static str, String); 1] {
        let name = self.folder.file_name().unwrap().to_string_lossy().into_owned();
        [("KNARR_TEST_WORLD", name)]
    }

    async fn named(name: &str) -> Self {
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let options = RuntimeOptions {
            state_dir: folder.join("state"),
            shim: shim(),
            shim_args: vec![],
            cgroup_root: format!("/{name}/pods"),
            shim_cgroup: format!("/{name}/shims"),
        };
        let runtime = Runtime::open(options.clone()).await.unwrap();
        Self { folder, options, runtime }
    }

    pub fn purge(&self) -> Result<PurgeReport, Error> {
        let cgroups =
            PurgeCgroups { root: &self.options.cgroup_root, shims: &self.options.shim_cgroup, pods: &[] };
        purge(&self.options.state_dir, cgroups)
    }

    /// Replaces the runtime by a new handle on the same state, as after a restart of the server.
    pub async fn restart(&mut self) {
        self.runtime = Runtime::open(self.options.clone()).await.unwrap();
    }

    pub fn rootfs(&self, name: &str) -> PathBuf {
        let root = self.folder.join("rootfs").join(name);
        for folder in ["bin", "etc", "proc", "tmp", "root"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102::/srv:/bin/sh\n")
            .unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\nweb:x:102:\n").unwrap();
        root
    }

    pub fn log_path(&self, id: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{id}.log"))
    }

    pub fn spec(&self, id: &str, args: &[&str]) -> ContainerSpec {
        ContainerSpec {
            id: id.to_owned(),
            rootfs: self.rootfs(id),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            log_path: Some(self.log_path(id)),
            ..ContainerSpec::default()
        }
    }

    pub async fn sandbox(&self, id: &str) {
        self.runtime.run_sandbox(sandbox(id)).await.unwrap();
    }

    /// Creates (if needed) sandbox `s`, and starts a container in it.
    pub async fn run(&self, spec: ContainerSpec) {
        let id = spec.id.clone();
        if self.runtime.sandbox_status("s").is_err() {
            self.sandbox("s").await;
        }
        self.runtime.create_container("s", spec).await.unwrap();
        self.runtime.start_container(&id).await.unwrap();
    }

    /// Runs a shell script to its end; returns its exit code and output.
    pub async fn script(&self, spec: ContainerSpec) -> (i32, String) {
        let id = spec.id.clone();
        self.run(spec).await;
        let status = self.runtime.wait_container(&id).await.unwrap();
        (status.exit_code.unwrap(), self.log(&id))
    }

    pub async fn sh(&self, container: &str, script: &str) -> (i32, String) {
        let args = ["sh", "-c", script].map(str::to_owned).to_vec();
        let output = self.runtime.exec_sync(container, args, Some(Duration::from_secs(20))).await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.exit_code, String::from_utf8_lossy(&text).trim_end().to_owned())
    }

    /// Returns the content of a log without times and tags: all of stdout, then all of stderr, because the
    /// order between two streams is not guaranteed.
    pub fn log(&self, id: &str) -> String {
        let text = fs::read_to_string(self.log_path(id)).unwrap_or_default();
        let mut lines: Vec<Vec<&str>> = text.lines().map(|line| line.splitn(4, ' ').collect()).collect();
        lines.sort_by_key(|fields| fields.get(1) == Some(&"stderr"));
        lines.iter().map(|fields| fields.get(3).copied().unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    pub fn shim_pid(&self, sandbox: &str) -> i32 {
        self.runtime.sandbox_status(sandbox).unwrap().pid
    }
}

pub fn sandbox(id: &str) -> SandboxConfig {
    SandboxConfig {
        id: id.to_owned(),
        hostname: format!("host-{id}"),
        cgroup_parent: format!("besteffort/pod{id}"),
        ..SandboxConfig::default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let result = self.purge();
        let root = self.options.cgroup_root.trim_end_matches("/pods");
        let left = Cgroups::detect(root).and_then(|cgroups| cgroups.remove(""));
        if !std::thread::panicking() {
            result.unwrap();
            left.unwrap();
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            assert!(!mounts.contains(&*self.folder.to_string_lossy()), "mounts are left");
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the path of the example program that cargo builds along with the tests.
fn shim() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples/shim");
    assert!(path.exists(), "{} is missing: run all of `cargo test -p knarr-runtime`", path.display());
    path
}

pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
