//! The selector for pods without constraints of their own: the pods of the same services and controller.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::selector::{Requirement, Selector};

use crate::framework::{Catalog, Shape};

/// The number of shapes whose selector is cached.
const KNOWN: usize = 4096;

type Labels = BTreeMap<String, String>;

/// Selectors by shape, computed again when services or controllers change.
pub struct DefaultSelectors {
    catalog: Arc<Catalog>,
    known: Mutex<HashMap<u64, Known>>,
}

struct Known {
    at: u64,
    version: u64,
    selector: Option<Selector>,
}

impl DefaultSelectors {
    pub fn new(catalog: Arc<Catalog>) -> Self {
        catalog.watch::<Service>();
        catalog.watch::<ReplicationController>();
        catalog.watch::<ReplicaSet>();
        catalog.watch::<StatefulSet>();
        Self { catalog, known: Mutex::default() }
    }

    /// Returns the selector, or `None` when nothing selects the pod.
    pub fn selector(&self, shape: &Shape) -> Option<Selector> {
        self.look_up(shape, |known| known.selector.clone())
    }

    /// A number that changes with the selector.
    pub fn version(&self, shape: &Shape) -> u64 {
        self.look_up(shape, |known| known.version)
    }

    fn look_up<T>(&self, shape: &Shape, read: impl FnOnce(&Known) -> T) -> T {
        let c = &self.catalog;
        let at = c.version::<Service>()
            + c.version::<ReplicationController>()
            + c.version::<ReplicaSet>()
            + c.version::<StatefulSet>();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = known.get(&shape.id).filter(|k| k.at == at) {
            return read(one);
        }
        if known.len() >= KNOWN {
            known.clear();
        }
        let selector = default_selector(c, shape);
        let mut hash = DefaultHasher::new();
        format!("{selector:?}").hash(&mut hash);
        let one = Known { at, version: hash.finish(), selector };
        let answer = read(&one);
        known.insert(shape.id, one);
        answer
    }
}

fn parsed(selector: &LabelSelector) -> Vec<Requirement> {
    Selector::from_label_selector(Some(selector)).map(|s| s.requirements().to_vec()).unwrap_or_default()
}

fn default_selector(catalog: &Catalog, shape: &Shape) -> Option<Selector> {
    let (namespace, labels) = (shape.namespace(), &shape.footprint.labels);
    let mut merged = Labels::new();
    for service in catalog.list::<Service>(Some(namespace)) {
        let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
        if let Some(selector) = selector.filter(|s| s.iter().all(|(k, v)| labels.get(k) == Some(v))) {
            merged.extend(selector.clone());
        }
    }
    let owner = shape.pod.metadata.owner_references.iter().flatten().next();
    let mut requirements = Vec::new();
    if let Some(owner) = owner {
        match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("v1", "ReplicationController") => {
                let found = catalog.get::<ReplicationController>(namespace, &owner.name);
                merged.extend(found.and_then(|rc| rc.spec.clone()?.selector).unwrap_or_default());
            }
            ("apps/v1", "ReplicaSet") => {
                let found = catalog.get::<ReplicaSet>(namespace, &owner.name);
                requirements = found.map(|rs| parsed(&rs.spec.selector)).unwrap_or_default();
            }
            ("apps/v1", "StatefulSet") => {
                let found = catalog.get::<StatefulSet>(namespace, &owner.name);
                requirements = found.map(|ss| parsed(&ss.spec.selector)).unwrap_or_default();
            }
            _ => {}
        }
    }
    requirements.extend_from_slice(Selector::from_labels(&merged).requirements());
    let selector = Selector::new(requirements);
    (!selector.is_everything()).then_some(selector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{labelled, pod};
    use k8s_openapi::api::core::v1::ServiceSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn service(name: &str, selector: &[(&str, &str)]) -> Service {
        Service {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("default".into()),
                ..Default::default()
            },
            spec: Some(ServiceSpec { selector: Some(labelled(selector)), ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn services_that_select_the_pod_say_what_belongs_to_it() {
        let catalog = Arc::new(Catalog::default());
        let selectors = DefaultSelectors::new(Arc::clone(&catalog));
        let shape = Shape::of(&pod("p").label("app", "web").label("tier", "front").build());
        assert_eq!(selectors.selector(&shape), None);
        let before = selectors.version(&shape);
        catalog.put(service("other", &[("app", "db")]));
        assert_eq!(selectors.version(&shape), before, "a service for other pods changes nothing");
        catalog.put(service("web", &[("app", "web")]));
        assert_eq!(selectors.selector(&shape), Some(Selector::from_labels(&labelled(&[("app", "web")]))));
        assert_ne!(selectors.version(&shape), before);
    }
}
