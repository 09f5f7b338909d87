//! A small CSI driver with folders for volumes: it registers with the kubelet, as its usual sidecar would,
//! makes real bind mounts, and records each call.
//!
//! It has to run in the sandbox, so it is this test program itself, started with environment variables that
//! select it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use knarr_grpc::{Answer, CallError, Code};
use knarr_kubelet::csi::messages::{
    AccessType, CapacityRange, Empty, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
    NodeGetCapabilitiesResponse, NodeGetInfoResponse, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeServiceCapability, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, Rpc,
    Topology, VolumeUsage,
};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use tokio::net::UnixListener;

use crate::cluster::Cluster;
use crate::sandbox::wait_for;

pub const NAME: &str = "folders.csi.example.com";
/// The environment variables of the driver's process: the kubelet's folder and its own.
const KUBELET_DIR: &str = "KNARR_TEST_CSI_KUBELET";
const DATA_DIR: &str = "KNARR_TEST_CSI_DATA";

/// A driver that runs in a cluster's sandbox. Its volumes and their files stay when it ends.
pub struct Driver {
    process: Child,
    pub data: PathBuf,
}

impl Driver {
    pub fn start(cluster: &Cluster) -> Self {
        let (kubelet, data) = (cluster.data_dir().join("kubelet"), cluster.sandbox.path("csi"));
        fs::create_dir_all(&data).expect("folder");
        let own = std::env::current_exe().expect("this program");
        let mut command = cluster.sandbox.command(own);
        command.args(["--ignored", "--exact", "csi_driver::serves_until_it_is_killed"]);
        command.env(KUBELET_DIR, &kubelet).env(DATA_DIR, &data).stdout(Stdio::null());
        let process = command.spawn().expect("nsenter(1) of util-linux");
        Self { process, data }
    }

    /// Returns the calls so far, one per line: the method and the important arguments.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.data.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn count(&self, beginning: &str) -> usize {
        self.calls().iter().filter(|call| call.starts_with(beginning)).count()
    }

    pub fn until_called(&self, beginning: &str) -> String {
        wait_for(&format!("the call {beginning}"), std::time::Duration::from_secs(60), || {
            self.calls().into_iter().find(|call| call.starts_with(beginning))
        })
    }

    /// Ends the driver and removes its sockets, as the deletion of a driver's pod does.
    pub fn stop(&mut self, cluster: &Cluster) {
        let sockets = cluster.data_dir().join("kubelet/plugins_registry");
        for entry in fs::read_dir(sockets).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        self.end();
    }

    fn end(&mut self) {
        if matches!(self.process.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Some(driver) = crate::sandbox::only_child(self.process.id()) {
            let _ = kill(Pid::from_raw(driver as i32), Signal::SIGKILL);
        }
        let _ = self.process.wait();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Clone, PartialEq, Message)]
struct PluginInfo {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    endpoint: String,
    #[prost(string, repeated, tag = "4")]
    supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    plugin_registered: bool,
    #[prost(string, tag = "2")]
    error: String,
}

/// Messages of the identity service: name and version; for probes, nested: ready.
#[derive(Clone, PartialEq, Message)]
struct Identity {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

/// `{ service: { type } , volume_expansion: { type } }`, and the controller's `{ rpc: { type } }`.
#[derive(Clone, PartialEq, Message)]
struct Capability {
    #[prost(message, optional, tag = "1")]
    first: Option<Rpc>,
    #[prost(message, optional, tag = "2")]
    second: Option<Rpc>,
}

#[derive(Clone, PartialEq, Message)]
struct Capabilities {
    #[prost(message, repeated, tag = "1")]
    all: Vec<Capability>,
}

#[derive(Clone, PartialEq, Message)]
struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    capacity_range: Option<CapacityRange>,
}

#[derive(Clone, PartialEq, Message)]
struct Volume {
    #[prost(int64, tag = "1")]
    capacity_bytes: i64,
    #[prost(string, tag = "2")]
    volume_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    volume: Option<Volume>,
}

/// Requests that begin with a volume, and may have its wanted size.
#[derive(Clone, PartialEq, Message)]
struct VolumeRequest {
    #[prost(string, tag = "1")]
    volume_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ControllerExpandRequest {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(message, optional, tag = "2")]
    capacity_range: Option<CapacityRange>,
}

#[derive(Clone, PartialEq, Message)]
struct ControllerExpandResponse {
    #[prost(int64, tag = "1")]
    capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    node_expansion_required: bool,
}

struct Service {
    endpoint: PathBuf,
    data: PathBuf,
}

type Outcome<T> = Result<T, CallError>;

fn refused(error: impl std::fmt::Display) -> CallError {
    CallError::Status { code: Code::INTERNAL, message: error.to_string() }
}

fn parsed<M: Message + Default>(message: &[u8]) -> Outcome<M> {
    M::decode(message).map_err(refused)
}

impl Service {
    fn note(&self, call: String) {
        let file = fs::OpenOptions::new().create(true).append(true).open(self.data.join("calls"));
        file.and_then(|mut file| writeln!(file, "{call}")).expect("the list of calls");
    }

    fn folder(&self, volume: &str) -> PathBuf {
        self.data.join("volumes").join(volume)
    }

    fn answer(&self, path: &str, message: &[u8]) -> Answer {
        let capability = |kinds: &[i32]| {
            let one = |kind: &i32| Capability { first: Some(Rpc { kind: *kind }), second: None };
            Capabilities { all: kinds.iter().map(one).collect() }
        };
        match path.rsplit('/').next().unwrap_or("") {
            "GetInfo" => Answer::new(Ok(PluginInfo {
                kind: "CSIPlugin".into(),
                name: NAME.into(),
                endpoint: self.endpoint.display().to_string(),
                supported_versions: vec!["1.0.0".into()],
            })),
            "NotifyRegistrationStatus" => Answer::new(parsed(message).map(|status: RegistrationStatus| {
                self.note(format!("Registered {} {}", status.plugin_registered, status.error));
                Empty {}
            })),
            "GetPluginInfo" => Answer::new(Ok(Identity { name: NAME.into(), version: "1".into() })),
            "GetPluginCapabilities" => {
                let mut all = capability(&[1, 2]);
                all.all.push(Capability { first: None, second: Some(Rpc { kind: 1 }) });
                Answer::new(Ok(all))
            }
            "Probe" => Answer::new(Ok(Empty {})),
            "ControllerGetCapabilities" => Answer::new(Ok(capability(&[1, 2, 9]))),
            "CreateVolume" => Answer::new(parsed(message).and_then(|r| self.create(r))),
            "DeleteVolume" => Answer::new(parsed(message).and_then(|r: VolumeRequest| {
                self.note(format!("DeleteVolume {}", r.volume_id));
                match fs::remove_dir_all(self.folder(&r.volume_id)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(refused(error)),
                    _ => Ok(Empty {}),
                }
            })),
            call @ ("ControllerPublishVolume" | "ControllerUnpublishVolume") => {
                Answer::new(parsed(message).map(|r: VolumeRequest| {
                    self.note(format!("{call} {}", r.volume_id));
                    Empty {}
                }))
            }
            "ControllerExpandVolume" => Answer::new(parsed(message).map(|r: ControllerExpandRequest| {
                let capacity_bytes = r.capacity_range.map_or(0, |c| c.required_bytes);
                self.note(format!("ControllerExpandVolume {} {capacity_bytes}", r.volume_id));
                ControllerExpandResponse { capacity_bytes, node_expansion_required: true }
            })),
            call if path.starts_with("/csi.v1.Node/") => self.node(call, message),
            _ => Answer::new::<Empty>(Err(CallError::Status {
                code: Code::UNIMPLEMENTED,
                message: format!("unknown method {path}"),
            })),
        }
    }

    fn node(&self, call: &str, message: &[u8]) -> Answer {
        match call {
            "NodeGetInfo" => Answer::new(Ok(NodeGetInfoResponse {
                node_id: "the-node".into(),
                max_volumes_per_node: 7,
                accessible_topology: Some(Topology {
                    segments: [(format!("topology.{NAME}/node"), "here".to_owned())].into(),
                }),
            })),
            "NodeGetCapabilities" => {
                let one = |kind| NodeServiceCapability { rpc: Some(Rpc { kind }) };
                Answer::new(Ok(NodeGetCapabilitiesResponse { capabilities: vec![one(1), one(2), one(3)] }))
            }
            "NodeStageVolume" => Answer::new(parsed(message).and_then(|r| self.stage(&r))),
            "NodeUnstageVolume" => Answer::new(parsed(message).and_then(|r: NodeUnstageVolumeRequest| {
                self.note(format!("NodeUnstageVolume {}", r.volume_id));
                take_away(Path::new(&r.staging_target_path), false)
            })),
            "NodePublishVolume" => Answer::new(parsed(message).and_then(|r| self.publish(&r))),
            "NodeUnpublishVolume" => {
                Answer::new(parsed(message).and_then(|r: NodeUnpublishVolumeRequest| {
                    self.note(format!("NodeUnpublishVolume {}", r.volume_id));
                    take_away(Path::new(&r.target_path), true)
                }))
            }
            "NodeGetVolumeStats" => Answer::new(Ok(NodeGetVolumeStatsResponse {
                usage: vec![VolumeUsage { available: 60, total: 100, used: 40, unit: 1 }],
            })),
            "NodeExpandVolume" => Answer::new(parsed(message).map(|r: NodeExpandVolumeRequest| {
                let capacity_bytes = r.capacity_range.map_or(0, |c| c.required_bytes);
                self.note(format!("NodeExpandVolume {} {capacity_bytes}", r.volume_id));
                NodeExpandVolumeResponse { capacity_bytes }
            })),
            _ => Answer::new::<Empty>(Err(CallError::Status {
                code: Code::UNIMPLEMENTED,
                message: format!("unknown method {call}"),
            })),
        }
    }

    fn create(&self, request: CreateVolumeRequest) -> Outcome<CreateVolumeResponse> {
        let capacity_bytes = request.capacity_range.map_or(0, |c| c.required_bytes);
        self.note(format!("CreateVolume {} {capacity_bytes}", request.name));
        fs::create_dir_all(self.folder(&request.name)).map_err(refused)?;
        Ok(CreateVolumeResponse { volume: Some(Volume { capacity_bytes, volume_id: request.name }) })
    }

    fn stage(&self, request: &NodeStageVolumeRequest) -> Outcome<Empty> {
        let secret = request.secrets.get("password").map_or("", String::as_str);
        let attached = request.publish_context.get("device").map_or("", String::as_str);
        self.note(format!("NodeStageVolume {} secret={secret} device={attached}", request.volume_id));
        let folder = self.folder(&request.volume_id);
        if !folder.is_dir() {
            return Err(CallError::Status { code: Code::NOT_FOUND, message: "no such volume".into() });
        }
        bind(&folder, Path::new(&request.staging_target_path), false)
    }

    fn publish(&self, request: &NodePublishVolumeRequest) -> Outcome<Empty> {
        let told = |key: &str| request.volume_context.get(&format!("csi.storage.k8s.io/{key}")).cloned();
        let tokens = match request.secrets.contains_key("csi.storage.k8s.io/serviceAccount.tokens") {
            true => "secret",
            false if told("serviceAccount.tokens").is_some() => "attribute",
            false => "none",
        };
        let mount = match request.volume_capability.as_ref().and_then(|c| c.access_type.as_ref()) {
            Some(AccessType::Mount(mount)) => mount.mount_flags.join(","),
            _ => "block".to_owned(),
        };
        self.note(format!(
            "NodePublishVolume {} pod={} ephemeral={} tokens={tokens} options={mount}",
            request.volume_id,
            told("pod.name").unwrap_or_default(),
            told("ephemeral").unwrap_or_default(),
        ));
        let folder = self.folder(&request.volume_id);
        if told("ephemeral").as_deref() == Some("true") {
            fs::create_dir_all(&folder).map_err(refused)?;
        }
        let staged = Path::new(&request.staging_target_path);
        let source = if request.staging_target_path.is_empty() { &folder } else { staged };
        bind(source, Path::new(&request.target_path), request.readonly)
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

fn bind(source: &Path, target: &Path, read_only: bool) -> Outcome<Empty> {
    fs::create_dir_all(target).map_err(refused)?;
    if is_mounted(target) {
        return Ok(Empty {});
    }
    let none = None::<&str>;
    mount(Some(source), target, none, MsFlags::MS_BIND, none).map_err(refused)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, target, none, flags, none).map_err(refused)?;
    }
    Ok(Empty {})
}

fn take_away(target: &Path, remove: bool) -> Outcome<Empty> {
    if is_mounted(target) {
        umount(target).map_err(refused)?;
    }
    if remove && target.exists() {
        fs::remove_dir(target).map_err(refused)?;
    }
    Ok(Empty {})
}

#[test]
#[ignore = "the driver itself, started by tests of CSI volumes"]
fn serves_until_it_is_killed() {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).expect("to be told where");
    let (kubelet, data) = (folder(KUBELET_DIR), folder(DATA_DIR));
    let (registry, own) = (kubelet.join("plugins_registry"), kubelet.join("plugins").join(NAME));
    for folder in [&registry, &own] {
        fs::create_dir_all(folder).expect("folder");
    }
    let (registration, endpoint) = (registry.join(format!("{NAME}-reg.sock")), own.join("csi.sock"));
    let serve = |socket: PathBuf| {
        let _ = fs::remove_file(&socket);
        let service = std::sync::Arc::new(Service { endpoint: endpoint.clone(), data: data.clone() });
        async move {
            let listener = UnixListener::bind(&socket).expect("a socket");
            let call = move |path: String, message: bytes::Bytes| {
                let service = std::sync::Arc::clone(&service);
                async move { service.answer(&path, &message) }
            };
            knarr_grpc::serve(listener, call).await;
        }
    };
    let (calls, registered) = (serve(endpoint.clone()), serve(registration));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { tokio::join!(calls, registered) });
}
