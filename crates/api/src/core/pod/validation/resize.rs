//! Validation of the `resize` subresource, which changes cpu and memory of containers and of the pod as a whole.
//!
//! Source: `ValidatePodResize` of `k8s.io/kubernetes/pkg/apis/core/validation`, KEP-1287, KEP-5419.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use super::metadata_and_spec;
use super::update::same_spec;
use crate::prepare;
use crate::validate;

const MIRROR: &str = "kubernetes.io/config.mirror";
const COMPUTE: [&str; 2] = ["cpu", "memory"];

type ResourceList = BTreeMap<String, Quantity>;

pub fn resize_update(new: &Pod, old: &Pod) -> ErrorList {
    let mut errors = metadata_and_spec(new);
    let (none, path) = (PodSpec::default(), Path::new("spec"));
    let (new_spec, old_spec) = (new.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
    if let Some(what) = never_resized(old, old_spec) {
        errors = ErrorList::new();
        // Upstream's path has no name, either.
        errors.push(Error::forbidden(&Path::new("[]"), format!("{what} pods cannot be resized")));
        return errors;
    }
    let before = old.status.as_ref().and_then(|s| s.qos_class.clone()).unwrap_or_default();
    let now = crate::core::pod::qos_class(&validate::shown(new_spec));
    if !before.is_empty() && now != before {
        let problem = "Pod QOS Class may not change as a result of resizing";
        errors.push(Error::invalid(&path, now, problem));
    }
    if !is_supported(old) {
        errors.push(Error::forbidden(&path, "Pod running on node without support for resize"));
    }
    of_pod(&mut errors, &path, new_spec, old_spec);
    if !same_containers(&mut errors, &path, new_spec, old_spec) {
        return errors;
    }
    of_containers(&mut errors, &path, new_spec, old_spec);
    if new_spec.volumes != old_spec.volumes {
        let why = "volumes are immutable on resize when InPlacePodVerticalScalingMemoryBackedVolumes feature gate is \
                   disabled";
        errors.push(Error::forbidden(&path.child("volumes"), why));
    }
    if errors.is_empty() && !same_spec(&settled(new_spec, old_spec), old_spec) {
        errors.push(Error::forbidden(&path, "only cpu and memory resources are mutable"));
    }
    errors
}

/// Returns the kind of pods that cannot be resized, if the pod is of one.
fn never_resized(pod: &Pod, spec: &PodSpec) -> Option<&'static str> {
    let is_mirror = pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(MIRROR));
    let is_windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    match (is_mirror, is_windows) {
        (true, _) => Some("static"),
        (_, true) => Some("windows"),
        _ => None,
    }
}

/// Returns whether the node supports resize: it then reports the resources of running containers.
fn is_supported(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    let mut running = statuses.filter(|s| s.state.as_ref().is_some_and(|state| state.running.is_some()));
    running.next().is_none_or(|first| first.resources.is_some())
}

fn of_pod(errors: &mut ErrorList, path: &Path, new: &PodSpec, old: &PodSpec) {
    let at = path.child("resources");
    if let Some(had) = &old.resources {
        let Some(wants) = &new.resources else {
            errors.push(Error::forbidden(&at, "pod-level resources cannot be removed"));
            return;
        };
        for (field, had, wants) in lists(had, wants) {
            if is_removed(had, wants) {
                let why = format!("pod-level resource {field} cannot be removed");
                errors.push(Error::forbidden(&at.child(field), why));
            }
        }
    }
    let settled = new.resources.clone().map(|new| without_compute(new, old.resources.as_ref()));
    let is_nothing = |r: &Option<ResourceRequirements>| r.as_ref().is_none_or(|r| *r == Default::default());
    if settled != old.resources && !(is_nothing(&settled) && is_nothing(&old.resources)) {
        errors.push(Error::forbidden(path, "only cpu and memory resources are mutable at pod-level"));
    }
}

/// Requires that no container is added, removed or renamed; returns whether each can be compared with its old
/// form.
fn same_containers(errors: &mut ErrorList, path: &Path, new: &PodSpec, old: &PodSpec) -> bool {
    let mut moved = ErrorList::new();
    let lists =
        [("containers", &new.containers[..], &old.containers[..]), ("initContainers", init(new), init(old))];
    for (field, new, old) in lists {
        let at = path.child(field);
        if new.len() != old.len() {
            moved.push(Error::forbidden(&at, format!("{field} may not be added or removed on resize")));
            continue;
        }
        for (i, _) in new.iter().zip(old).enumerate().filter(|(_, (new, old))| new.name != old.name) {
            let why = format!("{field} may not be renamed or reordered on resize");
            moved.push(Error::forbidden(&at.index(i).child("name"), why));
        }
    }
    let have_stayed = moved.is_empty();
    errors.extend(moved);
    have_stayed
}

fn of_containers(errors: &mut ErrorList, path: &Path, new: &PodSpec, old: &PodSpec) {
    let none = ResourceRequirements::default();
    let both =
        [("initContainers", init(new), init(old)), ("containers", &new.containers[..], &old.containers[..])];
    for (field, new, old) in both {
        for (i, (new, old)) in new.iter().zip(old).enumerate() {
            let at = path.child(field).index(i).child("resources");
            let (wants, had) =
                (new.resources.as_ref().unwrap_or(&none), old.resources.as_ref().unwrap_or(&none));
            for (field, had, wants) in lists(had, wants) {
                if is_removed(had, wants) {
                    let why = format!("resource {field} cannot be removed");
                    errors.push(Error::forbidden(&at.child(field), why));
                }
            }
        }
    }
    for (new, old) in new.containers.iter().zip(&old.containers) {
        if !same(&kept(new, old), old) {
            errors.push(Error::forbidden(path, "only cpu and memory resources are mutable"));
        }
    }
    for (i, (new, old)) in init(new).iter().zip(init(old)).enumerate() {
        let at = path.child("initContainers").index(i);
        if !same(&kept(new, old), old) {
            let why = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(Error::forbidden(&at, why));
        }
        let restarts = |p: &_| -> bool {
            let policy: &k8s_openapi::api::core::v1::ContainerResizePolicy = p;
            policy.restart_policy == "RestartContainer"
        };
        let is_sidecar = new.restart_policy.as_deref() == Some("Always");
        if !is_sidecar && !same(new, old) {
            for _ in new.resize_policy.iter().flatten().filter(|p| restarts(p)) {
                let why =
                    "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                errors.push(Error::forbidden(&at, why));
            }
        }
    }
}

fn init(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or_default()
}

/// Returns the old and new requests and limits.
fn lists<'a>(
    had: &'a ResourceRequirements,
    wants: &'a ResourceRequirements,
) -> [(&'static str, Option<&'a ResourceList>, Option<&'a ResourceList>); 2] {
    [
        ("requests", had.requests.as_ref(), wants.requests.as_ref()),
        ("limits", had.limits.as_ref(), wants.limits.as_ref()),
    ]
}

fn is_removed(had: Option<&ResourceList>, wants: Option<&ResourceList>) -> bool {
    let mut names = had.into_iter().flat_map(BTreeMap::keys);
    names.any(|name| wants.is_none_or(|list| !list.contains_key(name)))
}

/// Compares containers by their JSON; missing and empty resources are equal.
fn same(a: &Container, b: &Container) -> bool {
    let shown = |container: &Container| {
        let resources = container.resources.clone().filter(|r| *r != ResourceRequirements::default());
        validate::shown(&Container { resources, ..container.clone() })
    };
    prepare::same(Some(&shown(a)), Some(&shown(b)))
}

/// Returns the new spec with the old cpu and memory.
fn settled(new: &PodSpec, old: &PodSpec) -> PodSpec {
    let all = |new: &[Container], old: &[Container]| new.iter().zip(old).map(|(n, o)| kept(n, o)).collect();
    PodSpec {
        resources: old.resources.clone(),
        containers: all(&new.containers, &old.containers),
        init_containers: new.init_containers.as_ref().map(|new| all(new, init(old))),
        ..new.clone()
    }
}

/// Returns the new container with the old cpu and memory, and the old resize policies.
fn kept(new: &Container, old: &Container) -> Container {
    let resources = new.resources.clone().unwrap_or_default();
    let resources = Some(without_compute(resources, old.resources.as_ref()));
    let none = old.resources.is_none() && resources == Some(ResourceRequirements::default());
    let resources = if none { None } else { resources };
    Container { resources, resize_policy: old.resize_policy.clone(), ..new.clone() }
}

/// Returns the new resources with the old cpu and memory.
fn without_compute(
    mut new: ResourceRequirements,
    old: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let pairs = [
        (&mut new.requests, old.and_then(|o| o.requests.as_ref())),
        (&mut new.limits, old.and_then(|o| o.limits.as_ref())),
    ];
    for (list, old) in pairs {
        for name in COMPUTE {
            match old.and_then(|o| o.get(name)) {
                Some(before) => list.get_or_insert_default().insert(name.to_owned(), before.clone()),
                None => list.as_mut().and_then(|l| l.remove(name)),
            };
        }
        if list.as_ref().is_some_and(BTreeMap::is_empty) {
            *list = None;
        }
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(init: Value, main: Value, level: Value, more: Value) -> Pod {
        let container = |name: &str, more: &Value| {
            let mut c = json!({"name": name, "image": "i", "imagePullPolicy": "Always",
                "terminationMessagePolicy": "File"});
            c.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            c
        };
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "d", "resourceVersion": "1", "uid": "u"},
            "spec": {"restartPolicy": "Always", "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1,
                "initContainers": [container("init", &init)], "containers": [container("c", &main)],
                "resources": level},
            "status": {"qosClass": "Burstable"},
        });
        pod.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(pod).unwrap()
    }

    fn cpu(cpu: &str) -> Value {
        json!({"resources": {"requests": {"cpu": cpu}}})
    }

    fn problems(new: &Pod, old: &Pod) -> Vec<String> {
        let text = |c: k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause| {
            format!("{}: {}", c.field.unwrap_or_default(), c.message.unwrap_or_default())
        };
        resize_update(new, old).causes().into_iter().map(text).collect()
    }

    /// KEP-1287: init containers are resized, too, but not restarted for it.
    #[test]
    fn init_containers_are_resized() {
        let (none, level) = (json!({}), Value::Null);
        let with = |init: Value| pod(init, cpu("1"), level.clone(), none.clone());
        assert_eq!(problems(&with(cpu("2")), &with(cpu("1"))), Vec::<String>::new());
        let gone = problems(&with(json!({})), &with(cpu("1")));
        assert_eq!(
            gone,
            ["spec.initContainers[0].resources.requests: Forbidden: resource requests cannot be removed"]
        );
        let storage = json!({"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}});
        assert_eq!(
            problems(&with(storage), &with(cpu("1"))),
            [
                "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable"
            ]
        );
        let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        let restarting = |amount: &str| {
            let mut init = cpu(amount);
            init["resizePolicy"] = policy.clone();
            with(init)
        };
        let refused = problems(&restarting("2"), &restarting("1"));
        let want = "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of \
                    RestartContainer cannot be resized";
        assert!(refused.iter().any(|p| p == want), "{refused:?}");
    }

    /// KEP-5419.
    #[test]
    fn the_pod_is_resized_as_a_whole() {
        let with = |level: Value| pod(json!({}), cpu("1"), level, json!({}));
        let level = |cpu: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": "8"}});
        assert_eq!(problems(&with(level("3")), &with(level("2"))), Vec::<String>::new());
        assert_eq!(
            problems(&with(Value::Null), &with(level("2"))),
            ["spec.resources: Forbidden: pod-level resources cannot be removed"]
        );
        assert_eq!(
            problems(&with(json!({"requests": {"cpu": "2"}})), &with(level("2"))),
            ["spec.resources.limits: Forbidden: pod-level resource limits cannot be removed"]
        );
        let pages = json!({"requests": {"cpu": "2", "hugepages-2Mi": "2Mi"}, "limits": {"cpu": "8", "hugepages-2Mi": "2Mi"}});
        assert_eq!(
            problems(&with(pages), &with(level("2"))),
            ["spec: Forbidden: only cpu and memory resources are mutable at pod-level"]
        );
    }

    #[test]
    fn what_is_no_resize() {
        let with = |more: Value| pod(cpu("1"), cpu("1"), Value::Null, more);
        let plain = with(json!({}));
        let mirror = json!({"metadata": {"name": "p", "namespace": "d", "annotations": {MIRROR: "x"}}});
        assert_eq!(problems(&plain, &with(mirror)), ["[]: Forbidden: static pods cannot be resized"]);
        let silent = json!({"status": {"qosClass": "Burstable", "containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": true, "restartCount": 0, "state": {"running": {}}}]}});
        assert_eq!(
            problems(&plain, &with(silent)),
            ["spec: Forbidden: Pod running on node without support for resize"]
        );
        let mut renamed = plain.clone();
        renamed.spec.as_mut().unwrap().containers[0].name = "d".into();
        assert_eq!(
            problems(&renamed, &plain),
            ["spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"]
        );
    }
}
