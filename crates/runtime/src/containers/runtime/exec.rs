//! Commands in running containers, and attaching to a container's first process.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::Runtime;
use crate::containers::protocol::{ExecSpec, Request, StreamSet};
use crate::containers::status::TerminalSize;
use crate::containers::streams::{AttachStreams, ExecStreams, Reader, Writer};
use crate::containers::{Error, Result, sys};

/// The limit per stream; output beyond it is dropped, as the CRI's ExecSync does.
const MAX_SYNC_OUTPUT_BYTES: usize = 16 << 20;
/// How long the output may stay open after the command's end, held open by a process that it left behind.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes ids of commands unique: the number within this server, and its start time among its predecessors.
static NEXT_EXEC: AtomicU64 = AtomicU64::new(0);

/// A command to run in a container.
#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    pub container_id: String,
    pub args: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// The initial size of the terminal.
    pub size: Option<TerminalSize>,
}

/// Which streams of a container's first process to attach to.
#[derive(Debug, Clone, Default)]
pub struct AttachRequest {
    pub container_id: String,
    pub stdin: bool,
    pub stdout: bool,
    /// Ignored if the container has a terminal.
    pub stderr: bool,
}

/// The exit code and the output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit_code: i32,
}

/// Pipes to a process: the server's ends and the process's ends.
#[derive(Default)]
struct Pipes {
    stdin: Option<Writer>,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    theirs: Vec<OwnedFd>,
}

impl Pipes {
    fn open(set: StreamSet) -> std::io::Result<Self> {
        let mut pipes = Self::default();
        if set.stdin {
            let (read_end, write_end) = sys::pipe()?;
            pipes.stdin = Some(Writer::new(write_end)?);
            pipes.theirs.push(read_end);
        }
        for (wanted, slot) in [(set.stdout, &mut pipes.stdout), (set.stderr, &mut pipes.stderr)] {
            if wanted {
                let (read_end, write_end) = sys::pipe()?;
                *slot = Some(Reader::new(read_end)?);
                pipes.theirs.push(write_end);
            }
        }
        Ok(pipes)
    }
}

impl Runtime {
    /// Runs a command in a container. If it cannot be run, returns an [`Error::Exec`] with the exit code that a
    /// shell would use.
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecStreams> {
        let ExecRequest { container_id, args, tty, stdin, stdout, stderr, size } = request;
        let sandbox = self.sandbox_of(&container_id)?;
        let client = sandbox.client()?;
        let number = NEXT_EXEC.fetch_add(1, Ordering::Relaxed);
        let exec_id = format!("{}-{number}", std::process::id());
        let streams = if tty { StreamSet::default() } else { StreamSet { stdin, stdout, stderr } };
        let mut pipes = Pipes::open(streams).map_err(Error::io("open pipes"))?;
        let (guard, exit) = client.expect_exec(&exec_id);
        let spec = ExecSpec { container_id, exec_id: exec_id.clone(), args, tty, size, streams };
        let (_, mut fds) = client.call(Request::Exec(spec), std::mem::take(&mut pipes.theirs)).await?;
        let guard = guard.started();
        let mut terminal = None;
        if let Some(master) = fds.pop().filter(|_| tty) {
            let mut open = || -> std::io::Result<()> {
                pipes.stdout = Some(Reader::new(master.try_clone()?)?);
                if stdin {
                    pipes.stdin = Some(Writer::new(master.try_clone()?)?);
                }
                Ok(())
            };
            open().map_err(Error::io("open the terminal"))?;
            terminal = Some(master);
        }
        let Pipes { stdin, stdout, stderr, .. } = pipes;
        let sandbox_id = sandbox.id().to_owned();
        Ok(ExecStreams { stdin, stdout, stderr, terminal, guard, exit, sandbox_id })
    }

    /// Calls [`Self::exec_limited`] with the CRI's limit on the output.
    pub async fn exec_sync(
        &self,
        container_id: &str,
        args: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<ExecOutput> {
        self.exec_limited(container_id, args, timeout, MAX_SYNC_OUTPUT_BYTES).await
    }

    /// Runs a command until it ends. After `timeout` the command is killed and an [`Error::ExecTimeout`] is
    /// returned. At most `max_output` bytes of each stream are kept.
    pub async fn exec_limited(
        &self,
        container_id: &str,
        args: Vec<String>,
        timeout: Option<Duration>,
        max_output: usize,
    ) -> Result<ExecOutput> {
        let command = args.join(" ");
        let request = ExecRequest {
            container_id: container_id.to_owned(),
            args,
            stdout: true,
            stderr: true,
            ..ExecRequest::default()
        };
        let run = async {
            let mut streams = self.exec(request).await?;
            let (stdout, stderr) = (streams.stdout.take(), streams.stderr.take());
            Ok::<_, Error>((streams, stdout, stderr))
        };
        let Some(limit) = timeout.filter(|limit| !limit.is_zero()) else {
            let (mut streams, stdout, stderr) = run.await?;
            return collect(&mut streams, stdout, stderr, max_output).await;
        };
        let deadline = tokio::time::Instant::now() + limit;
        let late = || Error::ExecTimeout { command, seconds: limit.as_secs() };
        let Ok(started) = tokio::time::timeout_at(deadline, run).await else { return Err(late()) };
        let (mut streams, stdout, stderr) = started?;
        let collected = collect(&mut streams, stdout, stderr, max_output);
        match tokio::time::timeout_at(deadline, collected).await {
            Ok(output) => output,
            Err(_) => {
                streams.kill(libc::SIGKILL).await?;
                Err(late())
            }
        }
    }

    /// Attaches to the streams of the container's first process. Earlier output is only in the log.
    pub async fn attach(&self, request: AttachRequest) -> Result<AttachStreams> {
        let AttachRequest { container_id, stdin, stdout, stderr } = request;
        let sandbox = self.sandbox_of(&container_id)?;
        let spec = sandbox.entry(&container_id)?.spec;
        let streams = StreamSet { stdin: stdin && spec.stdin, stdout, stderr: stderr && !spec.tty };
        let mut pipes = Pipes::open(streams).map_err(Error::io("open pipes"))?;
        let request = Request::Attach { id: container_id, streams };
        sandbox.client()?.call(request, std::mem::take(&mut pipes.theirs)).await?;
        let Pipes { stdin, stdout, stderr, .. } = pipes;
        Ok(AttachStreams { stdin, stdout, stderr })
    }
}

/// Reads both streams while the command runs, and for a short time after its end.
async fn collect(
    streams: &mut ExecStreams,
    stdout: Option<Reader>,
    stderr: Option<Reader>,
    limit: usize,
) -> Result<ExecOutput> {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut exit_code = None;
    {
        let reading = async {
            tokio::join!(read_limited(stdout, &mut out, limit), read_limited(stderr, &mut err, limit))
        };
        tokio::pin!(reading);
        let mut read_all = false;
        let drained = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(drained);
        while exit_code.is_none() || !read_all {
            tokio::select! {
                code = streams.wait(), if exit_code.is_none() => {
                    exit_code = Some(code?);
                    drained.as_mut().reset(tokio::time::Instant::now() + DRAIN_TIMEOUT);
                }
                _ = &mut reading, if !read_all => read_all = true,
                () = &mut drained, if exit_code.is_some() => break,
            }
        }
    }
    Ok(ExecOutput { stdout: out, stderr: err, exit_code: exit_code.unwrap_or_default() })
}

/// Reads until the end of the stream, so that the command never blocks, and keeps the first `limit` bytes.
async fn read_limited(reader: Option<Reader>, out: &mut Vec<u8>, limit: usize) {
    let Some(mut reader) = reader else { return };
    let mut buffer = [0; 8 << 10];
    while let Ok(count) = reader.read(&mut buffer).await {
        if count == 0 {
            return;
        }
        let room = limit - out.len();
        out.extend_from_slice(&buffer[..count.min(room)]);
    }
}
