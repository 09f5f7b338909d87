//! A separate machine for a cluster under test: new network, mount and pid namespaces, its own cgroup
//! sub-tree.
//!
//! Nothing that runs in it can reach the surrounding machine's network, and all of it ends with the sandbox,
//! even when the test process is killed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The address of the sandbox's only uplink.
pub const NODE_IP: &str = "10.99.0.2";
pub const HOST_NAME: &str = "knarr-test";

/// The script of the keeper, which holds the namespaces while its standard input is open, that is, as long as
/// the test process lives, and then removes everything. `$1` is the sandbox's folder, `$2` the name of its
/// cgroups.
const KEEPER: &str = r#"
unshare --net --mount --pid --uts --fork --kill-child --mount-proc sleep infinity </dev/null >/dev/null 2>&1 &
holder=$!
echo "$holder" >"$1/holder.new" && mv "$1/holder.new" "$1/holder"
read -r _
kill -9 "$holder"
wait
for attempt in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    left=
    for folder in /sys/fs/cgroup/"$2"* /sys/fs/cgroup/*/"$2"*; do
        [ -d "$folder" ] || continue
        find "$folder" -depth -type d -exec rmdir {} \; 2>/dev/null
        [ -d "$folder" ] && left=1
    done
    [ -z "$left" ] && break
    sleep 0.1
done
rm -rf --one-file-system "$1"
"#;

static COUNT: AtomicU32 = AtomicU32::new(0);

pub struct Sandbox {
    keeper: Child,
    /// Process 1 of the pid namespace.
    pub init: u32,
    pub folder: PathBuf,
    pub cgroup_root: String,
}

impl Sandbox {
    /// Creates a sandbox; `purpose` becomes part of the name of its folder and cgroups.
    pub fn new(purpose: &str) -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("knarr-{purpose}-{}-{number}", std::process::id());
        let base = std::env::var_os("KNARR_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let folder = base.join(&name);
        fs::create_dir_all(&folder).expect("temporary folder");
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(&folder)
            .arg(&name)
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh");
        let holder: u32 = wait_for("the sandbox's holder", Duration::from_secs(10), || {
            fs::read_to_string(folder.join("holder")).ok()?.trim().parse().ok()
        });
        let init = wait_for("the sandbox's first process", Duration::from_secs(10), || only_child(holder));
        wait_for("the sandbox's namespaces", Duration::from_secs(10), || {
            let own = fs::read_link("/proc/self/ns/mnt").ok()?;
            let theirs = fs::read_link(format!("/proc/{init}/ns/mnt")).ok()?;
            let command = fs::read_to_string(format!("/proc/{init}/comm")).ok()?;
            (own != theirs && command.trim() == "sleep").then_some(())
        });
        let sandbox = Self { keeper, init, folder, cgroup_root: format!("/{name}") };
        sandbox.set_up();
        sandbox
    }

    fn set_up(&self) {
        // The new network namespace needs its own sysfs; mounting it hides the cgroup mounts: bind them back.
        self.sh("mkdir -p $0/cg && mount --rbind /sys/fs/cgroup $0/cg && mount -t sysfs sysfs /sys \
            && mount --rbind $0/cg /sys/fs/cgroup && umount -l $0/cg");
        // Kernels before 6.3 cannot map the ids of a tmpfs: there, the runtime's files must be on the
        // disk.
        self.sh(match std::env::var_os("KNARR_TEST_RUN_ON_DISK") {
            Some(_) => "mkdir $0/run && mount --bind $0/run /run",
            None => "mount -t tmpfs tmpfs /run",
        });
        self.sh(&format!("hostname {HOST_NAME} && ip link set lo up"));
        self.sh("ip link add uplink type veth peer name uplink-far && ip link set uplink-far up \
            && ip link set uplink up");
        self.sh(&format!("ip address add {NODE_IP}/24 dev uplink && ip route add default via 10.99.0.1"));
    }

    /// Returns a process that has the sandbox's namespaces.
    pub fn pid(&self) -> u32 {
        self.init
    }

    /// Builds a command inside the sandbox; it is not started yet.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--net", "--mount", "--pid", "--uts", "--"]);
        command.arg(program);
        // The surrounding machine's proxy must not be used inside.
        for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a shell line that must succeed, with `$0` standing for the sandbox's folder.
    pub fn sh(&self, line: &str) -> String {
        succeeded(line, &self.try_sh(line))
    }

    /// Runs a shell line, whether it succeeds or fails.
    pub fn try_sh(&self, line: &str) -> Output {
        self.command("sh").args(["-c", line]).arg(&self.folder).output().expect("nsenter(1) of util-linux")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The keeper reads the end of its input, and removes everything.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// A process inside the sandbox.
pub struct Process(Option<Child>);

impl Process {
    /// Wraps a started `Sandbox::command`.
    pub fn new(nsenter: Child) -> Self {
        Self(Some(nsenter))
    }

    /// Kills it with `kill -9`.
    pub fn kill(&mut self) {
        let Some(mut nsenter) = self.0.take() else { return };
        if let Some(inner) = only_child(nsenter.id()) {
            let _ = kill(Pid::from_raw(inner.cast_signed()), Signal::SIGKILL);
        }
        let _ = nsenter.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a command's standard output; fails the test if the command failed.
pub fn succeeded(what: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "`{what}` ended with {}\n--- stdout\n{text}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Returns the first child of a process.
pub fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Polls until there is an answer; fails after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Redirects the standard streams of a process under test to a file.
pub fn log_to(command: &mut Command, path: &Path) {
    let file = fs::File::options().create(true).append(true).open(path).expect("log file");
    command.stdout(file.try_clone().expect("log file")).stderr(Stdio::from(file)).stdin(Stdio::null());
}
