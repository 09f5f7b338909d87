//! `cargo xtask escapes`: the known ways out of a container, on this machine's control groups and on pure cgroup v2.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{cargo, root, run};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask escapes\n  cargo xtask escapes --uml                  # also on pure cgroup v2 (Debian: user-mode-linux)\n  cargo xtask escapes --uml -- isolation::   # other tests of containers"
)]
pub struct Args {
    /// Run them once more under this user-mode Linux, which has pure cgroup v2
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "linux.uml")]
    uml: Option<PathBuf>,
    /// Which tests of containers
    #[arg(last = true, value_name = "FILTER", default_value = "escapes::")]
    filters: Vec<String>,
}

/// Printed by the guest before its end, followed by the tests' exit code.
const VERDICT: &str = "KNARR-EXIT";
/// A guest that has not ended by then hangs.
const DEADLINE: Duration = Duration::from_secs(900);

pub fn escapes(args: &Args) -> Result<()> {
    run(cargo(&["build", "--package", "knarr-runtime", "--examples"]))?;
    let tests = test_program()?;
    println!("=== on this machine's control groups");
    let mut here = Command::new(&tests);
    here.args(&args.filters);
    run(here)?;
    match &args.uml {
        Some(uml) => {
            println!("=== on pure cgroup v2, under {}", uml.display());
            under_uml(uml, &tests, &args.filters)
        }
        None => Ok(()),
    }
}

/// Builds the tests of containers and returns their program.
fn test_program() -> Result<PathBuf> {
    let arguments = ["test", "--package", "knarr-runtime", "--test", "containers", "--no-run"];
    let mut command = cargo(&arguments);
    let output = command.arg("--message-format=json").stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the tests of containers do not build");
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut programs = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == "containers";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    programs.next_back().context("cargo names no program for the tests of containers")
}

/// Boots the kernel on this machine's files, read-only, with the tests as its only work.
fn under_uml(uml: &Path, tests: &Path, filters: &[String]) -> Result<()> {
    let folder = root().join("target/escapes");
    fs::create_dir_all(&folder)?;
    let init = folder.join("init.sh");
    fs::write(&init, init_script(tests, filters))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let mut guest = Command::new(uml)
        .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "mem=2G", "quiet"])
        .args(["con=null", "con0=fd:0,fd:1", "panic=1"])
        .arg(format!("uml_dir={}/", folder.display()))
        .arg(format!("init={}", init.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {} (Debian: user-mode-linux)", uml.display()))?;
    let verdict = follow(&mut guest);
    // A halted guest leaves helper processes of its own behind.
    let _ = nix::sys::signal::killpg(
        nix::unistd::Pid::from_raw(guest.id() as i32),
        nix::sys::signal::Signal::SIGKILL,
    );
    let _ = guest.wait();
    match verdict?.as_deref() {
        Some("0") => Ok(()),
        Some(code) => bail!("the tests failed on pure cgroup v2 (exit code {code})"),
        None => bail!("the guest ended without a verdict"),
    }
}

fn init_script(tests: &Path, filters: &[String]) -> String {
    format!(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/dev/shm RUST_BACKTRACE=0\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t cgroup2 cgroup2 /sys/fs/cgroup\n\
         mkdir -p /dev/shm\n\
         mount -t tmpfs tmpfs /dev/shm\n\
         ip link set lo up\n\
         cd /\n\
         uname -r\n\
         '{}' --test-threads 2 --color never {} 2>&1\n\
         echo {VERDICT} $?\n\
         poweroff -f\n",
        tests.display(),
        filters.iter().map(|filter| format!("'{filter}'")).collect::<Vec<_>>().join(" ")
    )
}

/// Prints what the guest prints and returns the code behind the verdict.
fn follow(guest: &mut Child) -> Result<Option<String>> {
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
                None => println!("{line}"),
            },
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(None),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the guest has not ended after {} minutes", DEADLINE.as_secs() / 60)
            }
        }
    }
}
