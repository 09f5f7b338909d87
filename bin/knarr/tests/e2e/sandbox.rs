//! A machine of its own for a cluster under test: fresh network, mount and pid namespaces, its own cgroup sub-tree.
//!
//! Nothing that runs in it can touch the surrounding machine's network, and all of it ends with the sandbox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The address of the sandbox's only uplink.
pub const NODE_IP: &str = "10.99.0.2";

static COUNT: AtomicU32 = AtomicU32::new(0);

pub struct Sandbox {
    /// Process 1 of the pid namespace.
    init: u32,
    holder: Child,
    pub folder: PathBuf,
    pub cgroup_root: String,
}

impl Sandbox {
    pub fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "end-to-end tests have to run as root");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("knarr-e2e-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder).expect("temporary folder");
        let holder = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"])
            .args(["sleep", "infinity"])
            .spawn()
            .expect("unshare(1) of util-linux");
        let init = wait_for("the sandbox's first process", Duration::from_secs(10), || only_child(holder.id()));
        let sandbox = Self { init, holder, folder, cgroup_root: format!("/{name}") };
        wait_for("the sandbox's namespaces", Duration::from_secs(10), || {
            let own = fs::read_link("/proc/self/ns/mnt").ok()?;
            let theirs = fs::read_link(format!("/proc/{init}/ns/mnt")).ok()?;
            (own != theirs).then_some(())
        });
        for words in [
            "mount -t sysfs sysfs /sys",
            "hostname knarr-test",
            "ip link set lo up",
            "ip link add uplink type veth peer name uplink-far",
            "ip link set uplink-far up",
            "ip link set uplink up",
            "ip address add 10.99.0.2/24 dev uplink",
            "ip route add default via 10.99.0.1",
        ] {
            // Mounting sysfs hides the cgroup mounts below it: bind them back.
            if words.contains("sysfs") {
                sandbox.sh("mkdir -p $0/cg && mount --rbind /sys/fs/cgroup $0/cg && mount -t sysfs sysfs /sys && mount --rbind $0/cg /sys/fs/cgroup");
                continue;
            }
            let words: Vec<&str> = words.split(' ').collect();
            sandbox.run(&words);
        }
        sandbox
    }

    /// A command inside the sandbox, not yet started.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--net", "--mount", "--pid", "--uts", "--"]);
        command.arg(program);
        command
    }

    /// Runs a command that has to succeed; returns its standard output.
    pub fn run(&self, words: &[&str]) -> String {
        let output = self.command(words[0]).args(&words[1..]).output().expect("nsenter(1) of util-linux");
        succeeded(&words.join(" "), &output)
    }

    /// Runs a shell line, with `$0` standing for the sandbox's folder.
    pub fn sh(&self, line: &str) -> String {
        let output =
            self.command("sh").args(["-c", line]).arg(&self.folder).output().expect("nsenter(1) of util-linux");
        succeeded(line, &output)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The end of process 1 ends every process of the pid namespace.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.init as i32),
            nix::sys::signal::Signal::SIGKILL,
        );
        let _ = self.holder.wait();
        remove_cgroups(&self.cgroup_root);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes the cgroups that a killed cluster leaves behind, in every hierarchy.
fn remove_cgroups(root: &str) {
    let Ok(hierarchies) = fs::read_dir("/sys/fs/cgroup") else { return };
    let bases = hierarchies.flatten().map(|e| e.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
    for base in bases {
        remove_tree(&base.join(root.trim_start_matches('/')));
    }
}

fn remove_tree(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    entries.flatten().filter(|e| e.path().is_dir()).for_each(|e| remove_tree(&e.path()));
    let deadline = Instant::now() + Duration::from_secs(5);
    while fs::remove_dir(folder).is_err() && folder.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}

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

/// The only child of a process.
pub fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Asks again until there is an answer; fails the test after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Standard streams of a server under test, kept in a file for the failure report.
pub fn log_to(command: &mut Command, path: &Path) {
    let file = fs::File::options().create(true).append(true).open(path).expect("log file");
    command.stdout(file.try_clone().expect("log file")).stderr(Stdio::from(file)).stdin(Stdio::null());
}
