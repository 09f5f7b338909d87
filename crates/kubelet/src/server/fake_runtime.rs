//! A container runtime for tests that implements streams alone.

use std::sync::Mutex;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::runtime::{
    AttachRequest, Connection, ContainerConfig, ContainerRuntime, ContainerState, ContainerStats,
    ContainerStatus, Control, Disk, DiskUsage, ExecOutput, ExecRequest, FsInfo, Image, Keyring,
    PodRuntimeStatus, PodSandboxConfig, PodSandboxStatus, PulledImage, Readiness, Resources, Result,
    RuntimeError, RuntimeEvent, RuntimeFeatures, RuntimeVersion, SandboxStats, Session, Stats, UsageDetails,
};

/// The command `echo` copies its input, `exit N` ends with code N, `both` writes to both outputs, `forever` waits
/// to be killed; all others cannot be started.
pub struct FakeRuntime {
    pub controls: Mutex<Vec<Control>>,
    pub events: broadcast::Sender<RuntimeEvent>,
    pub running: Mutex<bool>,
    pub disk_asked: Mutex<Vec<Disk>>,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        let (events, _) = broadcast::channel(16);
        Self { controls: Mutex::default(), events, running: Mutex::new(true), disk_asked: Mutex::default() }
    }
}

fn unknown<T>() -> Result<T> {
    Err(RuntimeError::Failed("not in this runtime".into()))
}

impl FakeRuntime {
    fn session(&'static self, command: Vec<String>) -> Session {
        let (stdin, mut input) = tokio::io::duplex(64 << 10);
        let (stdout, mut output) = tokio::io::duplex(64 << 10);
        let (stderr, mut errors) = tokio::io::duplex(64 << 10);
        let (control, mut controls) = mpsc::channel(8);
        let (exited, exit) = oneshot::channel();
        let (kill, killed) = oneshot::channel();
        tokio::spawn(async move {
            let mut kill = Some(kill);
            while let Some(order) = controls.recv().await {
                self.controls.lock().unwrap().push(order);
                if let (Control::Signal(_), Some(kill)) = (order, kill.take()) {
                    let _ = kill.send(());
                }
            }
        });
        tokio::spawn(async move {
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let code = match command.as_slice() {
                ["echo"] => {
                    let mut buffer = vec![0; 4096];
                    while let Ok(count @ 1..) = input.read(&mut buffer).await {
                        output.write_all(&buffer[..count]).await.unwrap();
                    }
                    0
                }
                ["exit", code] => code.parse().unwrap(),
                ["both"] => {
                    output.write_all(b"to out").await.unwrap();
                    errors.write_all(b"to err").await.unwrap();
                    0
                }
                _ => {
                    let _ = killed.await;
                    137
                }
            };
            drop((output, errors));
            let _ = exited.send(Ok(code));
        });
        Session {
            stdin: Some(Box::new(stdin)),
            stdout: Some(Box::new(stdout)),
            stderr: Some(Box::new(stderr)),
            control,
            exit,
        }
    }
}

/// A leaked runtime: sessions outlive the borrow of a call.
pub struct Leaked(pub &'static FakeRuntime);

impl Leaked {
    pub fn new() -> Self {
        Self(Box::leak(Box::default()))
    }
}

#[async_trait]
impl ContainerRuntime for Leaked {
    fn version(&self) -> RuntimeVersion {
        RuntimeVersion { name: "knarr".into(), version: "0.1.0".into() }
    }

    fn features(&self) -> RuntimeFeatures {
        RuntimeFeatures::default()
    }

    fn metrics(&self) -> String {
        String::new()
    }

    async fn readiness(&self) -> Readiness {
        Readiness::default()
    }

    async fn exec(&self, _: &str, request: &ExecRequest) -> Result<Session> {
        if request.command == ["missing"] {
            return Err(RuntimeError::Exec {
                message: "exec: \"missing\": not found".into(),
                exit_code: 127,
            });
        }
        Ok(self.0.session(request.command.clone()))
    }

    async fn attach(&self, _: &str, _: &AttachRequest) -> Result<Session> {
        Ok(self.0.session(vec!["echo".into()]))
    }

    async fn port_forward(&self, _: &str, port: u16) -> Result<Box<dyn Connection>> {
        if port != 80 {
            return Err(RuntimeError::Failed("connection refused".into()));
        }
        let (near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(far);
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
            let _ = writer.shutdown().await;
        });
        Ok(Box::new(near))
    }

    fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.0.events.subscribe()
    }

    async fn container_status(&self, id: &str) -> Result<ContainerStatus> {
        let running = *self.0.running.lock().unwrap();
        Ok(ContainerStatus {
            id: id.to_owned(),
            sandbox_id: "s1".into(),
            name: "c".into(),
            attempt: 0,
            state: if running { ContainerState::Running } else { ContainerState::Exited },
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code: None,
            signal: None,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            labels: Default::default(),
            annotations: Default::default(),
            log_path: Default::default(),
            user: None,
        })
    }

    async fn list_container_stats(&self, disk: Disk) -> Result<Vec<ContainerStats>> {
        self.0.disk_asked.lock().unwrap().push(disk);
        let usage =
            Stats { cpu_usage_nanos: 1_500_000_000, memory_working_set_bytes: 4096, ..Stats::default() };
        Ok(vec![ContainerStats {
            container_id: "c1".into(),
            sandbox_id: "s1".into(),
            name: "c".into(),
            at: Timestamp::from_second(10).unwrap(),
            usage,
            rootfs: Some(DiskUsage { bytes: 7, inodes: 2 }),
        }])
    }

    async fn list_sandbox_stats(&self) -> Result<Vec<SandboxStats>> {
        let usage = Stats {
            cpu_usage_nanos: 2_000_000_000,
            memory_working_set_bytes: 8192,
            pids: 3,
            ..Stats::default()
        };
        let at = Timestamp::from_second(10).unwrap();
        Ok(vec![SandboxStats { sandbox_id: "s1".into(), pod_uid: "u1".into(), at, usage }])
    }

    async fn image_fs_info(&self) -> Result<FsInfo> {
        Ok(FsInfo { capacity_bytes: 100, available_bytes: 60, ..FsInfo::default() })
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        Ok(vec![Image { id: "sha256:1".into(), repo_tags: vec!["a:1".into()], size: 5, ..Image::default() }])
    }

    async fn run_pod_sandbox(&self, _: &PodSandboxConfig) -> Result<String> {
        unknown()
    }
    async fn stop_pod_sandbox(&self, _: &str) -> Result<()> {
        unknown()
    }
    async fn remove_pod_sandbox(&self, _: &str) -> Result<()> {
        unknown()
    }
    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandboxStatus>> {
        unknown()
    }
    async fn create_container(&self, _: &str, _: &ContainerConfig, _: &PodSandboxConfig) -> Result<String> {
        unknown()
    }
    async fn start_container(&self, _: &str) -> Result<()> {
        unknown()
    }
    async fn stop_container(&self, _: &str, _: u64) -> Result<()> {
        unknown()
    }
    async fn remove_container(&self, _: &str) -> Result<()> {
        unknown()
    }
    async fn list_containers(&self) -> Result<Vec<ContainerStatus>> {
        unknown()
    }
    async fn pod_status(&self, _: &str) -> Result<PodRuntimeStatus> {
        unknown()
    }
    async fn update_container_resources(&self, _: &str, _: &Resources) -> Result<()> {
        unknown()
    }
    async fn container_limits(&self, _: &str) -> Result<Resources> {
        unknown()
    }
    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        unknown()
    }
    async fn exec_sync(&self, _: &str, command: &[String], _: u64) -> Result<ExecOutput> {
        match command {
            [exit, code] if exit == "exit" => {
                Ok(ExecOutput { exit_code: code.parse().unwrap(), ..ExecOutput::default() })
            }
            _ => unknown(),
        }
    }
    async fn container_stats(&self, _: &str) -> Result<ContainerStats> {
        unknown()
    }
    async fn usage_details(&self) -> Result<Vec<UsageDetails>> {
        Ok(Vec::new())
    }
    async fn image_status(&self, _: &str) -> Result<Option<Image>> {
        unknown()
    }
    async fn pull_image(&self, _: &str, _: &Keyring) -> Result<PulledImage> {
        unknown()
    }
    async fn remove_image(&self, _: &str) -> Result<()> {
        unknown()
    }
}
