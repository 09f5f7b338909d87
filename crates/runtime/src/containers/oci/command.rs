//! Calls of an OCI runtime: those that start something, made by a clone of the shim, and those that end it.

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

/// For one call; a virtual machine takes seconds to start.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Before the words that the shim adds itself.
const PREFIX: &str = "unable to start container process: ";

/// Something that is started.
pub struct Job {
    pub runtime: OciRuntime,
    /// The container's folder with its `config.json`.
    pub bundle: PathBuf,
    pub id: String,
    pub task: Task,
    /// `Some`: it has a terminal, of this size.
    pub terminal: Option<Option<TerminalSize>>,
}

pub enum Task {
    /// The container's first process.
    Start,
    /// A command; the file holds its `process`.
    Exec(PathBuf),
}

/// What a job's calls write, relative to the bundle, because the address of a socket is short. Several commands may be
/// on their way at once, so that each has its own.
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

/// Removes what the call of a command that was killed has left in the bundle. `process` is the file of its `process`.
pub fn forget(process: &Path) {
    let files = Files::of(&Task::Exec(process.to_owned()));
    files.all().into_iter().for_each(|file| drop(std::fs::remove_file(process.with_file_name(file))));
    let _ = std::fs::remove_file(process);
}

/// The body of the shim's clone: reports as a container's first process does, with the process that the runtime started
/// as the one that goes on in its place.
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
    // Whoever ends this process ends the runtime's command with it.
    // SAFETY: plain system call.
    sys::check(unsafe { libc::setpgid(0, 0) }).map_err(Failure::step("lead a process group"))?;
    // What ends before it is handed over waits here for that, and is the shim's when this process ends.
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map_err(Failure::step("become subreaper"))?;
    std::env::set_current_dir(&job.bundle).map_err(Failure::step("enter the bundle"))?;
    // As for the shim's own: commands keep it, and root in a container could change the device of the whole host.
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

/// The process that the runtime has started is this one's child by now, and then the shim's.
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
    // The runtime has sent it before it ended: nothing is waited for.
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

/// The last error of a log in JSON lines, without the words that the shim adds.
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

/// As a shell has them: 127 for what is not there, 126 for what cannot be run.
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

    /// Begins a call that nobody waits for; the shim takes in its end.
    fn begin(&self, args: &[&str]) -> Result<(), String> {
        let mut command = self.command();
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
            .spawn()
            .map(drop)
            .map_err(|error| format!("{}: {}", self.program.display(), sys::errno_text(&error)))
    }
}

/// Ends the runtime's part of a container that has ended, or that was only half made.
pub fn delete(runtime: &OciRuntime, id: &str) {
    // What is left of it lies in the sandbox's folder.
    let _ = runtime.begin(&["delete", "--force", id]);
}

/// To the container's first process, wherever that is.
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
