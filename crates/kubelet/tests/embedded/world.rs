//! A test node: fake API server, real runtime, real volumes, images made from the host's busybox.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{
    ConfigMap, ContainerStatus, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
    ServiceAccount,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use knarr_api::kind::Kind;
use knarr_client::clock::SystemClock;
use knarr_client::events::EventRecorder;
use knarr_client::{Informers, Supervisor};
use knarr_kubelet::config::Config;
use knarr_kubelet::csi::Drivers;
use knarr_kubelet::embedded::{Embedded, OciHandler};
use knarr_kubelet::host_security::HostSecurity;
use knarr_kubelet::kubelet::{Dependencies, Kubelet};
use knarr_kubelet::pod_network::{NetworkError, PodNetwork, PodRef, PortMapping};
use knarr_kubelet::volumes::{Csi, ObjectSource, Options, VolumeManager};
use knarr_runtime::containers::{Cgroups, PurgeCgroups, Runtime, RuntimeOptions, purge};
use knarr_runtime::images::{ImageBuild, ImageStore, PullOptions, find_busybox};
use knarr_testing::FakeApi;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network that allocates addresses and connects nothing.
struct NoNetwork;

#[async_trait]
impl PodNetwork for NoNetwork {
    async fn setup(
        &self,
        _: &PodRef,
        _: &str,
        netns: &Path,
        _: &[PortMapping],
    ) -> Result<Vec<IpAddr>, NetworkError> {
        fs::metadata(netns).map_err(|e| NetworkError(e.to_string()))?;
        Ok(vec![[10, 99, 0, 2].into()])
    }

    async fn teardown(&self, _: &str) -> Result<(), NetworkError> {
        Ok(())
    }

    async fn addresses(&self, _: &str) -> Result<Vec<IpAddr>, NetworkError> {
        Ok(vec![[10, 99, 0, 2].into()])
    }

    async fn retain(&self, _: &BTreeSet<String>) -> Result<(), NetworkError> {
        Ok(())
    }
}

pub struct World {
    pub folder: PathBuf,
    pub options: RuntimeOptions,
    pub api: Arc<FakeApi>,
    pub embedded: Embedded,
    handlers: Vec<OciHandler>,
    pub stop: CancellationToken,
    running: Option<tokio::task::JoinHandle<Result<(), String>>>,
}

impl World {
    pub async fn new() -> Self {
        Self::with_handlers(Vec::new()).await
    }

    /// Creates a world with handlers for RuntimeClasses beside the default one.
    pub async fn with_handlers(handlers: Vec<OciHandler>) -> Self {
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::geteuid() }, 0, "these tests need root");
        let name =
            format!("knarr-kubelet-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder).unwrap();
        let options = RuntimeOptions {
            state_dir: folder.join("state"),
            shim: shim(),
            shim_args: vec![],
            cgroup_root: format!("/{name}/pods"),
            shim_cgroup: format!("/{name}/shims"),
        };
        let resources = [
            Pod::RESOURCE,
            Node::RESOURCE,
            Service::RESOURCE,
            ConfigMap::RESOURCE,
            Secret::RESOURCE,
            Event::RESOURCE,
            ServiceAccount::RESOURCE,
            PersistentVolume::RESOURCE,
            PersistentVolumeClaim::RESOURCE,
            RuntimeClass::RESOURCE,
        ];
        let api = FakeApi::new(Arc::new(SystemClock), &resources);
        let node = json!({
            "metadata": {"name": "n1"},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        });
        api.add(&Node::decode(node.to_string().as_bytes()).unwrap());
        let embedded = open(&folder, &options, &handlers).await;
        let busybox = find_busybox().expect("these tests need busybox-static");
        let build = ImageBuild::new("box:1".parse().unwrap()).busybox(&busybox).unwrap();
        embedded.images().build(build.env("FROM_IMAGE", "yes").cmd(["sleep", "1000"])).await.unwrap();
        let mut world =
            Self { folder, options, api, embedded, handlers, stop: CancellationToken::new(), running: None };
        world.start();
        world
    }

    fn start(&mut self) {
        let (client, stop) = (self.api.client(), CancellationToken::new());
        self.stop = stop.clone();
        let mut config = Config::new("n1", [192, 0, 2, 1].into(), self.folder.join("kubelet"));
        config.cluster_dns = vec![[10, 96, 0, 10].into()];
        config.cgroup_root = self.options.cgroup_root.clone();
        let objects =
            ObjectSource::new(client.clone(), Supervisor::new(Arc::clone(client.clock())), stop.clone());
        let options = Options { dirs: config.dirs(), allocatable: Default::default() };
        let informers = Arc::new(Informers::new(client.clone(), stop.clone()));
        let drivers = Arc::new(Drivers::new(Arc::new(SystemClock)));
        let csi = Csi::new(&informers, "n1", drivers, config.dirs(), objects.clone(), stop.clone());
        let with = Dependencies {
            client: client.clone(),
            informers,
            runtime: Arc::new(self.embedded.clone()),
            volumes: VolumeManager::new(client.clone(), objects.clone(), csi, options, None, stop.clone()),
            objects,
            recorder: EventRecorder::new(client, "kubelet", "n1", stop.clone()),
            cgroups: Some(self.embedded.cgroups()),
            memory_capacity: 8 << 30,
            host_security: HostSecurity::default(),
        };
        self.running = Some(tokio::spawn(Kubelet::new(config, with, stop).run()));
    }

    /// Starts a new server with the state of the old one.
    pub async fn restart(&mut self) {
        self.stop.cancel();
        self.running.take().unwrap().await.unwrap().unwrap();
        self.embedded = open(&self.folder, &self.options, &self.handlers).await;
        self.start();
    }

    pub fn add<K: Kind>(&self, object: Value) {
        self.api.add(&K::decode(object.to_string().as_bytes()).unwrap());
    }

    pub fn add_pod(&self, name: &str, spec: Value) {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"), "labels": {"app": "x"}},
            "spec": spec,
        });
        pod["spec"]["nodeName"] = json!("n1");
        self.add::<Pod>(pod);
    }

    pub fn pod(&self, name: &str) -> Option<Pod> {
        self.api.get("default", name)
    }

    pub fn phase(&self, name: &str) -> String {
        self.pod(name).and_then(|p| p.status).and_then(|s| s.phase).unwrap_or_default()
    }

    pub fn container(&self, pod: &str, name: &str) -> ContainerStatus {
        let status = self.pod(pod).and_then(|p| p.status).unwrap_or_default();
        let lists = [status.container_statuses, status.init_container_statuses];
        lists.into_iter().flatten().flatten().find(|s| s.name == name).unwrap_or_default()
    }

    pub async fn until(&self, what: &str, pod: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !holds(self) {
            if Instant::now() > deadline {
                let events: Vec<_> =
                    self.api.all::<Event>().into_iter().map(|e| (e.reason, e.message)).collect();
                panic!("{what} did not come\n{:#?}\n{events:#?}", self.pod(pod).and_then(|p| p.status));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns a container's log without times and tags.
    pub fn log(&self, pod: &str, container: &str, number: u32) -> String {
        let path =
            self.folder.join(format!("kubelet/logs/default_{pod}_uid-of-{pod}/{container}/{number}.log"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|l| l.splitn(4, ' ').nth(3).unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }
}

async fn open(folder: &Path, options: &RuntimeOptions, handlers: &[OciHandler]) -> Embedded {
    let runtime = Runtime::open(options.clone()).await.unwrap();
    let images = ImageStore::open(folder.join("images")).await.unwrap();
    let sandboxes = folder.join("sandboxes");
    let (network, supervisor) = (Arc::new(NoNetwork), Supervisor::new(Arc::new(SystemClock)));
    let (pull, handlers) = (PullOptions::default(), handlers.to_vec());
    Embedded::open(runtime, images, network, pull, handlers, sandboxes, supervisor).await.unwrap()
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
        let (root, shims) = (&self.options.cgroup_root, &self.options.shim_cgroup);
        let result = purge(&self.options.state_dir, PurgeCgroups { root, shims, pods: &[] });
        let left = Cgroups::detect(root.trim_end_matches("/pods")).and_then(|cgroups| cgroups.remove(""));
        for path in knarr_kubelet::volumes::mounts::mounted_below(&self.folder).unwrap_or_default() {
            let _ = knarr_kubelet::volumes::mounts::unmount(&path);
        }
        if !std::thread::panicking() {
            result.unwrap();
            left.unwrap();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the path of the example program that cargo builds along with the tests.
fn shim() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples/pod_shim");
    assert!(path.exists(), "{} is missing: run all of `cargo test -p knarr-kubelet`", path.display());
    path
}
