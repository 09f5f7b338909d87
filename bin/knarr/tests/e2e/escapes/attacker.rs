//! The attackers' images: a shell, the programs, and files that would mislead a careless runtime.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};

use super::layers::{Layer, save};
use crate::cluster::Cluster;

pub const IMAGE: &str = "knarr.local/attacker:v1";
/// Images with a link in place of a folder that the runtime mounts on.
pub const ODD: [(&str, &str); 3] = [
    ("proc", "knarr.local/attacker:proc"),
    ("sys", "knarr.local/attacker:sys"),
    ("dev", "knarr.local/attacker:dev"),
];
/// The image has links `/fd/N` to these descriptors.
pub const DESCRIPTORS: std::ops::Range<u32> = 3..16;

const APPLETS: [&str; 11] =
    ["sh", "cat", "echo", "sleep", "ls", "ln", "mkdir", "mkfifo", "true", "touch", "rm"];
const SOURCES: [(&str, &str, &[&str]); 3] = [
    ("attack", include_str!("programs/attack.c"), &["-static"]),
    ("loader", include_str!("programs/loader.c"), &["-nostdlib", "-static-pie", "-fPIE"]),
    ("library", include_str!("programs/library.c"), &["-nostdlib", "-shared", "-fPIC"]),
];
/// Where the libraries are that glibc opens by itself.
const LIBRARIES: [&str; 3] = ["lib/", "lib64/", "lib/x86_64-linux-gnu/"];
const OPENED_BY_GLIBC: [&str; 5] =
    ["libnss_files.so.2", "libnss_dns.so.2", "libnss_compat.so.2", "libc.so.6", "libgcc_s.so.1"];

/// Imports the images on the node of the shared cluster, once.
pub fn import(cluster: &Cluster) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| make(cluster));
}

/// Returns the layer that all images have.
pub fn layer_of_base(cluster: &Cluster) -> Vec<u8> {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    BASE.get_or_init(|| base(&cluster.sandbox.folder)).clone()
}

fn make(cluster: &Cluster) {
    let base = layer_of_base(cluster);
    let mut images = vec![(IMAGE, vec![&base[..]])];
    let odd: Vec<(Vec<u8>, &str)> = ODD.iter().map(|(folder, name)| (odd_layer(folder), *name)).collect();
    images.extend(odd.iter().map(|(layer, name)| (*name, vec![&base[..], &layer[..]])));
    let archive = cluster.sandbox.path("attackers.tar");
    save(&archive, &images);
    cluster.image(["import", &archive.to_string_lossy()]);
}

/// Builds a layer that replaces a folder by a link to another one.
fn odd_layer(folder: &str) -> Vec<u8> {
    Layer::new()
        .file(&format!(".wh.{folder}"), 0o644, "")
        .folder("elsewhere/", 0o777)
        .symlink(folder, "/elsewhere")
        .done()
}

/// Builds a layer with a shell, a few tools and the compiled programs.
fn base(folder: &Path) -> Vec<u8> {
    let mut layer = Layer::new();
    for name in
        ["bin/", "etc/", "proc/", "sys/", "dev/", "jail/", "fd/", "lib/", "lib64/", "lib/x86_64-linux-gnu/"]
    {
        layer = layer.folder(name, 0o777);
    }
    layer = layer.folder("tmp/", 0o1777).program("bin/busybox", &busybox());
    for applet in APPLETS {
        layer = layer.symlink(&format!("bin/{applet}"), "busybox");
    }
    for number in DESCRIPTORS {
        layer = layer.symlink(&format!("fd/{number}"), &format!("/proc/self/fd/{number}"));
    }
    let [attack, loader, library] = SOURCES.map(|(name, source, flags)| compile(folder, name, source, flags));
    layer = layer
        .program("bin/attack", &attack)
        .program("lib64/ld-linux-x86-64.so.2", &loader)
        .program("lib/library.so", &library)
        .file("bin/script", 0o755, "#!/proc/self/exe\n")
        .symlink("bin/self", "/proc/self/exe")
        .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n")
        .file("etc/nsswitch.conf", 0o644, "passwd: files compat\ngroup: files compat\nhosts: files dns\n")
        .file("etc/ld.so.preload", 0o644, "/lib/library.so\n");
    for folder in LIBRARIES {
        for name in OPENED_BY_GLIBC {
            layer = layer.symlink(&format!("{folder}{name}"), "/lib/library.so");
        }
    }
    layer.done()
}

fn busybox() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("busybox")).find(|file| file.is_file());
    found.expect("busybox: apt-get install busybox-static")
}

fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&file, source).expect("file");
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-O1", "-fno-stack-protector"]).args(flags).arg("-o").arg(&program).arg(&file);
    assert!(
        compiler.status().is_ok_and(|status| status.success()),
        "{name}.c: these tests need a C compiler"
    );
    program
}
