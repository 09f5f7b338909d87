//! A container runtime in memory, for tests: containers run until a test or the kubelet ends them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use knarr_apimachinery::clock::Clock;
use tokio::sync::broadcast;

use crate::labels;
use crate::runtime::*;

pub struct FakeRuntime {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    events: broadcast::Sender<RuntimeEvent>,
}

#[derive(Default)]
pub struct State {
    made: u32,
    pub sandboxes: Vec<PodSandboxStatus>,
    pub containers: Vec<(ContainerStatus, ContainerConfig)>,
    pub images: BTreeSet<String>,
    /// The calls, in order: `sandbox web`, `start main#0`, `stop main#0 30`, `pull x`.
    pub calls: Vec<String>,
    /// Containers that end at once, with this exit code.
    pub exits: BTreeMap<String, i32>,
    /// Commands that fail when run in a container: exit code and output.
    pub failing_commands: BTreeMap<String, (i32, String)>,
    /// Containers that use up their grace period when they are stopped.
    pub stubborn: BTreeSet<String>,
    /// Containers that exit with code 0 when they are asked to stop.
    pub obliging: BTreeSet<String>,
    pub sandbox_fault: Option<String>,
    /// The limits that running containers were given, by id, in order.
    pub limits: Vec<(String, Resources)>,
    pub limit_fault: Option<String>,
    pub status_fault: Option<String>,
    /// Whether the limits in force are not reported.
    pub hides_limits: bool,
    /// Bytes that each container uses.
    pub memory_usage: u64,
    /// Operations that panic, each once: `sandbox`, `create`, `stop`, `exec`, `list`.
    pub panics: BTreeSet<String>,
    pub features: RuntimeFeatures,
}

impl State {
    fn may_panic(&mut self, operation: &str) {
        assert!(!self.panics.remove(operation), "a fault in the code");
    }
}

impl FakeRuntime {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let (events, _) = broadcast::channel(64);
        Arc::new(Self { clock, state: Mutex::default(), events })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// Ends a running container of that name.
    pub fn exit(&self, name: &str, code: i32) {
        let id = {
            let state = self.lock();
            let running =
                state.containers.iter().find(|(c, _)| c.name == name && c.state == ContainerState::Running);
            running.map(|(c, _)| c.id.clone()).expect("a running container")
        };
        self.end(&id, code);
    }

    fn end(&self, id: &str, code: i32) {
        let now = self.clock.now();
        let mut state = self.lock();
        let Some((status, _)) = state.containers.iter_mut().find(|(c, _)| c.id == id) else { return };
        if status.state == ContainerState::Exited {
            return;
        }
        status.state = ContainerState::Exited;
        status.exit_code = Some(code);
        status.finished_at = Some(now);
        status.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        let event = event(status, RuntimeEventKind::ContainerExited);
        drop(state);
        let _ = self.events.send(event);
    }
}

fn event(status: &ContainerStatus, kind: RuntimeEventKind) -> RuntimeEvent {
    RuntimeEvent {
        pod_uid: status.labels.get(labels::POD_UID).cloned().unwrap_or_default(),
        sandbox_id: status.sandbox_id.clone(),
        container_id: status.id.clone(),
        kind,
    }
}

fn unused<T>(what: &str) -> Result<T> {
    Err(RuntimeError::Failed(format!("{what}: not in this test")))
}

#[async_trait]
impl ContainerRuntime for FakeRuntime {
    fn version(&self) -> RuntimeVersion {
        RuntimeVersion { name: "fake".into(), version: "1".into() }
    }

    fn metrics(&self) -> String {
        String::new()
    }

    async fn readiness(&self) -> Readiness {
        Readiness { error: self.lock().status_fault.clone(), ..Readiness::default() }
    }

    async fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String> {
        let mut state = self.lock();
        state.may_panic("sandbox");
        if let Some(fault) = &state.sandbox_fault {
            return Err(RuntimeError::Failed(fault.clone()));
        }
        state.made += 1;
        let id = format!("sandbox-{}", state.made);
        state.calls.push(format!("sandbox {}", config.name));
        let status = PodSandboxStatus {
            id: id.clone(),
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            uid: config.uid.clone(),
            attempt: config.attempt,
            state: SandboxState::Ready,
            created_at: self.clock.now(),
            ips: vec![[10, 0, 0, state.made as u8].into()],
            labels: config.labels.clone(),
            annotations: BTreeMap::new(),
            host_network: config.host_network,
            runtime_handler: config.runtime_handler.clone(),
        };
        state.sandboxes.insert(0, status);
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let running: Vec<String> = {
            let mut state = self.lock();
            for sandbox in state.sandboxes.iter_mut().filter(|s| s.id == id) {
                sandbox.state = SandboxState::NotReady;
                sandbox.ips.clear();
            }
            state.containers.iter().filter(|(c, _)| c.sandbox_id == id).map(|(c, _)| c.id.clone()).collect()
        };
        running.iter().for_each(|id| self.end(id, 137));
        Ok(())
    }

    fn features(&self) -> RuntimeFeatures {
        self.lock().features.clone()
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        self.stop_pod_sandbox(id).await?;
        let mut state = self.lock();
        state.sandboxes.retain(|s| s.id != id);
        state.containers.retain(|(c, _)| c.sandbox_id != id);
        Ok(())
    }

    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandboxStatus>> {
        let mut state = self.lock();
        state.may_panic("list");
        Ok(state.sandboxes.clone())
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        _: &PodSandboxConfig,
    ) -> Result<String> {
        let mut state = self.lock();
        state.may_panic("create");
        state.made += 1;
        let id = format!("{}-{}", config.name, state.made);
        let status = ContainerStatus {
            id: id.clone(),
            sandbox_id: sandbox_id.to_owned(),
            name: config.name.clone(),
            attempt: config.attempt,
            state: ContainerState::Created,
            created_at: self.clock.now(),
            started_at: None,
            finished_at: None,
            exit_code: None,
            signal: None,
            reason: String::new(),
            message: String::new(),
            image: config.image.clone(),
            image_id: config.image.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            log_path: config.log_path.clone(),
            user: None,
        };
        state.containers.insert(0, (status, config.clone()));
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let now = self.clock.now();
        let (event, exit) = {
            let mut state = self.lock();
            let exits = state.exits.clone();
            let Some((status, _)) = state.containers.iter_mut().find(|(c, _)| c.id == id) else {
                return Err(RuntimeError::NotFound(id.to_owned()));
            };
            status.state = ContainerState::Running;
            status.started_at = Some(now);
            let call = format!("start {}#{}", status.name, status.attempt);
            let found = (event(status, RuntimeEventKind::ContainerStarted), exits.get(&status.name).copied());
            state.calls.push(call);
            found
        };
        let _ = self.events.send(event);
        if let Some(code) = exit {
            self.end(id, code);
        }
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace_seconds: u64) -> Result<()> {
        let (stubborn, obliging) = {
            let mut state = self.lock();
            state.may_panic("stop");
            let Some((status, _)) = state.containers.iter().find(|(c, _)| c.id == id) else { return Ok(()) };
            if status.state != ContainerState::Running {
                return Ok(());
            }
            let (call, name) =
                (format!("stop {}#{} {grace_seconds}", status.name, status.attempt), status.name.clone());
            state.calls.push(call);
            (state.stubborn.contains(&name), state.obliging.contains(&name))
        };
        if stubborn {
            self.clock.sleep(std::time::Duration::from_secs(grace_seconds)).await;
        }
        self.end(
            id,
            if stubborn {
                137
            } else if obliging {
                0
            } else {
                143
            },
        );
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.end(id, 137);
        self.lock().containers.retain(|(c, _)| c.id != id);
        Ok(())
    }

    async fn list_containers(&self) -> Result<Vec<ContainerStatus>> {
        Ok(self.lock().containers.iter().map(|(c, _)| c.clone()).collect())
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let found = self.lock().containers.iter().find(|(c, _)| c.id == id).map(|(c, _)| c.clone());
        found.ok_or_else(|| RuntimeError::NotFound(id.to_owned()))
    }

    async fn pod_status(&self, uid: &str) -> Result<PodRuntimeStatus> {
        let state = self.lock();
        let of = |c: &ContainerStatus| c.labels.get(labels::POD_UID).is_some_and(|u| u == uid);
        Ok(PodRuntimeStatus {
            sandboxes: state.sandboxes.iter().filter(|s| s.uid == uid).cloned().collect(),
            containers: state.containers.iter().filter(|(c, _)| of(c)).map(|(c, _)| c.clone()).collect(),
            replaced: BTreeSet::new(),
        })
    }

    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()> {
        let mut state = self.lock();
        if let Some(fault) = &state.limit_fault {
            return Err(RuntimeError::Failed(fault.clone()));
        }
        state.limits.push((id.to_owned(), resources.clone()));
        if let Some((_, config)) = state.containers.iter_mut().find(|(c, _)| c.id == id) {
            config.resources.memory_limit = resources.memory_limit.or(config.resources.memory_limit);
        }
        Ok(())
    }

    async fn container_limits(&self, id: &str) -> Result<Resources> {
        let state = self.lock();
        let found = state.containers.iter().find(|(c, _)| c.id == id);
        let (_, config) = found.ok_or_else(|| RuntimeError::NotFound(id.to_owned()))?;
        let memory_limit = (!state.hides_limits).then_some(config.resources.memory_limit.unwrap_or(-1));
        Ok(Resources { memory_limit, ..Resources::default() })
    }

    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn exec_sync(&self, id: &str, command: &[String], _: u64) -> Result<ExecOutput> {
        let mut state = self.lock();
        state.may_panic("exec");
        let text = command.join(" ");
        let name = id.split('-').next().unwrap_or("").to_owned();
        state.calls.push(format!("exec {name}: {text}"));
        let (exit_code, output) = state.failing_commands.get(&text).cloned().unwrap_or_default();
        Ok(ExecOutput { exit_code, stdout: output.into_bytes(), stderr: Vec::new() })
    }

    async fn exec(&self, _: &str, _: &ExecRequest) -> Result<Session> {
        unused("exec")
    }

    async fn attach(&self, _: &str, _: &AttachRequest) -> Result<Session> {
        unused("attach")
    }

    async fn port_forward(&self, _: &str, _: u16) -> Result<Box<dyn Connection>> {
        unused("port-forward")
    }

    async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        Ok(ContainerStats {
            container_id: id.to_owned(),
            sandbox_id: String::new(),
            name: String::new(),
            at: self.clock.now(),
            usage: Stats { memory_usage_bytes: self.lock().memory_usage, ..Stats::default() },
            rootfs: None,
        })
    }

    async fn list_container_stats(&self, _: Disk) -> Result<Vec<ContainerStats>> {
        Ok(Vec::new())
    }

    async fn list_sandbox_stats(&self) -> Result<Vec<SandboxStats>> {
        Ok(Vec::new())
    }

    async fn usage_details(&self) -> Result<Vec<UsageDetails>> {
        Ok(Vec::new())
    }

    async fn image_status(&self, name: &str) -> Result<Option<Image>> {
        let here = self.lock().images.contains(name);
        Ok(here.then(|| Image { id: name.to_owned(), ..Image::default() }))
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }

    async fn pull_image(&self, name: &str, _: &Keyring) -> Result<PulledImage> {
        let mut state = self.lock();
        state.calls.push(format!("pull {name}"));
        if name.starts_with("missing") {
            return Err(RuntimeError::NotFound(format!("{name}: not found")));
        }
        state.images.insert(name.to_owned());
        let image = Image { id: name.to_owned(), size: 123, ..Image::default() };
        Ok(PulledImage { image, credential: None })
    }

    async fn remove_image(&self, name: &str) -> Result<()> {
        self.lock().images.remove(name);
        Ok(())
    }

    async fn image_fs_info(&self) -> Result<FsInfo> {
        unused("image file system")
    }

    fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.events.subscribe()
    }
}
