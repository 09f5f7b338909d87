//! Calls of an OCI runtime. A clone of the shim calls it to start a process; the shim itself calls it to signal or
//! delete one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::OciRuntime;
use crate::child::wait_within;
use crate::containers::exec_path::DEFAULT_PATH;
use crate::containers::init::{self, Failure, SIBLING_REPORT, TERMINAL_REPORT, null_device};
use crate::containers::status::TerminalSize;
use crate::containers::{socket, sys};

/// The limit for one call; a virtual machine takes seconds to start.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The prefix of runc's messages, which is cut off because the shim adds it itself.
const PREFIX: &str = "unable to start container process: ";

/// A process to start.
pub struct Job {
    pub runtime: OciRuntime,
    /// The container's folder with its `config.json`.
    pub bundle: PathBuf,
    pub id: String,
    pub task: Task,
    /// `Some` if the process has a terminal, with its size if one is given.
    pub terminal: Option<Option<TerminalSize>>,
}

/// What the runtime is to start.
pub enum Task {
    /// The container's first process.
    Start,
    /// A command; the file contains its `process`.
    Exec(PathBuf),
}

/// Files that a job's calls write, relative to the bundle, because a socket address is short. Several commands
/// may be starting at once, so each has its own files.
struct Files {
    log: String,
    pid: String,
    console: String,
}

impl Files {
    fn of(task: &Task) -> Self {
        let name = match task {
            Task::Start => "start".into(),
            Task::Exec(process) => process.file_stem().unwrap_or_default().to_string_lossy(),
        };
        Self { log: format!("{name}.log"), pid: format!("{name}.pid"), console: format!("{name}.sock") }
    }

    fn all(&self) -> [&str; 3] {
        [&self.log, &self.pid, &self.console]
    }

    fn remove(&self) {
        self.all().into_iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// Removes the files that the call of a killed command has left in the bundle. `process` is the file with its
/// `process`.
pub fn forget(process: &Path) {
    let files = Files::of(&Task::Exec(process.to_owned()));
    files.all().into_iter().for_each(|file| drop(std::fs::remove_file(process.with_file_name(file))));
    let _ = std::fs::remove_file(process);
}

/// Runs in the shim's clone. It reports like a container's first process, and reports the process that the
/// runtime started as the one that takes its place.
pub fn run(job: &Job, stdio: &init::Stdio, report: OwnedFd) -> ! {
    let code = match start(job, stdio, report.as_fd()) {
        Ok(()) => 0,
        Err(failure) => {
            init::report_failure(report.as_fd(), failure.clone());
            failure.exit_code
        }
    };
    sys::exit_now(code)
}

fn start(job: &Job, stdio: &init::Stdio, report: BorrowedFd<'_>) -> Result<(), Failure> {
    sys::reset_signals();
    // A signal to this process's group then also ends the runtime's command.
    // SAFETY: plain system call.
    sys::check(unsafe { libc::setpgid(0, 0) }).map_err(Failure::step("lead a process group"))?;
    // As a subreaper, this process adopts what the runtime starts. A process that exits early stays a zombie
    // until it is handed over; when this process ends, the shim adopts it.
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map_err(Failure::step("become subreaper"))?;
    std::env::set_current_dir(&job.bundle).map_err(Failure::step("enter the bundle"))?;
    // Mounted read-only as for the shim itself: commands keep the descriptor, and root in a container could
    // otherwise change the device of the whole host.
    let mount = null_device::mount_of_host().map_err(Failure::step("mount /dev/null"))?;
    let null = null_device::of_host(mount.as_fd()).map_err(Failure::step("open /dev/null"))?;
    stdio.set(&null)?;
    drop((mount, null));
    let kept = [0, 1, 2, report.as_raw_fd()];
    sys::close_all_but(&kept).map_err(Failure::step("close inherited descriptors"))?;
    let files = Files::of(&job.task);
    files.remove();
    let result = start_with(job, &files, report);
    files.remove();
    if let Task::Exec(process) = &job.task {
        let _ = std::fs::remove_file(process);
    }
    result
}

fn start_with(job: &Job, files: &Files, report: BorrowedFd<'_>) -> Result<(), Failure> {
    let console = job.terminal.map(|_| listen(&files.console)).transpose()?;
    let verb = match &job.task {
        Task::Start => "create",
        Task::Exec(_) => "exec",
    };
    let mut command = job.command(files, verb);
    match &job.task {
        Task::Start => command.arg("--bundle").arg(&job.bundle),
        Task::Exec(process) => command.arg("--detach").arg("--process").arg(process),
    };
    command.args(["--pid-file", &files.pid]);
    if console.is_some() {
        command.args(["--console-socket", &files.console]);
    }
    job.call(files, command.arg(&job.id))?;
    hand_over(&files.pid, report)?;
    if let (Some(listener), Some(size)) = (console, job.terminal) {
        hand_over_terminal(&listener, size, report)?;
    }
    match &job.task {
        Task::Exec(_) => Ok(()),
        Task::Start => job.call(files, job.command(files, "start").arg(&job.id)),
    }
}

/// Reports the process that the runtime has started. It is now a child of this process, and later of the shim.
fn hand_over(pid_file: &str, report: BorrowedFd<'_>) -> Result<(), Failure> {
    let text = std::fs::read_to_string(pid_file).map_err(Failure::step("read the runtime's pid file"))?;
    let pid: i32 =
        text.trim().parse().map_err(|_| failed(format!("the runtime's pid file holds {text:?}")))?;
    let pidfd = sys::pidfd_open(pid).map_err(Failure::step("open the runtime's process"))?;
    let mut message = vec![SIBLING_REPORT];
    message.extend(pid.to_le_bytes());
    socket::send(report, &message, &[pidfd.as_fd()]).map(drop).map_err(Failure::step("report the process"))
}

fn listen(socket: &str) -> Result<UnixListener, Failure> {
    UnixListener::bind(socket).map_err(Failure::step("bind the console socket"))
}

fn hand_over_terminal(
    listener: &UnixListener,
    size: Option<TerminalSize>,
    report: BorrowedFd<'_>,
) -> Result<(), Failure> {
    let step = || Failure::step("receive the terminal");
    // The runtime sent the terminal before it ended, so there is no need to wait.
    listener.set_nonblocking(true).map_err(step())?;
    let (stream, _) = listener.accept().map_err(step())?;
    let (mut buffer, mut fds) = ([0; 4096], Vec::new());
    socket::receive(stream.as_fd(), &mut buffer, &mut fds).map_err(step())?;
    let master = fds.pop().ok_or_else(|| failed("the runtime sent no terminal".to_owned()))?;
    if let Some(size) = size {
        let _ = sys::set_window_size(master.as_fd(), size.columns, size.rows);
    }
    socket::send(report, &[TERMINAL_REPORT], &[master.as_fd()])
        .map(drop)
        .map_err(Failure::step("hand over the terminal"))
}

fn failed(message: String) -> Failure {
    Failure { message, exit_code: 128 }
}

impl Job {
    fn command(&self, files: &Files, verb: &str) -> Command {
        let mut command = self.runtime.command();
        command.args(["--log", &files.log, "--log-format", "json"]).arg(verb);
        command
    }

    fn call(&self, files: &Files, command: &mut Command) -> Result<(), Failure> {
        let program = self.runtime.program.display();
        // SAFETY: one plain system call.
        unsafe {
            command
                .pre_exec(|| sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0).map(drop))
        };
        let child = command.spawn().map_err(Failure::step(format!("run {program}")))?;
        let status = wait_within(child, TIMEOUT).map_err(Failure::step(format!("run {program}")))?;
        if status.success() {
            return Ok(());
        }
        let log = std::fs::read_to_string(&files.log).unwrap_or_default();
        let message = last_error(&log).unwrap_or_else(|| format!("{program}: {status}"));
        Err(Failure { exit_code: exit_code(&message), message })
    }
}

/// Returns the last error of a log in JSON lines, without the prefix that the shim adds itself.
fn last_error(log: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        level: String,
        msg: String,
    }
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let last = lines.rfind(|line| matches!(line.level.as_str(), "error" | "fatal"))?.msg;
    Some(last.split_once(PREFIX).map_or(last.as_str(), |(_, rest)| rest).to_owned())
}

/// Chooses the exit code as a shell does: 127 for a missing program, 126 for one that cannot be run.
fn exit_code(message: &str) -> i32 {
    match message {
        _ if message.contains("not found") || message.contains("no such file") => 127,
        _ if message.contains("permission denied") => 126,
        _ => 128,
    }
}

impl OciRuntime {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", DEFAULT_PATH).arg("--root").arg(&self.root);
        command
    }

    /// Starts a call without waiting for its end; the shim reaps it.
    fn begin(&self, args: &[&str]) -> Result<(), String> {
        let mut command = self.command();
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
            .spawn()
            .map(drop)
            .map_err(|error| format!("{}: {}", self.program.display(), sys::errno_text(&error)))
    }
}

/// Deletes the runtime's records of a container that has ended, or that was only half created.
pub fn delete(runtime: &OciRuntime, id: &str) {
    // If it fails, the remaining records are in the sandbox's folder, which is removed later.
    let _ = runtime.begin(&["delete", "--force", id]);
}

/// Sends a signal to the container's first process, even if it runs in a virtual machine.
pub fn signal(runtime: &OciRuntime, id: &str, signal: i32) -> Result<(), String> {
    runtime.begin(&["kill", id, &signal.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_in_the_log() {
        let log = concat!(
            r#"{"level":"warning","msg":"cannot do something","time":"x"}"#,
            "\n",
            r#"{"level":"error","msg":"runc create failed: unable to start container process: exec: \"nope\": executable file not found in $PATH"}"#,
            "\nno JSON\n"
        );
        let error = last_error(log).unwrap();
        assert_eq!(error, "exec: \"nope\": executable file not found in $PATH");
        assert_eq!((exit_code(&error), exit_code("permission denied"), exit_code("else")), (127, 126, 128));
        assert_eq!(last_error("{\"level\":\"error\",\"msg\":\"plain\"}"), Some("plain".to_owned()));
        assert_eq!(last_error(""), None);
    }
}
