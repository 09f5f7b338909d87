//! Runs a test program alone in a user-mode Linux: pure cgroup v2 on this machine's files, which it may only
//! read, with its own disk.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Printed by the guest before its end, followed by the tests' exit code.
const VERDICT: &str = "KNARR-EXIT";
/// A guest that has not ended by then hangs.
const DEADLINE: Duration = Duration::from_secs(1200);
/// The size of the disk, a sparse file: only what is written takes space.
const DISK_BYTES: u64 = 8 << 30;
/// Races are attempted less often there: processes take 10 to 30 times as long.
const TRIES: u32 = 2;

/// Debian's kernel has no nf_tables for IPv4, so pods get no network there. No escape needs one.
const PLUGIN: &str = r#"#!/bin/sh
cat >/dev/null
case "$CNI_COMMAND" in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.42.0.7/32"}]}' ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
"#;
const NETWORK: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"none"}]}"#;

/// The first process of the guest.
const INIT: &str = r#"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mknod /dev/shm/disk-node b 98 0
mount -t ext4 /dev/shm/disk-node /mnt
export TMPDIR=/mnt
modules=/usr/lib/uml/modules/$(uname -r)
for module in overlay veth bridge nf_tables; do
    needed=$(sed -n "s|^\(.*/$module\.ko\):\(.*\)|\1 \2|p" "$modules/modules.dep")
    ordered=
    for file in $needed; do ordered="$file $ordered"; done
    for file in $ordered; do busybox insmod "$modules/$file" 2>/dev/null; done
done
ip link set lo up
cd /
uname -r
"#;

pub struct Guest {
    name: &'static str,
    folder: PathBuf,
    init: PathBuf,
}

impl Guest {
    /// Writes what the guest needs into the folder: its disk, its first process, a network plugin.
    pub fn prepare(name: &'static str, folder: &Path, program: &Path, filters: &[String]) -> Result<Self> {
        let cni = folder.join("cni");
        fs::create_dir_all(cni.join("net.d"))?;
        fs::write(cni.join("net.d/10-pods.conflist"), NETWORK)?;
        write_program(&cni.join("none"), PLUGIN)?;
        let disk = folder.join("disk");
        fs::File::create(&disk)?.set_len(DISK_BYTES)?;
        let mut format = Command::new("mkfs.ext4");
        format.args(["-q", "-F"]).arg(&disk);
        crate::run(format).context("mkfs.ext4 (Debian: e2fsprogs)")?;
        let init = folder.join("init.sh");
        let guest = Self { name, folder: folder.to_owned(), init };
        write_program(&guest.init, &guest.script(program, filters))?;
        Ok(guest)
    }

    fn script(&self, program: &Path, filters: &[String]) -> String {
        let cni = self.folder.join("cni");
        let path = std::env::var("PATH").unwrap_or_default();
        let filters: Vec<String> = filters.iter().map(|filter| format!("'{filter}'")).collect();
        format!(
            "#!/bin/sh\n\
             export PATH='{path}:/usr/sbin:/usr/bin:/sbin:/bin' HOME=/root RUST_BACKTRACE=0\n\
             export KNARR_TEST_RUN_ON_DISK=1 KNARR_ESCAPE_TRIES={TRIES}\n\
             export KNARR_E2E_ARGS='--network-plugin cni --cni-conf-dir {cni}/net.d --cni-bin-dir {cni}'\n\
             {INIT}\n\
             '{}' --test-threads 2 --color never {} 2>&1\n\
             echo {VERDICT} $?\n\
             poweroff -f\n",
            program.display(),
            filters.join(" "),
            cni = cni.display(),
        )
    }

    /// Boots the kernel and fails unless the tests pass. Each output line is prefixed with the guest's name.
    pub fn run(&self, uml: &Path) -> Result<()> {
        let mut guest = Command::new(uml)
            .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "mem=2G", "quiet"])
            .args(["con=null", "con0=fd:0,fd:1", "panic=1"])
            .arg(format!("uml_dir={}/", self.folder.display()))
            .arg(format!("ubd0={}", self.folder.join("disk").display()))
            .arg(format!("init={}", self.init.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {} (Debian: user-mode-linux)", uml.display()))?;
        let verdict = self.follow(&mut guest);
        // A halted guest leaves its helper processes behind.
        let _ = nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(guest.id().cast_signed()),
            nix::sys::signal::Signal::SIGKILL,
        );
        let _ = guest.wait();
        let _ = fs::remove_file(self.folder.join("disk"));
        match verdict?.as_deref() {
            Some("0") => Ok(()),
            Some(code) => bail!("{} failed on pure cgroup v2 (exit code {code})", self.name),
            None => bail!("the guest of {} ended without a verdict", self.name),
        }
    }

    /// Prints the guest's output and returns the exit code after the verdict.
    fn follow(&self, guest: &mut Child) -> Result<Option<String>> {
        let output = guest.stdout.take().context("the guest has no output")?;
        let (sender, lines) = mpsc::sync_channel(1024);
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        let end = Instant::now() + DEADLINE;
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix(VERDICT) {
                    Some(code) => return Ok(Some(code.trim().to_owned())),
                    None => println!("{}: {line}", self.name),
                },
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(None),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    bail!(
                        "the guest of {} has not ended after {} minutes",
                        self.name,
                        DEADLINE.as_secs() / 60
                    )
                }
            }
        }
    }
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
