//! Volumes end to end: a fake API server, with real files and mounts in a private mount namespace.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use knarr_api::kind::Kind;
use knarr_client::Informers;
use knarr_client::clock::SystemClock;
use knarr_testing::FakeApi;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Csi, ObjectSource, Options, VolumeManager, mounts, subpath};
use crate::config::PodDirs;
use crate::csi::Drivers;
use crate::volume_manager::{MountedVolumes, VolumeError, Volumes};

struct Lab {
    root: PathBuf,
    api: Arc<FakeApi>,
    stop: CancellationToken,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
        for path in mounts::mounted_below(&self.root).unwrap_or_default() {
            let _ = mounts::unmount(&path);
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Lab {
    fn new() -> Self {
        let root = std::env::temp_dir().join(format!("knarr-volumes-{:016x}", fastrand::u64(..)));
        fs::create_dir_all(&root).unwrap();
        let resources = [
            ConfigMap::RESOURCE,
            Secret::RESOURCE,
            Pod::RESOURCE,
            ServiceAccount::RESOURCE,
            PersistentVolume::RESOURCE,
            PersistentVolumeClaim::RESOURCE,
        ];
        Self { root, api: FakeApi::new(Arc::new(SystemClock), &resources), stop: CancellationToken::new() }
    }

    fn dirs(&self) -> PodDirs {
        PodDirs::new(self.root.join("kubelet"))
    }

    fn manager(&self) -> Arc<VolumeManager> {
        let client = self.api.client();
        let objects = ObjectSource::new(
            client.clone(),
            knarr_client::Supervisor::new(Arc::clone(client.clock())),
            self.stop.clone(),
        );
        let options = Options { dirs: self.dirs(), allocatable: Default::default() };
        let informers = Informers::new(client.clone(), self.stop.clone());
        let drivers = Arc::new(Drivers::new(Arc::clone(client.clock())));
        let csi = Csi::new(&informers, "n", drivers, self.dirs(), Arc::clone(&objects), self.stop.clone());
        VolumeManager::new(client, objects, csi, options, None, self.stop.clone())
    }

    fn config_map(&self, name: &str, data: Value) {
        self.api
            .add::<ConfigMap>(&typed(json!({"metadata": {"name": name, "namespace": "shop"}, "data": data})));
    }
}

fn typed<K: Kind>(value: Value) -> K {
    K::decode(value.to_string().as_bytes()).unwrap()
}

/// A pod with one container that mounts all of its volumes.
fn pod(volumes: Value, context: Value) -> Pod {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|v| json!({"name": v["name"], "mountPath": format!("/{}", v["name"].as_str().unwrap())}))
        .collect();
    typed(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes,
            "securityContext": context, "serviceAccountName": "robot"}
    }))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..500 {
        if check() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn message(result: Result<MountedVolumes, VolumeError>) -> String {
    result.unwrap_err().message
}

#[tokio::test]
async fn a_config_map_is_written_swapped_and_removed() {
    let lab = Lab::new();
    let manager = lab.manager();
    let pod = pod(json!([{"name": "conf", "configMap": {"name": "web", "defaultMode": 416}}]), json!({}));
    let error = message(manager.mount(&pod).await);
    assert_eq!(error, "MountVolume.SetUp failed for volume \"conf\" : configmap \"web\" not found");

    lab.config_map("web", json!({"a": "1", "b": "2"}));
    let mut mounted = manager.mount(&pod).await;
    for _ in 0..100 {
        if mounted.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        mounted = manager.mount(&pod).await;
    }
    let volume = mounted.unwrap().remove("conf").unwrap();
    assert!(volume.read_only);
    let dir = volume.host_path;
    assert_eq!(dir, lab.dirs().volume_dir("u-1", "configmap", "conf"));
    assert_eq!((text(&dir.join("a")), text(&dir.join("b"))), ("1".into(), "2".into()));
    assert_eq!(mode(&dir.join("a")), 0o640);
    assert_eq!(fs::read_link(dir.join("a")).unwrap(), Path::new("..data/a"));
    let before = fs::read_link(dir.join("..data")).unwrap();
    manager.mount(&pod).await.unwrap();
    assert_eq!(fs::read_link(dir.join("..data")).unwrap(), before);

    // The running pod sees a change without another sync, and removed keys disappear.
    lab.api.edit::<ConfigMap>("shop", "web", |c| {
        c.data = Some([("a".to_owned(), "new".to_owned()), ("c".to_owned(), "3".to_owned())].into());
    });
    eventually("the new content", || fs::read_to_string(dir.join("a")).is_ok_and(|t| t == "new")).await;
    eventually("the lost key", || !dir.join("b").exists() && fs::symlink_metadata(dir.join("b")).is_err())
        .await;
    assert_eq!(text(&dir.join("c")), "3");
    eventually("one data folder", || {
        let names = fs::read_dir(&dir).unwrap().flatten().map(|e| e.file_name().into_string().unwrap());
        names.filter(|n| n.starts_with("..2")).count() == 1
    })
    .await;

    // A second manager, as after a restart, finds all volumes up to date.
    let again = lab.manager();
    let before = fs::read_link(dir.join("..data")).unwrap();
    again.mount(&pod).await.unwrap();
    assert_eq!(fs::read_link(dir.join("..data")).unwrap(), before);

    assert_eq!(manager.objects().watched(), 1);
    manager.unmount("u-1").await.unwrap();
    manager.unmount("u-1").await.unwrap();
    assert_eq!(manager.objects().watched(), 0);
    assert!(!lab.dirs().volumes_dir("u-1").exists());
}

#[tokio::test]
async fn unused_and_unknown_volumes() {
    let lab = Lab::new();
    let manager = lab.manager();
    let mut unused = pod(json!([{"name": "conf", "configMap": {"name": "none"}}]), json!({}));
    unused.spec.as_mut().unwrap().containers[0].volume_mounts = None;
    assert!(manager.mount(&unused).await.unwrap().is_empty());

    let unknown =
        pod(json!([{"name": "x", "iscsi": {"targetPortal": "p", "iqn": "q", "lun": 0}}]), json!({}));
    let error = message(manager.mount(&unknown).await);
    assert!(
        error.ends_with("failed to get Plugin from volumeSpec for volume \"x\" err=no volume plugin matched")
    );

    let mut evil = pod(json!([]), json!({}));
    evil.metadata.uid = Some("../x".into());
    assert_eq!(message(manager.mount(&evil).await), "invalid pod uid \"../x\"");
}

#[tokio::test]
async fn optional_sources_may_be_missing_and_appear_later() {
    let lab = Lab::new();
    let manager = lab.manager();
    let pod = pod(json!([{"name": "conf", "configMap": {"name": "late", "optional": true}}]), json!({}));
    let dir = manager.mount(&pod).await.unwrap().remove("conf").unwrap().host_path;
    assert!(!dir.join("k").exists());
    lab.config_map("late", json!({"k": "v"}));
    eventually("the late content", || fs::read_to_string(dir.join("k")).is_ok_and(|t| t == "v")).await;
}

#[tokio::test]
async fn host_paths_are_checked() {
    let lab = Lab::new();
    let manager = lab.manager();
    let (file, new) = (lab.root.join("file"), lab.root.join("new/dir"));
    fs::write(&file, "").unwrap();
    let path =
        |p: &Path, kind: &str| pod(json!([{"name": "h", "hostPath": {"path": p, "type": kind}}]), json!({}));
    for good in
        [path(&file, "File"), path(&file, ""), path(&new, "DirectoryOrCreate"), path(&new, "Directory")]
    {
        manager.mount(&good).await.unwrap();
        manager.unmount("u-1").await.unwrap();
    }
    assert!(new.is_dir());
    let shown = file.display();
    let error = message(manager.mount(&path(&file, "Directory")).await);
    let want = format!(
        "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: {shown} is not a directory, it's a File"
    );
    assert_eq!(error, want);
    let error = message(manager.mount(&path(Path::new("/no/such"), "Socket")).await);
    assert!(error.ends_with(
        "hostPath type check failed, /no/such is not a socket file, unable to determine its type: \
         path \"/no/such\" does not exist"
    ));
}

#[tokio::test]
async fn claims_lead_to_their_volume() {
    let lab = Lab::new();
    let manager = lab.manager();
    let pod = pod(json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]), json!({}));
    let error = message(manager.mount(&pod).await);
    assert_eq!(
        error,
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process \
         volumes=[data]: error processing PVC shop/c: failed to fetch PVC from API server: \
         persistentvolumeclaims \"c\" not found"
    );
    lab.api.add::<PersistentVolumeClaim>(&typed(json!({
        "metadata": {"name": "c", "namespace": "shop", "uid": "claim"},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}
    })));
    let path = lab.root.join("local");
    lab.api.add::<PersistentVolume>(&typed(json!({
        "metadata": {"name": "v"}, "spec": {"local": {"path": path}, "claimRef": {"uid": "claim"}}
    })));
    let error = message(manager.mount(&pod).await);
    assert_eq!(
        error,
        format!(
            "MountVolume.NewMounter initialization failed for volume \"v\" : path {:?} does not exist",
            path.display().to_string()
        )
    );
    fs::create_dir(&path).unwrap();
    fs::write(path.join("kept"), "x").unwrap();
    assert_eq!(manager.mount(&pod).await.unwrap()["data"].host_path, path);
    manager.unmount("u-1").await.unwrap();
    assert!(path.join("kept").exists());
}

/// Runs a test on a thread of its own, whose mounts no other thread sees.
fn in_private_mount_namespace(test: impl Future<Output = ()> + Send + 'static) {
    assert!(is_root(), "this test mounts file systems and must run as root");
    let thread = std::thread::spawn(|| {
        use nix::mount::{MsFlags, mount};
        use nix::sched::{CloneFlags, unshare};
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        // Threads that this one starts are in its namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn own_mounts_below(dir: &Path) -> Vec<String> {
    // /proc/self shows the namespace of the main thread; this thread has one of its own.
    let mountinfo = fs::read("/proc/thread-self/mountinfo").unwrap();
    let found = mounts::parse(&mountinfo).into_iter().filter(|m| m.path.starts_with(dir));
    found.map(|m| m.fs_type).collect()
}

#[test]
fn secrets_and_tokens_live_in_memory() {
    in_private_mount_namespace(async {
        let lab = Lab::new();
        let manager = lab.manager();
        lab.config_map("kube-root-ca.crt", json!({"ca.crt": "CA"}));
        lab.api.add::<Secret>(&typed(json!({
            "metadata": {"name": "s", "namespace": "shop"}, "data": {"password": "cHc="}
        })));
        let volumes = json!([
            {"name": "s", "secret": {"secretName": "s", "items": [{"key": "password", "path": "deep/pw", "mode": 256}]}},
            {"name": "all", "projected": {"defaultMode": 420, "sources": [
                {"configMap": {"name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ]}},
            {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ]);
        let mut pod = pod(volumes, json!({"fsGroup": 4242}));
        let mounted = manager.mount(&pod).await.unwrap();
        let secret = &mounted["s"].host_path;
        assert_eq!(text(&secret.join("deep/pw")), "pw");
        assert_eq!(mode(&secret.join("deep/pw")), 0o440);
        assert_eq!(fs::metadata(secret.join("deep/pw")).unwrap().gid(), 4242);
        assert_eq!(own_mounts_below(&lab.root), ["tmpfs", "tmpfs", "tmpfs"]);
        let all = mounted["all"].host_path.clone();
        assert_eq!(
            (text(&all.join("ca.crt")), text(&all.join("labels"))),
            ("CA".into(), "app=\"web\"".into())
        );

        let memory = &mounted["mem"].host_path;
        assert!(!mounted["mem"].read_only);
        assert_eq!(mode(memory), 0o3777);
        assert!(fs::write(memory.join("big"), vec![0; 2 << 20]).is_err());
        fs::remove_file(memory.join("big")).unwrap();
        fs::write(memory.join("kept"), "x").unwrap();

        pod.metadata.labels = Some([("app".to_owned(), "new".to_owned())].into());
        let again = lab.manager().mount(&pod).await.unwrap();
        assert_eq!(text(&all.join("labels")), "app=\"new\"");
        assert!(again["mem"].host_path.join("kept").exists());
        assert_eq!(own_mounts_below(&lab.root).len(), 3);

        manager.unmount("u-1").await.unwrap();
        assert!(own_mounts_below(&lab.root).is_empty());
        assert!(!lab.dirs().volumes_dir("u-1").exists());
    });
}

#[test]
fn tokens_are_asked_for_once_and_belong_to_the_pod() {
    in_private_mount_namespace(async {
        let lab = Lab::new();
        let manager = lab.manager();
        lab.api.guard(|request, _| {
            request
                .path
                .ends_with("/token")
                .then(|| knarr_apimachinery::status::StatusError::new(403, "Forbidden", "no tokens today"))
        });
        let volumes = json!([{"name": "t", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt"}}]}}]);
        let pod = pod(volumes, json!({"runAsUser": 1234}));
        assert_eq!(
            message(manager.mount(&pod).await),
            "MountVolume.SetUp failed for volume \"t\" : [failed to fetch token: no tokens today, \
             configmap \"kube-root-ca.crt\" not found]"
        );
        let asked = lab.api.writes();
        let asked = asked.iter().find(|r| r.path.contains("/serviceaccounts/robot/token")).unwrap();
        assert_eq!(asked.body["spec"]["boundObjectRef"]["uid"], "u-1");
        assert_eq!(asked.body["spec"]["expirationSeconds"], 3607);
    });
}

#[test]
fn sub_paths_cannot_leave_the_volume() {
    in_private_mount_namespace(async {
        let lab = Lab::new();
        let volume = lab.root.join("volume");
        fs::create_dir_all(volume.join("real")).unwrap();
        fs::write(volume.join("real/file"), "inside").unwrap();
        std::os::unix::fs::symlink("real", volume.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("out")).unwrap();
        std::os::unix::fs::symlink("../../..", volume.join("up")).unwrap();
        let mount = |index| subpath::SubPath { pod_uid: "u-1", volume: "v", container: "c", index };
        let dirs = lab.dirs();
        let file = subpath::prepare(&dirs, mount(0), &volume, "link/file").unwrap();
        assert_eq!(text(&file), "inside");
        let file = subpath::prepare(&dirs, mount(0), &volume, "link/file").unwrap();
        assert_eq!(text(&file), "inside");
        let made = subpath::prepare(&dirs, mount(1), &volume, "made/deep").unwrap();
        assert!(made.is_dir() && volume.join("made/deep").is_dir());
        for (index, bad) in ["out", "up/x", "out/passwd", "../volume"].into_iter().enumerate() {
            let error = subpath::prepare(&dirs, mount(2 + index), &volume, bad).unwrap_err().to_string();
            assert!(
                error.contains("not within volume path") || error.contains("relative path"),
                "{bad}: {error}"
            );
        }
        assert_eq!(own_mounts_below(&lab.root).len(), 2);
        lab.manager().unmount("u-1").await.unwrap();
        assert!(own_mounts_below(&lab.root).is_empty());
        assert_eq!(text(&volume.join("real/file")), "inside");
    });
}

#[test]
fn time_is_in_names_of_data_folders() {
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(now.strftime("..%Y_%m_%d_%H_%M_%S").to_string(), "..2026_01_02_03_04_05");
}
