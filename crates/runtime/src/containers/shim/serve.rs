//! The shim's loop: one poll over its socket, its children and their streams.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use super::connection::Connection;
use super::container::Container;
use super::exec::Exec;
use super::launch::{Progress, Report};
use super::output::Port;
use super::pause::Pause;
use super::setup;
use super::user_namespace::UserNamespace;
use crate::containers::oci::{self, OciRuntime};
use crate::containers::protocol::{ErrorKind, Incoming, Push, RemoteError, Response};
use crate::containers::state::{SandboxFolder, SandboxRecord};
use crate::containers::sys;

/// Enough for a server, its successor while the old one still runs, and inspection tools.
const MAX_CONNECTIONS: usize = 16;
const BUFFER_BYTES: usize = 32 << 10;
/// The number of exited children to reap before the shim does its other work again.
const REAPED_AT_ONCE: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How many times, and how often, to poll for the OOM kill after the cgroup reports memory pressure.
const OOM_LOOKS: u32 = 250;
const OOM_LOOK_EVERY_MS: libc::c_int = 20;

/// A caller that waits for an answer: connection and request number.
pub type Caller = (u64, u64);

/// The namespaces that a shim holds for its containers, in addition to its own.
pub struct Namespaces {
    pub pause: Option<Pause>,
    pub user_namespace: Option<UserNamespace>,
}

/// The shim's state.
pub struct Shim {
    pub(super) folder: SandboxFolder,
    pub(super) record: SandboxRecord,
    pub(super) shm: PathBuf,
    signals: OwnedFd,
    listener: UnixListener,
    pub(super) pause: Option<Pause>,
    pub(super) user_namespace: Option<UserNamespace>,
    /// The OCI runtime that runs the containers, if one does.
    pub(super) oci: Option<OciRuntime>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) containers: BTreeMap<u64, Container>,
    pub(super) execs: BTreeMap<u64, Exec>,
    pub(super) next_key: u64,
    /// The callers that asked the shim to stop; while not empty, new work is refused.
    pub(super) stopping: Vec<Caller>,
    /// Whether more exited children may be left than were reaped at once.
    unreaped: bool,
    /// One buffer for all streams and sockets.
    buffer: Vec<u8>,
}

/// What a polled descriptor belongs to.
#[derive(Clone, Copy)]
enum Token {
    Signals,
    Listener,
    Connection(u64),
    ContainerReport(u64),
    ExecReport(u64),
    Oom(u64),
    Stream(u64, Port),
}

impl Shim {
    pub fn new(
        folder: SandboxFolder,
        record: SandboxRecord,
        shm: PathBuf,
        signals: OwnedFd,
        listener: UnixListener,
        namespaces: Namespaces,
    ) -> Self {
        let Namespaces { pause, user_namespace } = namespaces;
        let oci = record.config.oci_runtime.as_deref().map(|program| OciRuntime::of(program, &folder));
        Self {
            folder,
            record,
            shm,
            signals,
            listener,
            pause,
            user_namespace,
            oci,
            connections: BTreeMap::new(),
            containers: BTreeMap::new(),
            execs: BTreeMap::new(),
            next_key: 1,
            stopping: Vec::new(),
            unreaped: false,
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    /// Runs until the shim was asked to stop and the last container has ended.
    pub fn serve(&mut self) -> io::Result<()> {
        let mut polled: Vec<libc::pollfd> = Vec::new();
        let mut tokens: Vec<Token> = Vec::new();
        loop {
            if !self.stopping.is_empty() && self.is_quiet() {
                setup::tear_down(&self.folder);
                for caller in std::mem::take(&mut self.stopping) {
                    self.answer(caller, Response::Done);
                }
                return Ok(());
            }
            polled.clear();
            tokens.clear();
            self.poll_set(&mut polled, &mut tokens);
            let looking = self.containers.values().any(|container| container.oom_looks > 0);
            let wait = match (self.unreaped, looking) {
                (true, _) => 0,
                (false, true) => OOM_LOOK_EVERY_MS,
                (false, false) => -1,
            };
            // SAFETY: the array is valid for its length.
            let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, wait) };
            if let Err(error) = sys::check(ready) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            for (entry, token) in polled.iter().zip(&tokens) {
                if entry.revents != 0 {
                    self.ready(*token, entry.revents);
                }
            }
            if self.unreaped {
                self.reap();
            }
            if looking {
                self.look_for_kills();
            }
            for container in self.containers.values_mut() {
                container.output.tidy();
            }
        }
    }

    /// Returns whether no process of the sandbox is running.
    fn is_quiet(&self) -> bool {
        self.execs.is_empty() && !self.containers.values().any(Container::is_alive)
    }

    fn poll_set(&self, polled: &mut Vec<libc::pollfd>, tokens: &mut Vec<Token>) {
        let mut add = |fd: i32, events: libc::c_short, token: Token| {
            polled.push(libc::pollfd { fd, events, revents: 0 });
            tokens.push(token);
        };
        add(self.signals.as_raw_fd(), libc::POLLIN, Token::Signals);
        if self.connections.len() < MAX_CONNECTIONS {
            add(self.listener.as_raw_fd(), libc::POLLIN, Token::Listener);
        }
        for (key, connection) in &self.connections {
            let write = if connection.wants_write() { libc::POLLOUT } else { 0 };
            add(connection.fd().as_raw_fd(), libc::POLLIN | write, Token::Connection(*key));
        }
        for (key, exec) in &self.execs {
            if let Some(report) = &exec.report {
                add(report.fd().as_raw_fd(), libc::POLLIN, Token::ExecReport(*key));
            }
        }
        for (key, container) in &self.containers {
            if let Some(report) = &container.report {
                add(report.fd().as_raw_fd(), libc::POLLIN, Token::ContainerReport(*key));
            }
            if let Some(oom) = &container.oom {
                add(oom.fd().as_raw_fd(), oom.poll_events(), Token::Oom(*key));
            }
            container.output.poll_set(&mut |fd, events, port| {
                add(fd.as_raw_fd(), events, Token::Stream(*key, port));
            });
        }
    }

    fn ready(&mut self, token: Token, revents: libc::c_short) {
        match token {
            Token::Signals => self.reap(),
            Token::Listener => self.accept(),
            Token::Connection(key) => self.serve_connection(key, revents),
            Token::ContainerReport(key) => self.container_report(key),
            Token::ExecReport(key) => self.exec_report(key),
            Token::Oom(key) => self.oom(key),
            Token::Stream(key, port) => {
                if let Some(container) = self.containers.get_mut(&key) {
                    container.output.ready(port, revents, &mut self.buffer);
                }
            }
        }
    }

    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // The shim is probably out of descriptors: the socket stays ready, so pause to avoid a busy
                    // loop.
                    std::thread::sleep(ACCEPT_PAUSE);
                }
                return;
            }
        };
        if let Ok(connection) = Connection::new(stream) {
            self.connections.insert(self.next_key, connection);
            self.next_key += 1;
        }
    }

    fn serve_connection(&mut self, key: u64, revents: libc::c_short) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if revents & libc::POLLOUT != 0 && connection.flush().is_err() {
            self.connections.remove(&key);
            return;
        }
        if revents & !libc::POLLOUT == 0 {
            return;
        }
        match connection.receive(&mut self.buffer) {
            Ok(requests) => {
                for (number, request, fds) in requests {
                    match request {
                        Ok(request) => self.handle((key, number), request, fds),
                        Err(why) => self.refuse((key, number), ErrorKind::Invalid, why, 128),
                    }
                }
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    super::note(format_args!("connection: {error}"));
                }
                self.connections.remove(&key);
            }
        }
    }

    /// Reads the few messages that a process may have left before it ended.
    fn drain_report(&mut self, key: u64) {
        for _ in 0..4 {
            if self.containers.get(&key).is_some_and(|container| container.report.is_some()) {
                self.container_report(key);
            }
        }
    }

    /// Reaps exited children. Unknown ones are orphans of a container, which may create them as fast as they
    /// are reaped.
    fn reap(&mut self) {
        let mut info = [0; 128];
        let _ = sys::read(self.signals.as_fd(), &mut info);
        self.unreaped = true;
        for _ in 0..REAPED_AT_ONCE {
            let Some((pid, status)) = sys::reap_one() else {
                self.unreaped = false;
                return;
            };
            if !self.known_exited(pid, status) {
                // A starting process may just have handed over to this one.
                self.drain_reports();
                self.known_exited(pid, status);
            }
        }
    }

    /// Handles the exit of a container's first process or of a command; returns false for any other process.
    fn known_exited(&mut self, pid: i32, status: i32) -> bool {
        let container = self.containers.iter().find(|(_, container)| container.pid == pid);
        if let Some(key) = container.map(|(key, _)| *key) {
            self.container_exited(key, pid, status);
            return true;
        }
        let exec = self.execs.iter().find(|(_, exec)| exec.pid == pid);
        let Some(key) = exec.map(|(key, _)| *key) else { return false };
        self.exec_exited(key, pid, status);
        true
    }

    pub(super) fn drain_reports(&mut self) {
        for key in self.containers.keys().copied().collect::<Vec<_>>() {
            self.drain_report(key);
        }
        for key in self.execs.keys().copied().collect::<Vec<_>>() {
            self.drain_exec_report(key);
        }
    }

    fn container_report(&mut self, key: u64) {
        let Some(container) = self.containers.get_mut(&key) else { return };
        let Some(progress) = container.report.as_mut().map(Report::read) else { return };
        self.container_progressed(key, progress);
    }

    fn container_progressed(&mut self, key: u64, progress: Progress) {
        let Some(container) = self.containers.get_mut(&key) else { return };
        let Some(report) = &mut container.report else { return };
        match progress {
            Progress::Waiting => {
                if let Some(sibling) = report.sibling.take() {
                    container.goes_on_as(sibling);
                }
            }
            Progress::Running => {
                let terminal = report.terminal.take();
                container.report = None;
                container.started(terminal);
                container.save(&self.folder);
                let (status, waiting) = (container.status.clone(), container.waiting.take());
                if let Some(caller) = waiting {
                    self.answer(caller, Response::Container(status.clone()));
                }
                self.push(Push::Container(status));
            }
            Progress::Failed(failure) => {
                container.report = None;
                container.failure = Some(failure.message);
                if container.oci.is_some() {
                    // A process that took over before does not end by itself.
                    let _ = container.signal(libc::SIGKILL);
                }
            }
        }
    }

    /// Records that the container could not be started, and answers the waiting caller.
    pub(super) fn start_failed(&mut self, key: u64, message: &str) {
        let Some(container) = self.containers.get_mut(&key) else { return };
        container.start_failed(message, &self.record.cgroups);
        container.save(&self.folder);
        let (status, waiting) = (container.status.clone(), container.waiting.take());
        let message = status.message.clone();
        // First, so that the caller finds the state changed when it gets the failure.
        self.push(Push::Container(status));
        if let Some(caller) = waiting {
            self.refuse(caller, ErrorKind::Start, message, 128);
        }
    }

    fn container_exited(&mut self, key: u64, pid: i32, wait_status: i32) {
        self.drain_report(key);
        let Some(container) = self.containers.get_mut(&key) else { return };
        if container.pid != pid {
            // This process has handed over to another one.
            return;
        }
        // The process that handed over may still hold the report socket open.
        if let Some(progress) = container.report.as_mut().map(Report::ended) {
            self.container_progressed(key, progress);
        }
        let Some(container) = self.containers.get_mut(&key) else { return };
        if let Some(failure) = container.failure.take() {
            self.start_failed(key, &failure);
            return;
        }
        container.exited(wait_status, &self.record.cgroups, &mut self.buffer);
        container.save(&self.folder);
        let (status, waiting) = (container.status.clone(), container.waiting.take());
        if let Some(caller) = waiting {
            self.answer(caller, Response::Container(status.clone()));
        }
        self.push(Push::Container(status));
    }

    fn exec_report(&mut self, key: u64) {
        let Some(exec) = self.execs.get_mut(&key) else { return };
        let Some(progress) = exec.report.as_mut().map(Report::read) else { return };
        self.exec_progressed(key, progress);
    }

    fn exec_progressed(&mut self, key: u64, progress: Progress) {
        let Some(exec) = self.execs.get_mut(&key) else { return };
        let Some(report) = &mut exec.report else { return };
        match progress {
            Progress::Waiting => {
                if let Some(sibling) = report.sibling.take() {
                    exec.goes_on_as(sibling);
                }
            }
            Progress::Running => {
                let terminal = report.terminal.take();
                exec.report = None;
                let (pid, waiting) = (exec.pid, exec.waiting.take());
                if let Some(caller) = waiting {
                    self.answer_with(caller, Response::Exec { pid }, terminal.into_iter().collect());
                }
            }
            Progress::Failed(failure) => {
                exec.report = None;
                if exec.process_file.is_some() {
                    exec.signal(libc::SIGKILL);
                }
                if let Some(caller) = exec.waiting.take() {
                    let message =
                        format!("exec failed: unable to start container process: {}", failure.message);
                    self.refuse(caller, ErrorKind::Exec, message, failure.exit_code);
                }
            }
        }
    }

    fn drain_exec_report(&mut self, key: u64) {
        for _ in 0..4 {
            if self.execs.get(&key).is_some_and(|exec| exec.report.is_some()) {
                self.exec_report(key);
            }
        }
    }

    fn exec_exited(&mut self, key: u64, pid: i32, wait_status: i32) {
        self.drain_exec_report(key);
        let Some(exec) = self.execs.get_mut(&key) else { return };
        if exec.pid != pid {
            // This process has handed over to another one.
            return;
        }
        // The process that handed over may still hold the report socket open.
        if let Some(progress) = exec.report.as_mut().map(Report::ended) {
            self.exec_progressed(key, progress);
        }
        if let Some(exec) = self.execs.remove(&key) {
            exec.process_file.as_deref().iter().for_each(|file| oci::forget(file));
            let (exit_code, _) = sys::decode_wait_status(wait_status);
            self.push(Push::ExecExited { exec_id: exec.id, exit_code });
        }
    }

    fn oom(&mut self, key: u64) {
        let Some(container) = self.containers.get_mut(&key) else { return };
        let Some(oom) = &container.oom else { return };
        oom.clear();
        // cgroup v1 notifies of memory pressure before a kill, but not of the kill.
        container.oom_looks = OOM_LOOKS;
        self.look_for_kills();
    }

    fn look_for_kills(&mut self) {
        let mut killed = Vec::new();
        for container in self.containers.values_mut().filter(|container| container.oom_looks > 0) {
            container.oom_looks -= 1;
            let kills = self.record.cgroups.oom_kills(&container.cgroup);
            if kills > std::mem::replace(&mut container.oom_kills, kills) {
                container.oom_looks = 0;
                killed.push(container.spec.id.clone());
            }
        }
        for container_id in killed {
            self.push(Push::Oom { container_id });
        }
    }

    pub(super) fn answer(&mut self, caller: Caller, response: Response) {
        self.answer_with(caller, response, Vec::new());
    }

    pub(super) fn answer_with(&mut self, (key, number): Caller, response: Response, fds: Vec<OwnedFd>) {
        if let Some(connection) = self.connections.get_mut(&key)
            && connection.send(number, &Incoming::Answer(response), fds).is_err()
        {
            self.connections.remove(&key);
        }
    }

    pub(super) fn refuse(&mut self, caller: Caller, kind: ErrorKind, message: String, exit_code: i32) {
        self.answer(caller, Response::Error(RemoteError { kind, message, exit_code }));
    }

    /// Sends a push to every subscribed server.
    pub(super) fn push(&mut self, push: Push) {
        let push = Incoming::Push(push);
        self.connections
            .retain(|_, connection| !connection.subscribed || connection.send(0, &push, Vec::new()).is_ok());
    }
}
