//! Publishes this node's drivers in the cluster: in the CSINode, the Node's annotation, and topology labels.
//!
//! Source: `k8s.io/kubernetes/pkg/volume/csi/nodeinfomanager`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, OwnerReference};
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_client::{Client, Event, Informer, Patch};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::messages::NodeGetInfoResponse;

const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// In-tree plugins whose volumes are migrated to drivers.
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,\
                                kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,\
                                kubernetes.io/vsphere-volume";
const ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(30);
const RETRY: Duration = Duration::from_secs(5);

/// The facts that a driver has reported about this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DriverInfo {
    pub node_id: String,
    /// The maximal number of volumes; 0 means no limit.
    pub max_volumes: i64,
    pub topology: BTreeMap<String, String>,
}

impl From<NodeGetInfoResponse> for DriverInfo {
    fn from(answer: NodeGetInfoResponse) -> Self {
        Self {
            node_id: answer.node_id,
            max_volumes: answer.max_volumes_per_node,
            topology: answer.accessible_topology.map(|t| t.segments).unwrap_or_default(),
        }
    }
}

/// Returns the patch that adds a driver to the Node; `None` if nothing changes.
fn node_patch(node: &Node, driver: &str, info: &DriverInfo) -> Result<Option<Value>, String> {
    let mut ids = node_ids(node)?;
    let labels = node.metadata.labels.as_ref();
    for (key, value) in &info.topology {
        if let Some(current) = labels.and_then(|l| l.get(key)).filter(|current| *current != value) {
            return Err(format!(
                "detected topology value collision: driver reported {key:?}:{value:?} but existing label is \
                 {key:?}:{current:?}"
            ));
        }
    }
    let known = ids.insert(driver.to_owned(), info.node_id.clone()).as_ref() == Some(&info.node_id);
    let labelled = info.topology.keys().all(|key| labels.is_some_and(|l| l.contains_key(key)));
    if known && labelled {
        return Ok(None);
    }
    let annotation = json!(ids).to_string();
    Ok(Some(json!({"metadata": {"annotations": {NODE_ID: annotation}, "labels": info.topology}})))
}

/// Returns the patch that removes a driver from the Node's annotation; `None` if it is not there.
fn node_removal(node: &Node, driver: &str) -> Result<Option<Value>, String> {
    let mut ids = node_ids(node)?;
    if ids.remove(driver).is_none() {
        return Ok(None);
    }
    let annotation = if ids.is_empty() { Value::Null } else { Value::String(json!(ids).to_string()) };
    Ok(Some(json!({"metadata": {"annotations": {NODE_ID: annotation}}})))
}

fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, String> {
    let text = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ID)).filter(|t| !t.is_empty());
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text)
        .map_err(|e| format!("failed to parse node's {NODE_ID:?} annotation value ({text:?}) err={e}"))
}

/// Returns the CSINode with the driver; `None` if nothing changes.
fn with_driver(node: &CSINode, driver: &str, info: &DriverInfo) -> Option<CSINode> {
    let keys: Vec<String> = info.topology.keys().cloned().collect();
    let count = i32::try_from(info.max_volumes.max(0)).unwrap_or(i32::MAX);
    let entry = CSINodeDriver {
        name: driver.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: (count > 0).then_some(VolumeNodeResources { count: Some(count) }),
    };
    let same = |old: &CSINodeDriver| {
        let mut old = old.clone();
        let keys = old.topology_keys.get_or_insert_default();
        keys.sort();
        old.topology_keys = old.topology_keys.filter(|keys| !keys.is_empty());
        old.allocatable = old.allocatable.filter(|a| a.count.is_some());
        old == entry
    };
    if node.spec.drivers.iter().any(same) {
        return None;
    }
    let mut next = node.clone();
    next.spec.drivers.retain(|d| d.name != driver);
    next.spec.drivers.push(entry);
    Some(next)
}

fn without_driver(node: &CSINode, driver: &str) -> Option<CSINode> {
    let mut next = node.clone();
    next.spec.drivers.retain(|d| d.name != driver);
    (next.spec.drivers.len() < node.spec.drivers.len()).then_some(next)
}

fn new_csi_node(node: &Node) -> CSINode {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name().to_owned(),
        uid: node.uid().to_owned(),
        ..OwnerReference::default()
    };
    CSINode {
        metadata: ObjectMeta {
            name: Some(node.name().to_owned()),
            annotations: Some([(MIGRATED.to_owned(), MIGRATED_PLUGINS.to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
        status: None,
    }
}

fn is_owned_by(csi_node: &CSINode, node: &Node) -> bool {
    let owners = csi_node.metadata.owner_references.iter().flatten();
    owners.filter(|o| o.kind == "Node" && o.name == node.name()).any(|o| o.uid == node.uid())
}

/// Writes the entries of this node's drivers.
pub struct NodeInfo {
    client: Client,
    node_name: String,
    node: Informer<Node>,
    installed: Mutex<BTreeMap<String, DriverInfo>>,
    /// Held during each change, so that changes do not overlap.
    writing: tokio::sync::Mutex<()>,
}

impl NodeInfo {
    /// Creates the writer. `node` is the informer of this node's own object.
    pub fn new(client: Client, node_name: &str, node: Informer<Node>) -> Arc<Self> {
        Arc::new(Self {
            client,
            node_name: node_name.to_owned(),
            node,
            installed: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        })
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.client.clock()
    }

    /// Waits until the Node exists: drivers cannot be published before.
    pub async fn wait_for_node(&self) {
        let wake = Arc::new(Notify::new());
        let on_node = Arc::clone(&wake);
        self.node.add_handler(move |_| on_node.notify_one());
        while self.node.lister().get("", &self.node_name).is_none() {
            wake.notified().await;
        }
    }

    /// Keeps the CSINode owned by the current Node until `stop` is cancelled: a Node that was deleted and created
    /// anew gets all entries again.
    pub fn keep(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.work(stop))
    }

    async fn work(self: Arc<Self>, stop: CancellationToken) {
        let wake = Arc::new(Notify::new());
        let on_node = Arc::clone(&wake);
        self.node.add_handler(move |event| {
            let news = match event {
                Event::Updated { old, new } => old.uid() != new.uid(),
                Event::Added(_) => true,
                Event::Deleted(_) => false,
            };
            if news {
                on_node.notify_one();
            }
        });
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = wake.notified() => {}
            }
            if let Err(error) = self.restore().await {
                tracing::warn!(error, "cannot update the CSINode");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.client.clock().sleep(RETRY) => wake.notify_one(),
                }
            }
        }
    }

    async fn restore(&self) -> Result<(), String> {
        let _writing = self.writing.lock().await;
        let known = self.installed().clone();
        self.retried(|| async { self.csi_node().await.map(drop) }).await?;
        for (driver, info) in known {
            self.retried(|| self.write(&driver, &info)).await?;
        }
        Ok(())
    }

    /// Publishes a driver.
    pub async fn install(&self, driver: &str, info: DriverInfo) -> Result<(), String> {
        if info.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
        }
        let _writing = self.writing.lock().await;
        self.retried(|| self.write(driver, &info)).await?;
        self.installed().insert(driver.to_owned(), info);
        Ok(())
    }

    /// Removes the entries of a driver that is gone.
    pub async fn uninstall(&self, driver: &str) -> Result<(), String> {
        let _writing = self.writing.lock().await;
        self.installed().remove(driver);
        self.retried(|| self.erase(driver)).await
    }

    async fn write(&self, driver: &str, info: &DriverInfo) -> Result<(), String> {
        let node = self.live_node().await?;
        if let Some(patch) = node_patch(&node, driver, info)? {
            self.patch_node(patch).await?;
        }
        let csi_node = self.csi_node().await?;
        match with_driver(&csi_node, driver, info) {
            Some(next) => self.client.update(&next).await.map(drop).map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    async fn erase(&self, driver: &str) -> Result<(), String> {
        match self.client.get::<CSINode>("", &self.node_name).await {
            Ok(csi_node) => {
                if let Some(next) = without_driver(&csi_node, driver) {
                    self.client.update(&next).await.map_err(|e| e.to_string())?;
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.to_string()),
        }
        let node = self.live_node().await?;
        match node_removal(&node, driver)? {
            Some(patch) => self.patch_node(patch).await,
            None => Ok(()),
        }
    }

    async fn live_node(&self) -> Result<Node, String> {
        self.client.get("", &self.node_name).await.map_err(|e| e.to_string())
    }

    async fn patch_node(&self, patch: Value) -> Result<(), String> {
        let patch = Patch::Merge(patch);
        let patched = self.client.patch::<Node>("", &self.node_name, None, &patch).await;
        patched.map(drop).map_err(|e| e.to_string())
    }

    /// Returns this node's CSINode, and creates it if it is missing. A CSINode of an earlier Node is deleted
    /// first.
    async fn csi_node(&self) -> Result<CSINode, String> {
        let node = self.live_node().await?;
        match self.client.get::<CSINode>("", &self.node_name).await {
            Ok(found) if is_owned_by(&found, &node) => Ok(found),
            Ok(_) => {
                let options = DeleteOptions::default();
                let deleted = self.client.delete::<CSINode>("", &self.node_name, &options).await;
                deleted.map_err(|e| format!("error deleting existing CSINode {:?}: {e}", self.node_name))?;
                Err(format!("CSINode {:?} was owned by different node, deleted it", self.node_name))
            }
            Err(error) if error.is_not_found() => {
                self.client.create(&new_csi_node(&node)).await.map_err(|e| e.to_string())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Retries after conflicts with other writers.
    async fn retried<F: Future<Output = Result<(), String>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<(), String> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..ATTEMPTS {
            if attempt().await.is_ok() {
                return Ok(());
            }
            self.client.clock().sleep(pause).await;
            pause *= 3;
        }
        attempt().await
    }

    fn installed(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, DriverInfo>> {
        self.installed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_client::Informers;
    use knarr_client::clock::SystemClock;
    use knarr_testing::FakeApi;

    fn info(node_id: &str, max_volumes: i64, topology: &[(&str, &str)]) -> DriverInfo {
        let topology = topology.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        DriverInfo { node_id: node_id.to_owned(), max_volumes, topology }
    }

    fn node(value: Value) -> Node {
        serde_json::from_value(json!({"metadata": value})).unwrap()
    }

    #[test]
    fn the_node_is_told_what_it_does_not_know() {
        let existing = node(json!({"annotations": {NODE_ID: r#"{"a":"1"}"#}, "labels": {"zone": "z"}}));
        assert_eq!(node_patch(&existing, "a", &info("1", 0, &[("zone", "z")])), Ok(None));
        let patch = node_patch(&existing, "b", &info("2", 0, &[("rack", "r")])).unwrap().unwrap();
        assert_eq!(patch["metadata"]["annotations"][NODE_ID], r#"{"a":"1","b":"2"}"#);
        assert_eq!(patch["metadata"]["labels"], json!({"rack": "r"}));
        let error = node_patch(&existing, "b", &info("2", 0, &[("zone", "y")])).unwrap_err();
        assert!(error.contains(r#"driver reported "zone":"y" but existing label is "zone":"z""#), "{error}");
        assert!(node_patch(&node(json!({"annotations": {NODE_ID: "{"}})), "a", &info("1", 0, &[])).is_err());

        let gone = node_removal(&existing, "a").unwrap().unwrap();
        assert_eq!(gone["metadata"]["annotations"][NODE_ID], Value::Null);
        assert_eq!(node_removal(&existing, "b"), Ok(None));
    }

    #[test]
    fn drivers_are_listed_once() {
        let empty = new_csi_node(&node(json!({"name": "n", "uid": "u"})));
        assert!(is_owned_by(&empty, &node(json!({"name": "n", "uid": "u"}))));
        assert!(!is_owned_by(&empty, &node(json!({"name": "n", "uid": "other"}))));
        let wanted = info("id", 7, &[("rack", "r")]);
        let first = with_driver(&empty, "d", &wanted).unwrap();
        assert_eq!(
            serde_json::to_value(&first.spec).unwrap(),
            json!({"drivers": [
                {"name": "d", "nodeID": "id", "topologyKeys": ["rack"], "allocatable": {"count": 7}}]})
        );
        assert_eq!(with_driver(&first, "d", &wanted), None);
        let changed = with_driver(&first, "d", &info("id", 0, &[])).unwrap();
        assert_eq!((changed.spec.drivers.len(), &changed.spec.drivers[0].allocatable), (1, &None));
        assert!(without_driver(&first, "x").is_none());
        assert!(without_driver(&first, "d").unwrap().spec.drivers.is_empty());
    }

    #[tokio::test]
    async fn a_node_that_came_anew_gets_everything_again() {
        let api = FakeApi::new(Arc::new(SystemClock), &[Node::RESOURCE, CSINode::RESOURCE]);
        let stop = CancellationToken::new();
        let informers = Informers::new(api.client(), stop.clone());
        let info_of = NodeInfo::new(api.client(), "n", informers.informer());
        tokio::spawn(Arc::clone(&info_of).keep(stop.clone()));
        api.add::<Node>(&node(json!({"name": "n", "uid": "first"})));
        info_of.install("d", info("id", 0, &[("rack", "r")])).await.unwrap();
        assert_eq!(info_of.install("e", info("", 0, &[])).await.unwrap_err().split(": ").count(), 2);
        let owner = || -> Option<String> {
            let found = api.get::<CSINode>("", "n")?;
            (found.spec.drivers.len() == 1).then(|| found.metadata.owner_references.unwrap()[0].uid.clone())
        };
        let first = api.get::<Node>("", "n").unwrap();
        assert_eq!(first.metadata.labels.as_ref().unwrap()["rack"], "r");
        assert_eq!(owner().as_deref(), first.metadata.uid.as_deref());
        api.remove::<Node>("", "n");
        api.add::<Node>(&node(json!({"name": "n", "uid": "second"})));
        for _ in 0..500 {
            if owner().is_some_and(|uid| Some(uid) != first.metadata.uid) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let second = api.get::<Node>("", "n").unwrap();
        assert_eq!(owner().as_deref(), second.metadata.uid.as_deref());
        info_of.uninstall("d").await.unwrap();
        assert!(api.get::<CSINode>("", "n").unwrap().spec.drivers.is_empty());
        stop.cancel();
    }
}
