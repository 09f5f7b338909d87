//! The CRI client with a runtime in memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use knarr_client::clock::SystemClock;
use knarr_grpc::{Answer, CallError, Code};
use knarr_runtime::images::Credential;
use prost::Message;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::*;
use crate::labels;

/// The state of the runtime, and the calls that it has received.
#[derive(Default)]
struct Fake {
    driver: Option<cri::CgroupDriver>,
    conditions: Vec<cri::RuntimeCondition>,
    /// The state of its only container.
    state: i32,
    created: Vec<cri::CreateContainerRequest>,
    /// The passwords of the pull requests.
    passwords: Vec<String>,
    statuses: u32,
    limits: Option<cri::LinuxContainerResources>,
}

type Shared = Arc<Mutex<Fake>>;

fn refused<A>(code: Code, message: &str) -> Result<A, CallError> {
    Err(CallError::Status { code, message: message.to_owned() })
}

fn pod_labels() -> std::collections::BTreeMap<String, String> {
    [(labels::POD_UID.to_owned(), "u".to_owned())].into()
}

fn sandbox() -> cri::PodSandbox {
    let metadata =
        cri::PodSandboxMetadata { name: "p".into(), uid: "u".into(), namespace: "n".into(), attempt: 0 };
    cri::PodSandbox { id: "s1".into(), metadata: Some(metadata), created_at: 1, ..Default::default() }
}

fn image() -> cri::Image {
    cri::Image { id: "sha256:1".into(), size: 5, ..Default::default() }
}

fn answer(fake: &mut Fake, path: &str, message: Bytes) -> Answer {
    let metadata = Some(cri::ContainerMetadata { name: "c".into(), attempt: 0 });
    match path.rsplit('/').next().unwrap_or("") {
        "Version" => Answer::new(Ok(cri::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "fake".into(),
            runtime_version: "v1.2.3".into(),
            runtime_api_version: "v1".into(),
        })),
        "RuntimeConfig" => Answer::new(match fake.driver {
            None => refused(Code::UNIMPLEMENTED, "unknown method"),
            Some(driver) => Ok(cri::RuntimeConfigResponse {
                linux: Some(cri::LinuxRuntimeConfiguration { cgroup_driver: driver.into() }),
            }),
        }),
        "Status" => {
            let status = cri::RuntimeStatus { conditions: fake.conditions.clone() };
            Answer::new(Ok(cri::StatusResponse { status: Some(status), ..Default::default() }))
        }
        "ListImages" => Answer::new(Ok(cri::ListImagesResponse { images: vec![image()] })),
        "ImageStatus" => Answer::new(Ok(cri::ImageStatusResponse { image: Some(image()) })),
        "PullImage" => {
            let asked = cri::PullImageRequest::decode(message).unwrap();
            let password = asked.auth.map(|auth| auth.password).unwrap_or_default();
            fake.passwords.push(password.clone());
            Answer::new(match password.as_str() {
                "right" => Ok(cri::PullImageResponse { image_ref: "sha256:1".into() }),
                _ => refused(Code::UNKNOWN, "denied"),
            })
        }
        "ListPodSandbox" => Answer::new(Ok(cri::ListPodSandboxResponse { items: vec![sandbox()] })),
        "ListContainers" => {
            let container = cri::Container {
                id: "c1".into(),
                pod_sandbox_id: "s1".into(),
                metadata,
                state: fake.state,
                created_at: 1,
                labels: pod_labels(),
                ..Default::default()
            };
            Answer::new(Ok(cri::ListContainersResponse { containers: vec![container] }))
        }
        "ContainerStatus" => {
            fake.statuses += 1;
            let status = cri::ContainerStatus {
                id: "c1".into(),
                metadata,
                state: fake.state,
                created_at: 1,
                log_path: "/logs/0.log".into(),
                resources: fake.limits.clone().map(|linux| cri::ContainerResources { linux: Some(linux) }),
                ..Default::default()
            };
            Answer::new(Ok(cri::ContainerStatusResponse { status: Some(status) }))
        }
        "CreateContainer" => {
            fake.created.push(cri::CreateContainerRequest::decode(message).unwrap());
            Answer::new(Ok(cri::CreateContainerResponse { container_id: "c1".into() }))
        }
        "RemoveContainer" | "StopContainer" | "StopPodSandbox" | "RemovePodSandbox" => {
            Answer::new(refused::<cri::Done>(Code::NOT_FOUND, "no such thing"))
        }
        "ExecSync" => Answer::new(refused::<cri::Done>(Code::DEADLINE_EXCEEDED, "timeout 1s exceeded")),
        other => Answer::new(refused::<cri::Done>(Code::UNIMPLEMENTED, other)),
    }
}

struct Lab {
    fake: Shared,
    socket: PathBuf,
    serving: JoinHandle<()>,
    stop: CancellationToken,
}

impl Lab {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("knarr-cri-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let fake = Shared::default();
        let serving = Self::serve(&fake, &socket);
        Self { fake, socket, serving, stop: CancellationToken::new() }
    }

    fn serve(fake: &Shared, socket: &std::path::Path) -> JoinHandle<()> {
        let fake = Arc::clone(fake);
        tokio::spawn(knarr_grpc::serve(UnixListener::bind(socket).unwrap(), move |path, message| {
            let answer = answer(&mut lock(&fake), &path, message);
            async move { answer }
        }))
    }

    async fn open(&self) -> Result<Cri, String> {
        let options = Options {
            runtime_endpoint: format!("unix://{}", self.socket.display()),
            image_endpoint: None,
            cgroups: Cgroups::detect("/knarr-cri-test").unwrap(),
            clock: Arc::new(SystemClock),
            supervisor: knarr_client::Supervisor::new(Arc::new(SystemClock)),
        };
        Cri::open(options, self.stop.clone()).await
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
        self.serving.abort();
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[tokio::test]
async fn what_the_node_shows_of_it() {
    let lab = Lab::new();
    let runtime = lab.open().await.unwrap();
    assert_eq!(runtime.version(), RuntimeVersion { name: "fake".into(), version: "1.2.3".into() });
    let condition = |kind: &str, status| cri::RuntimeCondition {
        kind: kind.into(),
        status,
        reason: "Why".into(),
        message: "so".into(),
    };
    lock(&lab.fake).conditions = vec![condition("RuntimeReady", false), condition("NetworkReady", true)];
    let expected = ["container runtime not ready: RuntimeReady=false reason:Why message:so"];
    assert_eq!(
        runtime.readiness().await,
        Readiness { not_ready: expected.map(str::to_owned).into(), error: None }
    );
    lab.serving.abort();
    let silent = runtime.readiness().await;
    assert_eq!(silent.not_ready, expected, "a short silence changes nothing");
    assert!(silent.error.is_some());
}

#[tokio::test]
async fn a_runtime_that_leaves_cgroups_to_systemd_is_refused() {
    let lab = Lab::new();
    lock(&lab.fake).driver = Some(cri::CgroupDriver::Systemd);
    let error = lab.open().await.err().unwrap();
    assert!(error.contains("cgroup driver systemd"), "{error}");
    lock(&lab.fake).driver = Some(cri::CgroupDriver::Cgroupfs);
    assert!(lab.open().await.is_ok());
}

#[tokio::test]
async fn a_status_without_its_conditions_is_an_error() {
    let lab = Lab::new();
    let runtime = lab.open().await.unwrap();
    let error = runtime.readiness().await.error.unwrap_or_default();
    assert_eq!(error, "RuntimeReady or NetworkReady condition are not set");
}

#[tokio::test]
async fn limits_in_force_are_those_that_it_reports() {
    let lab = Lab::new();
    let runtime = lab.open().await.unwrap();
    for (quota, memory, expected) in
        [(0, 0, (Some(-1), Some(-1))), (20_000, 64 << 20, (Some(20_000), Some(64 << 20)))]
    {
        lock(&lab.fake).limits = Some(cri::LinuxContainerResources {
            cpu_quota: quota,
            memory_limit_in_bytes: memory,
            ..Default::default()
        });
        let limits = runtime.container_limits("c1").await.unwrap();
        assert_eq!((limits.cpu_quota, limits.memory_limit), expected);
    }
    lock(&lab.fake).limits = None;
    assert_eq!(runtime.container_limits("c1").await.unwrap(), Resources::default());
}

#[tokio::test]
async fn credentials_are_tried_one_after_the_other() {
    let lab = Lab::new();
    let runtime = lab.open().await.unwrap();
    let mut keyring = Keyring::new();
    keyring.add("r.example/a", Credential::basic("u", "wrong"));
    let error = runtime.pull_image("r.example/a/b:1", &keyring).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = Unknown desc = denied");
    keyring.add("r.example", Credential::basic("u", "right"));
    assert_eq!(runtime.pull_image("r.example/a/b:1", &keyring).await.unwrap().image.id, "sha256:1");
    assert_eq!(lock(&lab.fake).passwords, ["wrong", "wrong", "right"]);
    assert!(matches!(
        runtime.pull_image("Not/A/Name:x", &keyring).await,
        Err(RuntimeError::InvalidImageName(_))
    ));
}

#[tokio::test]
async fn containers_are_made_and_known_again() {
    let lab = Lab::new();
    let runtime = lab.open().await.unwrap();
    let container = ContainerConfig {
        image: "sha256:1".into(),
        user: ContainerUser { gid: Some(7), ..ContainerUser::default() },
        ..ContainerConfig::default()
    };
    let config = PodSandboxConfig { cgroup_parent: "podu".into(), ..PodSandboxConfig::default() };
    assert_eq!(runtime.create_container("s1", &container, &config).await.unwrap(), "c1");
    let made = lock(&lab.fake).created.remove(0);
    let linux = made.config.unwrap().linux.unwrap();
    let user = linux.security_context.unwrap().run_as_user;
    assert_eq!(user, Some(cri::Int64Value { value: 0 }), "a group alone is root's");
    assert_eq!(made.sandbox_config.unwrap().linux.unwrap().cgroup_parent, "/knarr-cri-test/podu");

    for _ in 0..3 {
        let listed = runtime.list_containers().await.unwrap();
        assert_eq!(listed[0].log_path, PathBuf::from("/logs/0.log"));
    }
    assert_eq!(lock(&lab.fake).statuses, 1, "the log's path is read once");
    let pod = runtime.pod_status("u").await;
    assert!(pod.is_err(), "this runtime does not know PodSandboxStatus");
    assert_eq!(runtime.container_status("c1").await.unwrap().sandbox_id, "s1");
    assert!(runtime.container_status("c2").await.unwrap_err().is_not_found());
    runtime.remove_container("gone").await.unwrap();
    runtime.stop_container("gone", 1).await.unwrap();
    runtime.remove_pod_sandbox("gone").await.unwrap();
    let error = runtime.exec_sync("c1", &["sleep".into(), "9".into()], 1).await.unwrap_err();
    assert_eq!(error.to_string(), "command timed out: \"sleep 9\" timed out after 1s");
}

#[tokio::test]
async fn changes_are_told_also_after_the_runtime_was_away() {
    let lab = Lab::new();
    let runtime = lab.open().await.unwrap();
    let mut events = runtime.events();
    let limit = Duration::from_secs(20);
    let set = |state: cri::ContainerState| lock(&lab.fake).state = state.into();
    set(cri::ContainerState::Running);
    let event = tokio::time::timeout(limit, events.recv()).await.unwrap().unwrap();
    assert_eq!((event.pod_uid.as_str(), event.container_id.as_str()), ("u", "c1"));
    assert_eq!(event.kind, RuntimeEventKind::ContainerStarted);

    lab.serving.abort();
    std::fs::remove_file(&lab.socket).unwrap();
    set(cri::ContainerState::Exited);
    let again = Lab::serve(&lab.fake, &lab.socket);
    let event = tokio::time::timeout(limit, events.recv()).await.unwrap().unwrap();
    assert_eq!(event.kind, RuntimeEventKind::ContainerExited);
    again.abort();
}

#[test]
fn versions() {
    for (text, shown) in [
        ("1.6.20~ds1", "1.6.20"),
        ("v2.1.4", "2.1.4"),
        ("2.0.0-rc.1", "2.0.0-rc.1"),
        ("1.7.27+unknown", "1.7.27+unknown"),
        ("1.31", "1.31"),
    ] {
        assert_eq!(shown_version(text), shown);
    }
}
