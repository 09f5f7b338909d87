//! Moves a container's output to its log and to attached clients, and their input to the container.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use jiff::Timestamp;

use crate::containers::log::{LineCutter, LogFile, Stream};
use crate::containers::sys;

/// A client that is this many bytes behind is disconnected.
const MAX_BEHIND_BYTES: usize = 1 << 20;
const MAX_STDIN_CHUNK: usize = 8 << 10;
/// A pipe holds 64 KiB and a chunk is half of that; more rounds mean that a process is still writing.
const MAX_DRAIN_ROUNDS: usize = 64;
pub const MAX_ATTACHMENTS: usize = 16;

struct Source {
    fd: OwnedFd,
    stream: Stream,
    cutter: LineCutter,
}

struct Sink {
    fd: OwnedFd,
    behind: Vec<u8>,
}

impl Sink {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        sys::set_nonblocking(fd.as_fd())?;
        Ok(Self { fd, behind: Vec::new() })
    }

    /// Writes or queues bytes; returns false if the reader is gone or too far behind.
    fn write(&mut self, bytes: &[u8]) -> bool {
        if self.behind.len() + bytes.len() > MAX_BEHIND_BYTES {
            return false;
        }
        if !self.behind.is_empty() {
            self.behind.extend_from_slice(bytes);
            return true;
        }
        self.behind.extend_from_slice(bytes);
        self.flush()
    }

    fn flush(&mut self) -> bool {
        while !self.behind.is_empty() {
            match sys::write(self.fd.as_fd(), &self.behind) {
                Ok(count) => drop(self.behind.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.behind = Vec::new();
        true
    }
}

#[derive(Default)]
struct Attachment {
    stdin: Option<OwnedFd>,
    stdout: Option<Sink>,
    stderr: Option<Sink>,
}

impl Attachment {
    fn is_over(&self) -> bool {
        self.stdin.is_none() && self.stdout.is_none() && self.stderr.is_none()
    }
}

/// What a descriptor of [`Output::poll_set`] belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    Source(usize),
    Stdin,
    ClientInput(usize),
    ClientOutput(usize, Stream),
}

/// The streams of a container's first process, its log, and the attached clients.
#[derive(Default)]
pub struct Output {
    sources: Vec<Option<Source>>,
    stdin: Option<Sink>,
    stdin_once: bool,
    terminal: bool,
    log: Option<LogFile>,
    attachments: Vec<Attachment>,
    lines: Vec<u8>,
}

impl Output {
    pub fn new(log: Option<LogFile>, stdin_once: bool) -> Self {
        Self { log, stdin_once, ..Self::default() }
    }

    pub fn add_source(&mut self, fd: OwnedFd, stream: Stream) -> io::Result<()> {
        sys::set_nonblocking(fd.as_fd())?;
        self.sources.push(Some(Source { fd, stream, cutter: LineCutter::default() }));
        Ok(())
    }

    pub fn set_stdin(&mut self, fd: OwnedFd) -> io::Result<()> {
        self.stdin = Some(Sink::new(fd)?);
        Ok(())
    }

    /// Sets the terminal, whose master carries both directions.
    pub fn set_terminal(&mut self, master: OwnedFd, with_input: bool) -> io::Result<()> {
        self.terminal = true;
        if with_input {
            self.set_stdin(master.try_clone()?)?;
        }
        self.add_source(master, Stream::Stdout)
    }

    /// Returns the terminal's master, if there is one.
    pub fn terminal(&self) -> Option<&OwnedFd> {
        self.terminal.then(|| self.sources.first()?.as_ref().map(|source| &source.fd)).flatten()
    }

    pub fn reopen_log(&mut self) -> io::Result<()> {
        self.log.as_mut().map_or(Ok(()), LogFile::reopen)
    }

    /// Adds a client; fails if too many are attached.
    pub fn attach(
        &mut self,
        stdin: Option<OwnedFd>,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> io::Result<()> {
        if self.attachments.len() >= MAX_ATTACHMENTS {
            return Err(io::Error::other("too many attached clients"));
        }
        if let Some(stdin) = &stdin {
            sys::set_nonblocking(stdin.as_fd())?;
        }
        let stdin = stdin.filter(|_| self.stdin.is_some());
        let (stdout, stderr) = (stdout.map(Sink::new).transpose()?, stderr.map(Sink::new).transpose()?);
        self.attachments.push(Attachment { stdin, stdout, stderr });
        Ok(())
    }

    /// Calls `add` with every descriptor to poll and its events.
    pub fn poll_set(&self, add: &mut dyn FnMut(&OwnedFd, libc::c_short, Port)) {
        for (index, source) in self.sources.iter().enumerate() {
            if let Some(source) = source {
                add(&source.fd, libc::POLLIN, Port::Source(index));
            }
        }
        let stdin_busy = self.stdin.as_ref().is_some_and(|stdin| !stdin.behind.is_empty());
        if let Some(stdin) = self.stdin.as_ref().filter(|_| stdin_busy) {
            add(&stdin.fd, libc::POLLOUT, Port::Stdin);
        }
        for (index, attachment) in self.attachments.iter().enumerate() {
            if let Some(stdin) = attachment.stdin.as_ref().filter(|_| !stdin_busy) {
                add(stdin, libc::POLLIN, Port::ClientInput(index));
            }
            let outputs = [(&attachment.stdout, Stream::Stdout), (&attachment.stderr, Stream::Stderr)];
            for (sink, stream) in outputs {
                if let Some(sink) = sink {
                    // Without POLLOUT, poll reports only that the client has disconnected.
                    let events = if sink.behind.is_empty() { 0 } else { libc::POLLOUT };
                    add(&sink.fd, events, Port::ClientOutput(index, stream));
                }
            }
        }
    }

    /// Handles one ready descriptor. Indices stay valid until [`Output::tidy`].
    pub fn ready(&mut self, port: Port, revents: libc::c_short, buffer: &mut [u8]) {
        match port {
            Port::Source(index) => {
                self.pump(index, buffer);
            }
            Port::Stdin => {
                if self.stdin.as_mut().is_some_and(|stdin| !stdin.flush()) {
                    self.stdin = None;
                }
            }
            Port::ClientInput(index) => self.take_input(index, buffer),
            Port::ClientOutput(index, stream) => {
                let Some(attachment) = self.attachments.get_mut(index) else { return };
                let sink = match stream {
                    Stream::Stdout => &mut attachment.stdout,
                    Stream::Stderr => &mut attachment.stderr,
                };
                let gone = revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
                if gone || sink.as_mut().is_some_and(|sink| !sink.flush()) {
                    *sink = None;
                }
            }
        }
    }

    /// Removes attachments that have ended.
    pub fn tidy(&mut self) {
        let before = self.attachments.len();
        self.attachments.retain(|attachment| !attachment.is_over());
        if self.attachments.len() < before && self.stdin_once && !self.terminal && self.attachments.is_empty()
        {
            self.stdin = None;
        }
    }

    /// Moves one chunk; returns false when no more can be read for now.
    fn pump(&mut self, index: usize, buffer: &mut [u8]) -> bool {
        let Some(slot) = self.sources.get_mut(index) else { return false };
        let Some(source) = slot.as_mut() else { return false };
        let stream = source.stream;
        let count = match sys::read(source.fd.as_fd(), buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            // A terminal returns EIO when the last process has closed it.
            Err(_) => 0,
        };
        self.lines.clear();
        let now = Timestamp::now();
        if count == 0 {
            source.cutter.finish(stream, now, &mut self.lines);
            *slot = None;
        } else if self.log.is_some() {
            source.cutter.push(stream, now, &buffer[..count], &mut self.lines);
        }
        if let Some(log) = &mut self.log
            && !self.lines.is_empty()
        {
            log.write(&self.lines);
        }
        for attachment in &mut self.attachments {
            let sink = match stream {
                Stream::Stdout => &mut attachment.stdout,
                Stream::Stderr => &mut attachment.stderr,
            };
            let keep = sink.as_mut().is_some_and(|sink| count > 0 && sink.write(&buffer[..count]));
            if !keep {
                *sink = None;
            }
        }
        count > 0
    }

    fn take_input(&mut self, index: usize, buffer: &mut [u8]) {
        let Some(attachment) = self.attachments.get_mut(index) else { return };
        let Some(input) = &attachment.stdin else { return };
        let limit = buffer.len().min(MAX_STDIN_CHUNK);
        match sys::read(input.as_fd(), &mut buffer[..limit]) {
            Ok(0) => {
                attachment.stdin = None;
                if self.stdin_once && !self.terminal {
                    self.stdin = None;
                }
            }
            Ok(count) => {
                if self.stdin.as_mut().is_none_or(|stdin| !stdin.write(&buffer[..count])) {
                    self.stdin = None;
                    attachment.stdin = None;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => attachment.stdin = None,
        }
    }

    /// Moves the remaining output and closes everything, after the container has ended.
    pub fn finish(&mut self, buffer: &mut [u8]) {
        for index in 0..self.sources.len() {
            for _ in 0..MAX_DRAIN_ROUNDS {
                if !self.pump(index, buffer) {
                    break;
                }
            }
            if let Some(Some(source)) = self.sources.get_mut(index) {
                self.lines.clear();
                source.cutter.finish(source.stream, Timestamp::now(), &mut self.lines);
                if let Some(log) = &mut self.log {
                    log.write(&self.lines);
                }
            }
        }
        // A client that is behind gets its last bytes only if its pipe accepts them now.
        for attachment in &mut self.attachments {
            for sink in [&mut attachment.stdout, &mut attachment.stderr].into_iter().flatten() {
                sink.flush();
            }
        }
        *self = Self::default();
    }
}
