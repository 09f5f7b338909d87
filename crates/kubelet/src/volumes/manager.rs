//! Runs the volume plugins for the pods of this node, and refreshes the content of volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};
use knarr_api::kind::Kind;
use knarr_client::Client;
use knarr_client::events::{EventRecorder, EventType};
use knarr_client::work_queue::WorkQueue;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::csi::Csi;
use super::error::Error;
use super::host::{Host, Options};
use super::list::PLUGINS;
use super::object_source::ObjectSource;
use super::operations::{Operation, plugin_of};
use super::plugin::{Ready, SetUp, VolumePlugin, blocking};
use super::pod_certificates::PodCertificates;
use super::token::Tokens;
use super::trust_bundles::TrustBundles;
use super::{mounts, usage};
use crate::volume_manager::{MountedVolumes, VolumeError, VolumeUsage, Volumes};

/// The number of pods whose volumes are refreshed at the same time.
const WORKERS: usize = 4;
/// The pause before a failed refresh is tried again.
const RETRY: Duration = Duration::from_secs(60);
/// How long volumes may be [`Error::Waiting`] before the pod gets an event.
const WAIT: Duration = Duration::from_secs(123);

#[derive(Default)]
struct State {
    pod: Pod,
    ready: BTreeMap<String, Ready>,
    /// Since when all failures have been [`Error::Waiting`], on the monotonic clock.
    waiting_since: Option<Duration>,
    gone: bool,
}

type Entry = Arc<tokio::sync::Mutex<State>>;

/// The volumes of all pods of this node.
pub struct VolumeManager {
    host: Host,
    pods: Mutex<BTreeMap<String, Entry>>,
    queue: Arc<WorkQueue<String>>,
}

impl VolumeManager {
    /// Starts to refresh content, until `stop` is cancelled. Failed refreshes are emitted as events through
    /// `recorder`.
    pub fn new(
        client: Client,
        objects: Arc<ObjectSource>,
        csi: Arc<Csi>,
        options: Options,
        recorder: Option<EventRecorder>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let clock = Arc::clone(client.clock());
        let queue = WorkQueue::new(Arc::clone(&clock));
        let tokens = Tokens::new(client.clone());
        let changes = objects.changes();
        let trust_bundles = TrustBundles::new(client.clone(), Arc::clone(&objects), stop.clone());
        let pod_certificates = PodCertificates::new(client.clone(), Arc::clone(&objects), stop.clone());
        let host =
            Host { client, clock, objects, tokens, trust_bundles, pod_certificates, csi, recorder, options };
        let manager = Arc::new(Self { host, pods: Mutex::default(), queue: Arc::clone(&queue) });
        let supervisor = manager.host.objects.supervisor();
        let (listener, mut changes) = (Arc::clone(&manager), Some(changes));
        supervisor.spawn("volume-changes", stop.clone(), move |stop| {
            let changes = changes.take().unwrap_or_else(|| {
                let changes = listener.host.objects.changes();
                listener.refresh_all();
                changes
            });
            Arc::clone(&listener).listen(changes, stop)
        });
        let worker = Arc::downgrade(&manager);
        supervisor.spawn("volumes", stop, move |stop| {
            let worker = worker.clone();
            let refresh = move |uid: String| {
                let manager = worker.upgrade();
                async move {
                    if let Some(manager) = manager {
                        manager.refresh(&uid).await;
                    }
                    Ok::<(), std::convert::Infallible>(())
                }
            };
            Arc::clone(&queue).run("volumes", WORKERS, stop, refresh)
        });
        manager
    }

    fn refresh_all(&self) {
        let all: Vec<String> = self.lock().keys().cloned().collect();
        all.into_iter().for_each(|uid| self.queue.add(uid));
    }

    /// The source of ConfigMaps and Secrets, which environment variables and pull secrets use, too.
    pub fn objects(&self) -> &Arc<ObjectSource> {
        &self.host.objects
    }

    async fn listen(
        self: Arc<Self>,
        mut changes: tokio::sync::broadcast::Receiver<String>,
        stop: CancellationToken,
    ) {
        loop {
            let change = tokio::select! {
                () = stop.cancelled() => return,
                change = changes.recv() => change,
            };
            match change {
                Ok(uid) => self.queue.add(uid),
                Err(RecvError::Lagged(_)) => self.refresh_all(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Refreshes the content of the pod's volumes.
    async fn refresh(&self, uid: &str) {
        let Some(entry) = self.lock().get(uid).cloned() else { return };
        let mut state = entry.lock().await;
        if state.gone {
            return;
        }
        let (pod, mut failed) = (state.pod.clone(), false);
        for volume in volumes(&pod) {
            let (Some(plugin), Some(ready)) = (plugin_for(volume), state.ready.get(&volume.name)) else {
                continue;
            };
            if !plugin.refreshes() && ready.renew_after.is_none() {
                continue;
            }
            if let Err(error) = self.set_up(plugin, volume, &mut state).await {
                failed = true;
                let message = event_text(&volume.name, &error);
                tracing::debug!(pod = %pod.key(), message, "volume not refreshed");
                if let Some(recorder) = &self.host.recorder {
                    recorder.event(&pod, EventType::Warning, "FailedMount", message);
                }
                self.queue.add_after(uid.to_owned(), RETRY);
            }
        }
        if !failed {
            self.host.csi.ready(uid);
        }
    }

    async fn set_up(
        &self,
        plugin: &dyn VolumePlugin,
        volume: &Volume,
        state: &mut State,
    ) -> Result<(), Error> {
        let uid = state.pod.uid().to_owned();
        let task = SetUp {
            host: &self.host,
            pod: &state.pod,
            volume,
            dir: self.host.options.dirs.volume_dir(&uid, plugin.name(), &volume.name),
            again: state.ready.contains_key(&volume.name),
            written: state.ready.get(&volume.name).and_then(|ready| ready.written),
        };
        let made = plugin.set_up(&task);
        let ready =
            match plugin_of(plugin.name(), volume, |driver| self.host.csi.drivers().get(driver).is_some()) {
                Some(name) => self.host.csi.operations().measured(&name, Operation::Mount, made).await?,
                // The plugin's name for the metric is known only after the volume behind the claim has been read.
                None => made.await?,
            };
        if let Some(after) = ready.renew_after {
            self.queue.add_after(uid, after);
        }
        state.ready.insert(volume.name.clone(), ready);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Volumes for VolumeManager {
    async fn mount(&self, pod: &Pod) -> Result<MountedVolumes, VolumeError> {
        let uid = pod.uid();
        check_names(pod)?;
        self.host.objects.register(pod);
        let entry = Arc::clone(self.lock().entry(uid.to_owned()).or_default());
        let mut state = entry.lock().await;
        state.pod = pod.clone();
        let mut failures = Vec::new();
        let used = used_volumes(pod);
        for volume in volumes(pod).filter(|v| used.contains(v.name.as_str())) {
            let Some(plugin) = plugin_for(volume) else {
                let name = &volume.name;
                let text = format!(
                    "failed to get Plugin from volumeSpec for volume {name:?} err=no volume plugin matched"
                );
                failures.push((volume.name.clone(), Error::Unprocessed(text)));
                continue;
            };
            if state.ready.contains_key(&volume.name) && !plugin.refreshes() {
                continue;
            }
            if let Err(error) = self.set_up(plugin, volume, &mut state).await {
                failures.push((volume.name.clone(), error));
            }
        }
        let now = self.host.clock.monotonic();
        if !failures.is_empty() && failures.iter().all(|(_, error)| matches!(error, Error::Waiting(_))) {
            return Err(waiting(&failures, &mut state.waiting_since, now));
        }
        state.waiting_since = None;
        match failure_text(&failures) {
            Some(message) => Err(VolumeError::new(message)),
            None => {
                self.host.csi.ready(uid);
                Ok(state.ready.iter().map(|(name, ready)| (name.clone(), ready.volume.clone())).collect())
            }
        }
    }

    fn metrics(&self) -> String {
        self.host.csi.operations().render()
    }

    async fn usage(&self, pod_uid: &str) -> Vec<VolumeUsage> {
        let Some(entry) = self.lock().get(pod_uid).cloned() else { return Vec::new() };
        // The caller does not wait for a mount that is under way.
        let Ok(known) = entry.try_lock().map(|state| (state.pod.clone(), state.ready.clone())) else {
            return Vec::new();
        };
        let (pod, ready) = known;
        let asked = volumes(&pod)
            .filter_map(|volume| Some((volume, ready.get(&volume.name)?)))
            .map(|(volume, ready)| usage::of_volume(&self.host.csi, &pod, volume, ready));
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    async fn unmount(&self, pod_uid: &str) -> Result<(), VolumeError> {
        check_name("pod uid", pod_uid)?;
        self.host.objects.unregister(pod_uid);
        self.host.tokens.forget(pod_uid);
        self.host.trust_bundles.forget(pod_uid);
        self.host.pod_certificates.forget(pod_uid);
        let entry = self.lock().remove(pod_uid);
        if let Some(entry) = entry {
            // Waits for a refresh that is under way.
            entry.lock().await.gone = true;
        }
        let pod_dir = self.host.options.dirs.pod_dir(pod_uid);
        let sub_paths = pod_dir.join("volume-subpaths");
        let done = async {
            // Sub-paths are bind mounts of the volumes, and are unmounted before them.
            blocking(move || unmount_below(&sub_paths)).await?;
            self.host.csi.take_down(pod_uid).await?;
            blocking(move || take_down(&pod_dir)).await
        };
        done.await.map_err(|error| VolumeError::new(format!("UnmountVolume.TearDown failed: {error}")))
    }
}

/// Returns the error for volumes that are all [`Error::Waiting`]: quiet at first, and with upstream's event text
/// each time that [`WAIT`] has passed.
fn waiting(failures: &[(String, Error)], since: &mut Option<Duration>, now: Duration) -> VolumeError {
    let began = *since.get_or_insert(now);
    let mut error =
        VolumeError::quiet(failures.iter().map(|(_, e)| e.to_string()).collect::<Vec<_>>().join("; "));
    if now.saturating_sub(began) >= WAIT {
        *since = Some(now);
        let names: Vec<&str> = failures.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(" ");
        error = VolumeError::new(format!(
            "Unable to attach or mount volumes: unmounted volumes=[{names}], unattached volumes=[{names}], \
             failed to process volumes=[]: context deadline exceeded"
        ));
    }
    error
}

fn unmount_below(dir: &Path) -> Result<(), Error> {
    if !dir.exists() {
        return Ok(());
    }
    mounts::mounted_below(dir)?.iter().try_for_each(|path| mounts::unmount(path))
}

/// Unmounts everything below the pod's folder, then removes the files of the volumes.
fn take_down(pod_dir: &Path) -> Result<(), Error> {
    if !pod_dir.exists() {
        return Ok(());
    }
    unmount_below(pod_dir)?;
    // Files must not be removed through a mount that could not be unmounted.
    if let Some(left) = mounts::mounted_below(pod_dir)?.first() {
        return Err(Error::failed(format!("{} is still mounted", left.display())));
    }
    for name in ["volume-subpaths", "volumes"] {
        let dir = pod_dir.join(name);
        knarr_runtime::remove_folder(&dir).map_err(Error::file("remove", &dir))?;
    }
    Ok(())
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten())
}

/// Returns the volumes that a container mounts; the others are not set up, as in upstream.
fn used_volumes(pod: &Pod) -> BTreeSet<&str> {
    let Some(spec): Option<&PodSpec> = pod.spec.as_ref() else { return BTreeSet::new() };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ephemeral = spec.ephemeral_containers.iter().flatten().flat_map(|c| c.volume_mounts.iter().flatten());
    let mounts = containers.flat_map(|c| c.volume_mounts.iter().flatten()).chain(ephemeral);
    mounts.map(|m| m.name.as_str()).collect()
}

fn plugin_for(volume: &Volume) -> Option<&'static dyn VolumePlugin> {
    PLUGINS.iter().copied().find(|plugin| plugin.supports(volume))
}

/// Checks the names that become parts of paths. The API server has validated them, but not those of static pods.
fn check_names(pod: &Pod) -> Result<(), VolumeError> {
    check_name("pod uid", pod.uid())?;
    volumes(pod).try_for_each(|volume| check_name("volume name", &volume.name))
}

fn check_name(what: &str, name: &str) -> Result<(), VolumeError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(VolumeError::new(format!("invalid {what} {name:?}")));
    }
    Ok(())
}

fn event_text(volume: &str, error: &Error) -> String {
    match error {
        Error::Whole(text) | Error::Unprocessed(text) => text.clone(),
        error => format!("MountVolume.SetUp failed for volume {volume:?} : {error}"),
    }
}

/// Returns the text of the FailedMount event for all failures.
fn failure_text(failures: &[(String, Error)]) -> Option<String> {
    let (unprocessed, failed): (Vec<_>, Vec<_>) =
        failures.iter().partition(|(_, error)| matches!(error, Error::Unprocessed(_)));
    let mut texts: Vec<String> = failed.iter().map(|(name, error)| event_text(name, error)).collect();
    if !unprocessed.is_empty() {
        let names = |list: &[&(String, Error)]| {
            list.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
        };
        let causes: Vec<String> = unprocessed.iter().map(|(_, error)| error.to_string()).collect();
        let all: Vec<&(String, Error)> = failures.iter().collect();
        texts.push(format!(
            "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], \
             failed to process volumes=[{}]: {}",
            names(&all),
            names(&unprocessed),
            causes.join("; ")
        ));
    }
    (!texts.is_empty()).then(|| texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::object_source::SourceError;

    #[test]
    fn failures_read_as_upstream() {
        let missing = || Error::Source(SourceError::NotFound { kind: "configmap", name: "web".into() });
        let claim = || Error::Unprocessed("error processing PVC default/data: PVC is not bound".into());
        let table = [
            (vec![], None),
            (
                vec![("config".into(), missing())],
                Some("MountVolume.SetUp failed for volume \"config\" : configmap \"web\" not found"),
            ),
            (
                vec![("data".into(), claim())],
                Some(
                    "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed \
                     to process volumes=[data]: error processing PVC default/data: PVC is not bound",
                ),
            ),
            (
                vec![("p".into(), Error::aggregate(vec!["a".into(), "b".into()]).unwrap())],
                Some("MountVolume.SetUp failed for volume \"p\" : [a, b]"),
            ),
        ];
        for (failures, want) in table {
            assert_eq!(failure_text(&failures).as_deref(), want);
        }
    }
}
