//! Tests of cgroups on the machine's own hierarchies; they need root.

use std::process::Command;

use super::*;

struct Tree(Cgroups);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.0.remove("");
    }
}

fn tree(name: &str) -> Option<Tree> {
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not root: cgroups are not tested");
        return None;
    }
    Cgroups::detect(&format!("/knarr-test-{}-{name}", std::process::id())).ok().map(Tree)
}

#[test]
fn limits_processes_stats_and_removal() {
    let Some(tree) = tree("limits") else { return };
    let cgroups = &tree.0;
    let resources = Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(20_000),
        cpu_period: Some(100_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(32),
        ..Resources::default()
    };
    cgroups.create("burstable/pod1", &Resources::default()).unwrap();
    cgroups.create("burstable/pod1/c1", &resources).unwrap();
    cgroups.update("burstable/pod1/c1", &Resources { pids_limit: Some(16), ..Resources::default() }).unwrap();
    let in_force = |path: &str| {
        let limits = cgroups.limits(path);
        (limits.cpu_quota, limits.memory_limit)
    };
    assert_eq!(in_force("burstable/pod1/c1"), (Some(20_000), Some(64 << 20)));
    assert_eq!(in_force("burstable/pod1"), (Some(-1), Some(-1)));
    assert_eq!(in_force("nowhere"), (None, None));
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    cgroups.add_process("burstable/pod1/c1", child.id() as i32).unwrap();
    assert_eq!(cgroups.processes(""), [child.id() as i32]);
    assert_eq!(cgroups.stats("burstable/pod1").pids, 1);
    assert_eq!(cgroups.children("burstable"), ["pod1"]);
    assert_eq!(cgroups.oom_kills("burstable/pod1/c1"), 0);
    let waiter = std::thread::spawn(move || child.wait().unwrap());
    cgroups.remove("burstable/pod1").unwrap();
    assert!(!waiter.join().unwrap().success());
    assert!(!cgroups.exists("burstable/pod1"));
    assert!(cgroups.exists("burstable"));
    cgroups.remove("").unwrap();
    assert!(!cgroups.exists(""));
}

#[test]
fn paths_do_not_climb() {
    assert!(check_path("a/../b").is_err());
    assert!(check_path("/a/b").is_ok());
}

#[test]
fn device_filter_is_accepted_by_the_kernel() {
    let Some(tree) = tree("devices") else { return };
    tree.0.create("c", &Resources::default()).unwrap();
    let Some(folder) = tree.0.unified_folder("c") else { return };
    let folder = fs::File::open(folder).unwrap();
    device_filter::attach(folder.as_fd(), &DeviceRule::defaults()).unwrap();
}

/// Covers machines whose devices controller is on neither side, or on the v2 side of a hybrid one.
#[test]
fn devices_are_never_left_open() {
    let Some(tree) = tree("nodevices") else { return };
    tree.0.create("c", &Resources::default()).unwrap();
    let Layout::V1 { hierarchies, unified, others } = tree.0.layout.clone() else { return };
    let hierarchies: Vec<_> = hierarchies.into_iter().filter(|h| !h.has("devices")).collect();
    let machine = |unified| Cgroups {
        root: tree.0.root.clone(),
        layout: Layout::V1 { hierarchies: hierarchies.clone(), unified, others: others.clone() },
    };
    let refused = machine(None).restrict_devices("c", &DeviceRule::defaults());
    assert!(matches!(refused, Err(CgroupError::NoDeviceFilter)), "{refused:?}");
    let Some(unified) = unified else { return };
    machine(Some(unified)).restrict_devices("c", &[]).unwrap();
    let mut shell = Command::new("sh");
    let mut child = shell.args(["-c", "read line; head -c 1 /dev/zero"]);
    child = child.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = child.spawn().unwrap();
    let procs = tree.0.unified_folder("c").unwrap().join("cgroup.procs");
    fs::write(procs, child.id().to_string()).unwrap();
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("Operation not permitted"), "{complaint}");
}
