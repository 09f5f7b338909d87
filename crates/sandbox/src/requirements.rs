//! What the end-to-end tests need of the machine. They fail without it: a skipped test proves nothing.

use std::path::Path;
use std::process::{Command, Stdio};

/// Programs, with the package that provides each.
const PROGRAMS: &[(&str, &str)] = &[
    ("kubectl", "https://kubernetes.io/docs/tasks/tools/, or `.ci/kubectl`"),
    ("unshare", "apt-get install util-linux"),
    ("nsenter", "apt-get install util-linux"),
    ("setpriv", "apt-get install util-linux"),
    ("ip", "apt-get install iproute2"),
    ("nft", "apt-get install nftables"),
    ("diff", "apt-get install diffutils"),
    ("busybox", "apt-get install busybox-static"),
    ("docker-registry", "apt-get install docker-registry"),
    ("etcd", "apt-get install etcd-server"),
    ("containerd", "apt-get install containerd"),
    ("runc", "apt-get install runc"),
    ("crun", "apt-get install crun"),
    ("python3", "apt-get install python3"),
    ("iptables", "apt-get install iptables"),
];

/// Where distributions and users install the reference CNI plugins.
const CNI_FOLDERS: &[&str] = &["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// Returns the folder of the reference CNI plugins.
pub fn cni_bin_dir() -> Option<&'static str> {
    CNI_FOLDERS.iter().copied().find(|folder| Path::new(folder).join("host-local").is_file())
}

/// Returns what is missing, one line each.
pub fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        missing.push("root: end-to-end tests make namespaces, mounts and cgroups".to_owned());
    }
    for (program, remedy) in PROGRAMS {
        if !on_the_path(program) {
            missing.push(format!("{program}: {remedy}"));
        }
    }
    if cni_bin_dir().is_none() {
        let folders = CNI_FOLDERS.join(", ");
        missing.push(format!("CNI plugins in one of {folders}: apt-get install containernetworking-plugins"));
    }
    let python = Command::new("python3").args(["-c", "import kubernetes"]).stderr(Stdio::null()).status();
    if !python.is_ok_and(|status| status.success()) {
        missing.push("the Python package kubernetes: python3 -m pip install kubernetes".to_owned());
    }
    missing
}

fn on_the_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
