//! Runs one process with its output in a file, a time limit, and a message now and then.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::outcome::End;
use crate::sandbox::log_to;

/// How often a process that takes long is mentioned.
const MENTION: Duration = Duration::from_secs(15);

/// Appends the output to `log`; kills the process after `limit`.
pub fn run(mut command: Command, log: &Path, limit: Duration, what: &str) -> Result<End> {
    log_to(&mut command, log);
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let begun = Instant::now();
    let mut mentioned = begun;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { End::Success } else { End::Failure });
        }
        if begun.elapsed() > limit {
            let pid = Pid::from_raw(child.id().cast_signed());
            let _ = killpg(pid, Signal::SIGKILL);
            let _ = kill(pid, Signal::SIGKILL);
            child.wait()?;
            return Ok(End::TimeLimit);
        }
        if mentioned.elapsed() > MENTION {
            eprintln!("{what}: {} s so far", begun.elapsed().as_secs());
            mentioned = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes the process the leader of its own group, so that the time limit also ends the processes that it
/// starts.
pub fn lead(command: &mut Command) {
    command.process_group(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_kept_and_the_limit_ends_the_whole_group() {
        let log = std::env::temp_dir().join(format!("knarr-clients-process-{}", std::process::id()));
        let shell = |line: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", line]);
            lead(&mut command);
            command
        };
        let long = Duration::from_secs(60);
        assert_eq!(run(shell("echo one"), &log, long, "one").expect("sh"), End::Success);
        assert_eq!(run(shell("echo two >&2; false"), &log, long, "two").expect("sh"), End::Failure);
        let end = run(shell("sleep 300 & echo $!; wait"), &log, Duration::from_secs(1), "three");
        assert_eq!(end.expect("sh"), End::TimeLimit);
        let text = std::fs::read_to_string(&log).expect("log");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["one", "two"]);
        let sleep: u32 = lines[2].parse().expect("a process id");
        crate::sandbox::wait_for("the end of the shell's child", long, || {
            let stat = std::fs::read_to_string(format!("/proc/{sleep}/stat")).unwrap_or_default();
            (stat.is_empty() || stat.contains(") Z ")).then_some(())
        });
        std::fs::remove_file(&log).expect("log");
    }
}
