//! The file trees of test images, each a tar file in the cache.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::upstream::Programs;

/// What the suite's scripts call in the images that have more than one program.
const DEBIAN_PACKAGES: &[&str] = &[
    "bash",
    "bind9-dnsutils",
    "ca-certificates",
    "conntrack",
    "coreutils",
    "curl",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "iperf",
    "iproute2",
    "iptables",
    "iputils-ping",
    "libc-bin",
    "mawk",
    "netcat-openbsd",
    "procps",
    "sed",
    "socat",
    "stress",
    "tar",
    "util-linux",
    "wget",
];

/// The shell of the real image prints errors like busybox, and passes variables with unusual names on to the
/// programs that it starts. Debian's busybox does not, so another shell is used if there are such variables.
const SHELL: &str = r#"
#include <ctype.h>
#include <unistd.h>

extern char **environ;

static int odd(const char *variable) {
    if (isdigit((unsigned char)*variable) || *variable == '=') return 1;
    while (isalnum((unsigned char)*variable) || *variable == '_') variable++;
    return *variable != '=';
}

int main(int argc, char **argv) {
    const char *shell = "/bin/busybox";
    for (char **variable = environ; *variable; variable++)
        if (odd(*variable)) shell = "/bin/bash-static";
    execv(shell, argv);
    return 127;
}
"#;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Layer {
    /// A small Debian with shell and network programs.
    Debian,
    /// busybox under all its names except that of the shell.
    Busybox,
    /// A second shell, without libraries: see [`SHELL`].
    Shell,
    /// Users, groups and folders that every image has, and what completes [`Layer::Debian`].
    Accounts,
    Nginx,
    /// nginx's configuration: one site, logs on the standard streams.
    NginxSite,
    /// The Go program of this name at `/NAME`, or at another path if the suite expects that.
    Program(&'static str),
    /// `/agnhost` with its additional files.
    Agnhost,
    /// Setuid `/usr/local/bin/nnp`.
    Nnp,
    Etcd,
    /// The web pages of the test image of this name.
    Pages(&'static str),
}

impl Layer {
    /// Returns a name that depends on the layer's contents and on how it is built, so that a change makes
    /// another file.
    fn file_name(self) -> String {
        let name = match self {
            Self::Program(name) => format!("program-{name}"),
            Self::Pages(name) => format!("pages-{name}"),
            other => format!("{other:?}").to_lowercase(),
        };
        let made_of = self.packages().map_or_else(|| include_str!("layers.rs").to_owned(), |p| p.join(" "));
        let digest = Sha256::digest(made_of.as_bytes());
        format!("{name}-{:02x}{:02x}{:02x}{:02x}.tar", digest[0], digest[1], digest[2], digest[3])
    }

    /// Returns the Debian packages of a layer that consists of packages.
    fn packages(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Debian => Some(DEBIAN_PACKAGES),
            Self::Nginx => Some(&["nginx-light"]),
            Self::Shell => Some(&["bash-static"]),
            _ => None,
        }
    }

    /// Returns the layer's tar file, which is built if the cache does not have it.
    pub fn build(self, programs: &Programs, cache: &Path) -> Result<PathBuf> {
        let folder = cache.join("layers");
        fs::create_dir_all(&folder)?;
        let output = folder.join(self.file_name());
        if output.exists() {
            return Ok(output);
        }
        println!("making {}", self.file_name());
        let unfinished = folder.join("unfinished.tar");
        match self.packages() {
            Some(names) => packages(names, &unfinished)?,
            None => {
                let tree = folder.join("tree");
                let _ = fs::remove_dir_all(&tree);
                fs::create_dir_all(&tree)?;
                self.fill(&tree, programs)?;
                pack(&tree, &unfinished)?;
                fs::remove_dir_all(&tree)?;
            }
        }
        fs::rename(&unfinished, &output)?;
        Ok(output)
    }

    fn fill(self, tree: &Path, programs: &Programs) -> Result<()> {
        match self {
            Self::Busybox => busybox(tree),
            Self::Accounts => alternatives(tree),
            Self::Program(name) => program(&programs.path(name), &tree.join(name), 0o755),
            Self::Agnhost => agnhost(tree, programs),
            Self::Nnp => program(&programs.path("nnp"), &tree.join("usr/local/bin/nnp"), 0o6755),
            Self::Etcd => etcd(tree),
            Self::NginxSite => nginx_site(tree),
            Self::Pages(name) => pages(tree, &programs.sources.join("test/images").join(name).join("html")),
            Self::Debian | Self::Nginx | Self::Shell => bail!("made of packages"),
        }
    }
}

/// Unpacks Debian packages with all their dependencies; no maintainer script runs.
fn packages(names: &[&str], output: &Path) -> Result<()> {
    let sources = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"]
        .into_iter()
        .find(|path| fs::read_to_string(path).is_ok_and(|text| text.contains("deb")))
        .context("test images are made of Debian packages: this machine has no Debian package sources")?;
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=extract", "--mode=root", "--format=tar"]);
    command.args([&format!("--include={}", names.join(",")), ""]).arg(output).arg(sources);
    crate::run(command)
}

fn pack(tree: &Path, output: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--numeric-owner", "--owner=0", "--group=0", "--sort=name", "--mtime=@0", "-C"]);
    command.arg(tree).arg("-cf").arg(output).arg(".");
    crate::run(command)
}

fn program(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let folder = to.parent().context("a path below the tree")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| format!("{} is missing", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Adds busybox, a link for each of its commands, and the folders of its image.
fn busybox(tree: &Path) -> Result<()> {
    let from = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .map(Path::new)
        .find(|p| p.is_file())
        .context("busybox: apt-get install busybox-static")?;
    program(from, &tree.join("bin/busybox"), 0o755)?;
    let list = Command::new(from).arg("--list").output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    for name in list.lines().filter(|n| !matches!(*n, "busybox" | "sh" | "ash")) {
        symlink("/bin/busybox", tree.join("bin").join(name))?;
    }
    let source = tree.join("sh.c");
    fs::write(&source, SHELL)?;
    let mut command = Command::new("cc");
    command.args(["-Os", "-static", "-o"]).arg(tree.join("bin/sh")).arg(&source);
    crate::run(command)?;
    fs::remove_file(&source)?;
    accounts(tree)
}

fn accounts(tree: &Path) -> Result<()> {
    for (folder, mode) in
        [("etc", 0o755), ("home", 0o755), ("root", 0o700), ("tmp", 0o1777), ("var/tmp", 0o1777)]
    {
        fs::create_dir_all(tree.join(folder))?;
        fs::set_permissions(tree.join(folder), fs::Permissions::from_mode(mode))?;
    }
    for folder in ["var/log/nginx", "var/lib/nginx", "var/cache", "run", "uploads", "usr/sbin"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    let user = |name: &str, id: u32, home: &str| format!("{name}:x:{id}:{id}:{name}:{home}:/bin/sh\n");
    let mut users = user("root", 0, "/root") + &user("daemon", 1, "/") + &user("www-data", 33, "/var/www");
    users += &user("user-defined-in-image", 1000, "/home/user-defined-in-image");
    users += &user("nobody", 65534, "/home");
    fs::write(tree.join("etc/passwd"), users)?;
    // A test checks the groups that the image gives its user beyond those of the pod.
    let groups = "root:x:0:\ndaemon:x:1:\nwww-data:x:33:\nuser-defined-in-image:x:1000:\n\
        group-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n";
    fs::write(tree.join("etc/group"), groups)?;
    fs::write(tree.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")?;
    Ok(())
}

/// Adds names that Debian's packages only get from their maintainer scripts.
fn alternatives(tree: &Path) -> Result<()> {
    accounts(tree)?;
    for (name, program) in [
        ("usr/bin/awk", "/usr/bin/mawk"),
        ("usr/bin/nc", "/bin/nc.openbsd"),
        ("bin/sh", "/bin/bash"),
        ("usr/sbin/iptables", "/usr/sbin/xtables-nft-multi"),
        ("usr/sbin/iptables-save", "/usr/sbin/xtables-nft-multi"),
        ("usr/sbin/iptables-restore", "/usr/sbin/xtables-nft-multi"),
    ] {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().context("a path below the tree")?)?;
        symlink(program, path)?;
    }
    Ok(())
}

fn agnhost(tree: &Path, programs: &Programs) -> Result<()> {
    program(&programs.path("agnhost"), &tree.join("agnhost"), 0o755)?;
    symlink("agnhost", tree.join("agnhost-2"))?;
    let porter = programs.sources.join("test/images/agnhost/porter");
    for name in ["localhost.crt", "localhost.key"] {
        program(&porter.join(name), &tree.join(name), 0o644)?;
    }
    fs::create_dir_all(tree.join("usr/local/bin"))?;
    symlink("/usr/bin/iperf", tree.join("usr/local/bin/iperf"))?;
    Ok(())
}

fn etcd(tree: &Path) -> Result<()> {
    for name in ["etcd", "etcdctl"] {
        let from = Path::new("/usr/bin").join(name);
        if from.is_file() {
            program(&from, &tree.join("usr/local/bin").join(name), 0o755)?;
        }
    }
    if !tree.join("usr/local/bin/etcd").exists() {
        bail!("etcd: apt-get install etcd-server");
    }
    Ok(())
}

fn nginx_site(tree: &Path) -> Result<()> {
    let text = "user www-data;\nerror_log /dev/stderr;\npid /run/nginx.pid;\nevents {}\nhttp {\n  \
        include /etc/nginx/mime.types;\n  access_log /dev/stdout;\n  server {\n    listen 80;\n    \
        root /usr/share/nginx/html;\n  }\n}\n";
    fs::create_dir_all(tree.join("etc/nginx"))?;
    fs::write(tree.join("etc/nginx/nginx.conf"), text)?;
    Ok(())
}

fn pages(tree: &Path, from: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("{} is missing", from.display()))? {
        let entry = entry?;
        program(&entry.path(), &tree.join(entry.file_name()), 0o644)?;
    }
    // A test that mounts the image reads the release files of the real one.
    fs::create_dir_all(tree.join("etc"))?;
    fs::write(tree.join("etc/os-release"), "NAME=\"Alpine Linux\"\nID=alpine\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_named_after_what_it_is_made_of() {
        let (program, pages) = (Layer::Program("a"), Layer::Pages("a"));
        assert!(program.file_name().starts_with("program-a-") && pages.file_name().starts_with("pages-a-"));
        let digest = |name: String| name.rsplit_once('-').map(|(_, digest)| digest.to_owned());
        assert_eq!(digest(program.file_name()), digest(pages.file_name()));
        assert_ne!(digest(Layer::Debian.file_name()), digest(Layer::Shell.file_name()));
    }
}
