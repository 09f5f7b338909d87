//! An index of the volumes that refer to each Secret, which follows the watch events of volumes.
//!
//! A node may request any number of Secrets that none of its pods refers to; scanning all volumes for each request
//! would be expensive.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use knarr_api::resources;
use serde_json::Value;

use knarr_registry::cache::{Cache, Change, Kind, Selection, WatchFrom, Watcher};

/// The namespace and name of a Secret.
type Secret = (String, String);

/// The index. A query first applies all events that the cache has received.
#[derive(Default)]
pub struct VolumeSecrets(Mutex<Index>);

#[derive(Default)]
struct Index {
    /// The generation of the cache when its events were last taken.
    generation: Option<u64>,
    watcher: Option<Watcher>,
    volumes: HashMap<Secret, BTreeSet<String>>,
    secrets: HashMap<String, Vec<Secret>>,
}

impl VolumeSecrets {
    /// Returns the volumes that refer to a Secret.
    pub fn volumes(&self, cache: &Cache, namespace: &str, name: &str) -> Vec<String> {
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index.follow(cache);
        let found = index.volumes.get(&(namespace.to_owned(), name.to_owned()));
        found.into_iter().flatten().cloned().collect()
    }
}

impl Index {
    /// Applies the changes of the cache since the last call. If the watch has ended, the index is rebuilt.
    fn follow(&mut self, cache: &Cache) {
        // The generation is read first: an event that is applied after that may be taken now, and still changes the
        // generation.
        let now = cache.generation();
        if self.generation == Some(now) {
            return;
        }
        if !self.drain() {
            *self = Self { watcher: watch(cache), ..Self::default() };
            self.drain();
        }
        self.generation = Some(now);
    }

    /// Applies queued events. Returns whether the watch still runs, so that no event is missing.
    fn drain(&mut self) -> bool {
        let Some(mut watcher) = self.watcher.take() else { return false };
        while let Some(change) = watcher.try_next() {
            self.apply(&change);
        }
        let complete = !watcher.has_ended();
        self.watcher = Some(watcher);
        complete
    }

    fn apply(&mut self, change: &Change) {
        let volume = change.object.name();
        for secret in self.secrets.remove(volume).unwrap_or_default() {
            if let Some(volumes) = self.volumes.get_mut(&secret) {
                volumes.remove(volume);
                if volumes.is_empty() {
                    self.volumes.remove(&secret);
                }
            }
        }
        if !matches!(change.kind, Kind::Added | Kind::Modified) {
            return;
        }
        let value: Value = serde_json::from_slice(&change.object.json()).unwrap_or_default();
        let own = |(namespace, name): (&str, &str)| (namespace.to_owned(), name.to_owned());
        let secrets: Vec<Secret> = volume_secrets(&value).map(own).collect();
        for secret in &secrets {
            self.volumes.entry(secret.clone()).or_default().insert(volume.to_owned());
        }
        if !secrets.is_empty() {
            self.secrets.insert(volume.to_owned(), secrets);
        }
    }
}

/// Starts a watch of all volumes, beginning with the existing ones.
fn watch(cache: &Cache) -> Option<Watcher> {
    let resource = resources::find("", "persistentvolumes")?;
    cache.watch(None, Selection::everything(resource.into()), WatchFrom::State).ok()
}

/// Returns the secrets that a kubelet needs to mount a volume. Without a namespace of their own, they are in the
/// claim's namespace.
fn volume_secrets(volume: &Value) -> impl Iterator<Item = (&str, &str)> {
    let spec = &volume["spec"];
    let claim = spec["claimRef"]["namespace"].as_str().unwrap_or("");
    let paths: [(&Value, &str); 10] = [
        (&spec["csi"]["nodePublishSecretRef"], "name"),
        (&spec["csi"]["nodeStageSecretRef"], "name"),
        (&spec["csi"]["nodeExpandSecretRef"], "name"),
        (&spec["cephfs"]["secretRef"], "name"),
        (&spec["cinder"]["secretRef"], "name"),
        (&spec["flexVolume"]["secretRef"], "name"),
        (&spec["rbd"]["secretRef"], "name"),
        (&spec["scaleIO"]["secretRef"], "name"),
        (&spec["iscsi"]["secretRef"], "name"),
        (&spec["storageos"]["secretRef"], "name"),
    ];
    let azure = &spec["azureFile"];
    let azure_namespace = azure["secretNamespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(claim);
    let azure = azure["secretName"].as_str().map(|name| (azure_namespace, name));
    let references = paths.into_iter().filter_map(move |(value, field)| {
        let name = value[field].as_str().filter(|n| !n.is_empty())?;
        Some((value["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(claim), name))
    });
    references.chain(azure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn volume(name: &str, secret: Option<&str>) -> Value {
        let secret = secret.map(|name| json!({"name": name, "namespace": "s"}));
        json!({
            "kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": name},
            "spec": {"claimRef": {"namespace": "n", "name": "c"}, "csi": {"nodePublishSecretRef": secret},
                "azureFile": {"secretName": "share"}},
        })
    }

    #[test]
    fn the_index_follows_the_volumes() {
        let (index, cache) = (VolumeSecrets::default(), Cache::scripted());
        let found = |namespace: &str, name: &str| index.volumes(&cache, namespace, name);
        assert!(found("s", "a").is_empty());
        cache.put("v", &volume("v", Some("a")), 2);
        cache.put("w", &volume("w", Some("a")), 3);
        assert_eq!(found("s", "a"), ["v", "w"]);
        assert_eq!(found("n", "share"), ["v", "w"], "without a namespace it is the claim's");
        cache.put("v", &volume("v", Some("b")), 4);
        assert_eq!((found("s", "a"), found("s", "b")), (vec!["w".to_owned()], vec!["v".to_owned()]));
        cache.put("v", &volume("v", None), 5);
        cache.delete("w", 6);
        assert!(found("s", "a").is_empty() && found("s", "b").is_empty());
        assert_eq!(found("n", "share"), ["v"]);
        // Every watch ends when the cache is reloaded.
        cache.load_again();
        assert_eq!(found("n", "share"), ["v"]);
        let read = index.0.lock().unwrap();
        assert_eq!((read.secrets.len(), read.volumes.len()), (1, 1), "nothing is left of what has gone");
    }

    #[test]
    fn volumes_are_read_when_they_change_and_not_when_somebody_asks() {
        let (index, cache) = (VolumeSecrets::default(), Cache::scripted());
        for n in 0..10 {
            cache.put(&format!("v{n}"), &volume(&format!("v{n}"), Some("a")), n + 2);
        }
        assert_eq!(index.volumes(&cache, "s", "a").len(), 10);
        // A query does not read the volumes again: the cleared index stays empty until an event arrives.
        index.0.lock().unwrap().volumes.clear();
        assert!(index.volumes(&cache, "s", "a").is_empty());
        cache.put("v3", &volume("v3", Some("a")), 20);
        assert_eq!(index.volumes(&cache, "s", "a"), ["v3"]);
    }
}
