//! Handles the requests of the server.

use std::os::fd::{AsFd, OwnedFd};

use super::container::{Container, Surrounding};
use super::exec::{self, Exec};
use super::launch::Report;
use super::serve::{Caller, Shim};
use crate::containers::protocol::{ErrorKind, ExecSpec, Push, Request, Response, StreamSet};
use crate::containers::spec::{ContainerSpec, PidMode};
use crate::containers::status::{ContainerState, TerminalSize};
use crate::containers::sys;

/// Far more than a pod has; prevents a faulty caller from exhausting the machine.
const MAX_CONTAINERS: usize = 512;
const MAX_EXECS: usize = 512;
/// The limit for commands that OCI runtimes are starting: each has a process of the runtime outside of the
/// pod's limits.
const MAX_EXECS_BY_RUNTIME: usize = 16;

/// The kind and the message of a refused request.
type Refusal = (ErrorKind, String);

fn not_found(id: &str) -> Refusal {
    (ErrorKind::NotFound, format!("container {id:?} not found"))
}

/// Returns whether two containers see each other's processes.
fn share_processes(one: &ContainerSpec, other: &ContainerSpec) -> bool {
    match (&one.pid_mode, &other.pid_mode) {
        (PidMode::Target(a), PidMode::Target(b)) => a == b || *a == other.id || *b == one.id,
        (PidMode::Target(target), _) => *target == other.id,
        (_, PidMode::Target(target)) => *target == one.id,
        (a, b) => *a == PidMode::Pod && *b == PidMode::Pod,
    }
}

impl Shim {
    pub(super) fn handle(&mut self, caller: Caller, request: Request, fds: Vec<OwnedFd>) {
        let result = match request {
            Request::Subscribe => self.subscribe(caller),
            Request::Create(spec) => self.create(*spec),
            Request::Start { id } => {
                if let Err((kind, message)) = self.start(caller, &id) {
                    self.refuse(caller, kind, message, 128);
                }
                return;
            }
            Request::Exec(spec) => {
                if let Err((kind, message)) = self.exec(caller, spec, fds) {
                    self.refuse(caller, kind, message, 128);
                }
                return;
            }
            Request::Kill { id, signal, all } => self.kill(&id, signal, all),
            Request::Update { id, resources } => self.with_running(&id, |shim, key| {
                let cgroup = shim.containers[&key].cgroup.clone();
                shim.record.cgroups.update(&cgroup, &resources).map_err(super::chain)
            }),
            Request::Delete { id } => self.delete(&id),
            Request::ReopenLog { id } => {
                self.with_running(&id, |shim, key| match shim.containers.get_mut(&key) {
                    Some(container) => container.output.reopen_log().map_err(|e| sys::errno_text(&e)),
                    None => Ok(()),
                })
            }
            Request::Resize { id, size } => self.resize(&id, size),
            Request::KillExec { exec_id, signal } => {
                for exec in self.execs.values().filter(|exec| exec.id == exec_id) {
                    exec.signal(signal);
                }
                Ok(Response::Done)
            }
            Request::Attach { id, streams } => self.attach(&id, streams, fds),
            Request::Stop => {
                self.stop(caller);
                return;
            }
        };
        match result {
            Ok(response) => self.answer(caller, response),
            Err((kind, message)) => self.refuse(caller, kind, message, 1),
        }
    }

    fn key_of(&self, id: &str) -> Option<u64> {
        self.containers.iter().find(|(_, container)| container.spec.id == id).map(|(key, _)| *key)
    }

    fn with_running(
        &mut self,
        id: &str,
        f: impl FnOnce(&mut Self, u64) -> Result<(), String>,
    ) -> Result<Response, Refusal> {
        let key = self.key_of(id).ok_or_else(|| not_found(id))?;
        if !self.containers[&key].is_alive() {
            return Err((ErrorKind::State, format!("container {id:?} is not running")));
        }
        f(self, key).map(|()| Response::Done).map_err(|message| (ErrorKind::Other, message))
    }

    fn subscribe(&mut self, (key, _): Caller) -> Result<Response, Refusal> {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.subscribed = true;
        }
        Ok(Response::Containers(self.containers.values().map(|c| c.status.clone()).collect()))
    }

    fn create(&mut self, spec: ContainerSpec) -> Result<Response, Refusal> {
        self.refuse_when_stopping()?;
        if self.key_of(&spec.id).is_some() {
            return Err((ErrorKind::Exists, format!("container {:?} already exists", spec.id)));
        }
        if self.containers.len() >= MAX_CONTAINERS {
            return Err((ErrorKind::State, format!("the sandbox has {MAX_CONTAINERS} containers")));
        }
        let parent = &self.record.config.cgroup_parent;
        let container =
            Container::create(&self.folder, parent, spec).map_err(|message| (ErrorKind::Other, message))?;
        let status = container.status.clone();
        self.containers.insert(self.next_key, container);
        self.next_key += 1;
        Ok(Response::Container(status))
    }

    fn refuse_when_stopping(&self) -> Result<(), Refusal> {
        if self.stopping.is_empty() {
            return Ok(());
        }
        Err((ErrorKind::State, "the sandbox is being stopped".to_owned()))
    }

    fn start(&mut self, caller: Caller, id: &str) -> Result<(), Refusal> {
        self.refuse_when_stopping()?;
        let key = self.key_of(id).ok_or_else(|| not_found(id))?;
        self.guard_newcomers(key)?;
        let target = self.target_of(key)?;
        let (procfs, traced) = (self.folder.procfs(), self.is_traced(key));
        let around = Surrounding {
            cgroups: &self.record.cgroups,
            shm: &self.shm,
            hostname: &self.record.config.hostname,
            pause: self.pause.as_ref(),
            target: target.as_ref().map(AsFd::as_fd),
            procfs: &procfs,
            traced,
            user_namespace: self.user_namespace.as_ref(),
            oci: self.oci.as_ref(),
            folder: &self.folder,
            config: &self.record.config,
        };
        let Some(container) = self.containers.get_mut(&key) else { return Ok(()) };
        if !container.is_startable() {
            let message = format!("container {id:?} is in state {:?}", container.status.state);
            return Err((ErrorKind::State, message));
        }
        container.waiting = Some(caller);
        if let Err(message) = container.start(&around) {
            self.start_failed(key, &message);
        }
        Ok(())
    }

    /// Returns the first process of the running container whose pid namespace this container is to join, if it
    /// joins one.
    fn target_of(&self, key: u64) -> Result<Option<OwnedFd>, Refusal> {
        let Some(Container { spec: ContainerSpec { pid_mode: PidMode::Target(id), .. }, .. }) =
            self.containers.get(&key)
        else {
            return Ok(None);
        };
        let target = self.key_of(id).and_then(|key| self.containers.get(&key));
        let running = target.filter(|target| target.status.state == ContainerState::Running);
        let Some(pidfd) = running.and_then(|target| target.pidfd.as_ref()) else { return Ok(None) };
        let copied = pidfd.try_clone().map_err(|error| (ErrorKind::Other, sys::errno_text(&error)))?;
        Ok(Some(copied))
    }

    /// Returns whether processes that share the container's processes may trace it. Containers that have not
    /// started yet count.
    fn is_traced(&self, key: u64) -> bool {
        let own = &self.containers[&key].spec;
        let seen = |other: &ContainerSpec| own.id == other.id || share_processes(own, other);
        self.containers.values().any(|c| seen(&c.spec) && c.traces())
    }

    /// Called before a container starts that may trace others. A process that began to start before may still
    /// be setting up, with rights that are safe only while no process can trace it, and a container that shares
    /// its processes may have stopped it in that state. Such a process is killed.
    fn guard_newcomers(&mut self, key: u64) -> Result<(), Refusal> {
        let own = &self.containers[&key];
        if !own.traces() || !own.is_startable() {
            return Ok(());
        }
        self.drain_reports();
        let own = &self.containers[&key].spec;
        let seen = || self.containers.values().filter(|c| share_processes(own, &c.spec));
        let starting = |report: &Option<Report>, unguarded: bool| unguarded && report.is_some();
        let containers = seen().filter(|c| starting(&c.report, c.unguarded));
        let execs = self.execs.values().filter(|exec| {
            starting(&exec.report, exec.unguarded) && seen().any(|c| c.spec.id == exec.container_id)
        });
        let (containers, execs): (Vec<_>, Vec<_>) = (containers.collect(), execs.collect());
        let reports = containers.iter().map(|c| &c.report).chain(execs.iter().map(|exec| &exec.report));
        if reports.flatten().any(|report| !report.has_joined()) {
            // It may already have been replaced by a process that is not known yet.
            let message = "a process is being started among those that the container would see";
            return Err((ErrorKind::State, message.to_owned()));
        }
        for container in containers {
            let _ = container.signal(libc::SIGKILL);
        }
        for exec in execs {
            exec.signal(libc::SIGKILL);
        }
        Ok(())
    }

    fn exec(&mut self, caller: Caller, spec: ExecSpec, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        self.refuse_when_stopping()?;
        let key = self.key_of(&spec.container_id).ok_or_else(|| not_found(&spec.container_id))?;
        let container = &self.containers[&key];
        if container.status.state != ContainerState::Running {
            let message = format!("container {:?} is not running", spec.container_id);
            return Err((ErrorKind::State, message));
        }
        if self.execs.len() >= MAX_EXECS {
            return Err((ErrorKind::State, format!("{MAX_EXECS} commands run in this sandbox already")));
        }
        let by_runtime = self.execs.values().filter(|exec| exec.is_on_its_way_by_runtime()).count();
        if by_runtime >= MAX_EXECS_BY_RUNTIME {
            return Err((
                ErrorKind::State,
                format!("{MAX_EXECS_BY_RUNTIME} commands are being started in this sandbox already"),
            ));
        }
        if spec.args.first().is_none_or(String::is_empty) || fds.len() != spec.streams.count() {
            return Err((ErrorKind::Invalid, "no command specified".to_owned()));
        }
        let around = exec::Surrounding {
            hostname: &self.record.config.hostname,
            cgroups: &self.record.cgroups,
            traced: self.is_traced(key),
            user_namespace: self.user_namespace.as_ref(),
            folder: &self.folder,
        };
        let mut exec = Exec::start(spec, fds, container, &around)
            .map_err(|message| (ErrorKind::Exec, format!("exec failed: {message}")))?;
        exec.waiting = Some(caller);
        self.execs.insert(self.next_key, exec);
        self.next_key += 1;
        Ok(())
    }

    fn kill(&mut self, id: &str, signal: i32, all: bool) -> Result<Response, Refusal> {
        let key = self.key_of(id).ok_or_else(|| not_found(id))?;
        let container = &self.containers[&key];
        if all && signal == libc::SIGKILL {
            container.kill_all(&self.record.cgroups);
            return Ok(Response::Done);
        }
        container.signal(signal).map_err(|message| (ErrorKind::State, message))?;
        if all {
            self.record.cgroups.signal_all(&container.cgroup, signal);
        }
        Ok(Response::Done)
    }

    fn delete(&mut self, id: &str) -> Result<Response, Refusal> {
        let key = self.key_of(id).ok_or_else(|| not_found(id))?;
        if self.containers[&key].is_alive() {
            return Err((ErrorKind::State, format!("container {id:?} is running")));
        }
        if let Some(container) = self.containers.remove(&key) {
            container.remove_folder(&self.folder);
        }
        Ok(Response::Done)
    }

    fn resize(&mut self, id: &str, size: TerminalSize) -> Result<Response, Refusal> {
        let key = self.key_of(id).ok_or_else(|| not_found(id))?;
        let Some(master) = self.containers[&key].output.terminal() else {
            return Err((ErrorKind::State, format!("container {id:?} has no terminal")));
        };
        sys::set_window_size(master.as_fd(), size.columns, size.rows)
            .map(|()| Response::Done)
            .map_err(|error| (ErrorKind::Other, sys::errno_text(&error)))
    }

    fn attach(&mut self, id: &str, streams: StreamSet, fds: Vec<OwnedFd>) -> Result<Response, Refusal> {
        if fds.len() != streams.count() {
            return Err((ErrorKind::Invalid, "descriptors are missing".to_owned()));
        }
        self.with_running(id, |shim, key| {
            let mut fds = fds.into_iter();
            let mut take = |wanted: bool| if wanted { fds.next() } else { None };
            let (stdin, stdout, stderr) = (take(streams.stdin), take(streams.stdout), take(streams.stderr));
            match shim.containers.get_mut(&key) {
                Some(container) => {
                    container.output.attach(stdin, stdout, stderr).map_err(|error| sys::errno_text(&error))
                }
                None => Ok(()),
            }
        })
    }

    /// Kills all processes; the loop ends when the last one is reaped.
    fn stop(&mut self, caller: Caller) {
        let _ = std::fs::write(self.folder.stopped_mark(), "");
        self.stopping.push(caller);
        for exec in self.execs.values() {
            exec.signal(libc::SIGKILL);
        }
        let mut never_started = Vec::new();
        for container in self.containers.values_mut() {
            if container.is_alive() {
                container.kill_all(&self.record.cgroups);
            } else if container.is_startable() {
                container.status.start_failed("the sandbox was stopped", jiff::Timestamp::now());
                container.save(&self.folder);
                never_started.push(container.status.clone());
            }
        }
        for status in never_started {
            self.push(Push::Container(status));
        }
    }
}
