//! Fields that are removed from objects, because their feature is off in 1.37 or not implemented. A request that sets
//! one gets a warning.
//!
//! Upstream drops such fields without a warning. Source: `dropDisabledFields` of pkg/registry and pkg/api in
//! Kubernetes 1.37.

use serde_json::Value;

use crate::core::pod::pod_spec_of;
use crate::defaults::Fields;
use crate::kind::ResourceType;

/// A field that is removed, and the feature gate that it belongs to.
struct Dropped {
    /// Field names joined by dots; `a|b` matches either, `a[*]` the elements of a list, `a{*}` the values of a
    /// map.
    path: &'static str,
    gate: &'static str,
}

/// Fields of pod specs.
const OF_PODS: &[Dropped] = &[
    dropped("evictionResponders", "EvictionRequestAPI"),
    dropped("volumes[*].emptyDir.mode", "EmptyDirVolumeMode"),
    dropped("volumes[*].secret|configMap|downwardAPI|projected.defaultUser", "AtomicWriteVolumeUserFields"),
    dropped("volumes[*].secret|configMap|downwardAPI.items[*].user", "AtomicWriteVolumeUserFields"),
    dropped(
        "volumes[*].projected.sources[*].secret|configMap|downwardAPI.items[*].user",
        "AtomicWriteVolumeUserFields",
    ),
    dropped(
        "volumes[*].projected.sources[*].serviceAccountToken|clusterTrustBundle|podCertificate.user",
        "AtomicWriteVolumeUserFields",
    ),
    dropped(
        "containers|initContainers|ephemeralContainers[*].volumeMounts[*].bindMountOptions",
        "VolumeBindMountOptions",
    ),
    dropped(
        "containers|initContainers|ephemeralContainers[*].livenessProbe|readinessProbe|startupProbe.httpGet.protocol",
        "H2CContainerProbe",
    ),
    dropped(
        "containers|initContainers|ephemeralContainers[*].livenessProbe|readinessProbe|startupProbe.grpc.mode",
        "GRPCContainerProbeTLS",
    ),
    dropped(
        "containers|initContainers|ephemeralContainers[*].lifecycle.postStart|preStop.httpGet.protocol",
        "H2CContainerProbe",
    ),
    dropped("containers|initContainers|ephemeralContainers[*].lifecycle.stopSignal", "ContainerStopSignals"),
];

/// Fields of other resources, by group and plural; paths begin at the object's root.
const OF_OTHERS: &[(&str, &str, &[Dropped])] = &[
    (
        "",
        "pods",
        &[
            dropped("status.volumeHealth", "CSIVolumeHealth"),
            dropped("status.nodeAllocatableResourceClaimStatuses", "DRANodeAllocatableResources"),
        ],
    ),
    ("", "nodes", &[dropped("spec.podPreemptionPolicy", "InPlacePodVerticalScalingSchedulerPreemption")]),
    ("", "persistentvolumeclaims", &[dropped("status.healthStatus", "CSIVolumeHealth")]),
    ("storage.k8s.io", "csinodes", &[dropped("status.storageHealth", "CSIVolumeHealth")]),
    (
        "resource.k8s.io",
        "resourceslices",
        &[
            dropped("spec.partitionTypeAttribute", "DRAPartitionableDevicesType"),
            dropped("spec.skipNodeOperations", "DRAOptionalNodeOperations"),
            dropped("spec.devices[*].nodeAllocatableResources", "DRANodeAllocatableResources"),
            dropped("spec.devices[*].attributes{*}.bools|ints|strings|versions", "DRAListTypeAttributes"),
        ],
    ),
    (
        "resource.k8s.io",
        "resourceclaims",
        &[dropped("status.allocation.devices.results[*].skipNodeOperations", "DRAOptionalNodeOperations")],
    ),
    (
        "scheduling.k8s.io",
        "podgroups",
        &[
            dropped("spec.parentCompositePodGroupName", "CompositePodGroup"),
            dropped("spec.preemptionPolicy", "PodGroupPreemptionPolicy"),
            dropped("spec.resourceClaims", "DRAWorkloadResourceClaims"),
            dropped("spec.schedulingConstraints", "TopologyAwareWorkloadScheduling"),
            dropped("status.resourceClaimStatuses", "DRAWorkloadResourceClaims"),
        ],
    ),
    (
        "scheduling.k8s.io",
        "workloads",
        &[
            dropped("spec.compositePodGroupTemplates", "CompositePodGroup"),
            dropped("spec.podGroupTemplates[*].preemptionPolicy", "PodGroupPreemptionPolicy"),
            dropped("spec.podGroupTemplates[*].resourceClaims", "DRAWorkloadResourceClaims"),
            dropped("spec.podGroupTemplates[*].schedulingConstraints", "TopologyAwareWorkloadScheduling"),
        ],
    ),
    ("batch", "jobs", &[dropped("spec.scheduling", "WorkloadWithJob")]),
    ("batch", "cronjobs", &[dropped("spec.jobTemplate.spec.scheduling", "WorkloadWithJob")]),
];

const fn dropped(path: &'static str, gate: &'static str) -> Dropped {
    Dropped { path, gate }
}

/// Removes the fields and returns one warning for each that was set.
pub fn drop_fields(types: ResourceType, object: &mut Value) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(at) = pod_spec_of(types)
        && let Some(spec) = object.pointer_mut(at)
    {
        OF_PODS.iter().for_each(|field| remove(spec, field.path, field.gate, &mut out));
        let prefix = format!("{}.", at[1..].replace('/', "."));
        out.iter_mut().for_each(|text| text.insert_str(0, &prefix));
    }
    let of_resource =
        OF_OTHERS.iter().find(|(group, plural, _)| (*group, *plural) == (types.group, types.plural));
    for field in of_resource.iter().flat_map(|(.., fields)| *fields) {
        remove(object, field.path, field.gate, &mut out);
    }
    out
}

/// Removes the fields of a pod spec, without warnings.
pub fn drop_from_pod(spec: &mut Fields) {
    let mut value = Value::Object(std::mem::take(spec));
    OF_PODS.iter().for_each(|field| remove(&mut value, field.path, field.gate, &mut Vec::new()));
    if let Value::Object(fields) = value {
        *spec = fields;
    }
}

/// Returns the feature gates that fields are removed for.
pub fn gates() -> impl Iterator<Item = &'static str> {
    OF_PODS.iter().chain(OF_OTHERS.iter().flat_map(|(.., fields)| *fields)).map(|field| field.gate)
}

/// Removes the fields that the path matches and adds a warning for each that was not empty. Allocates nothing if no
/// field matches, which is nearly always the case.
fn remove(value: &mut Value, path: &str, gate: &str, out: &mut Vec<String>) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let names = first.trim_end_matches("[*]").trim_end_matches("{*}");
    let Some(fields) = value.as_object_mut() else { return };
    for name in names.split('|') {
        if rest.is_empty() {
            if fields.remove(name).is_some_and(|value| !is_empty(&value)) {
                out.push(format!("{name}: not kept: the feature gate {gate} is off"));
            }
            continue;
        }
        match fields.get_mut(name) {
            Some(Value::Array(items)) if first.ends_with("[*]") => {
                for (i, item) in items.iter_mut().enumerate() {
                    below(item, rest, gate, out, || format!("{name}[{i}]."));
                }
            }
            Some(Value::Object(values)) if first.ends_with("{*}") => {
                for (key, value) in values.iter_mut() {
                    below(value, rest, gate, out, || format!("{name}[{key}]."));
                }
            }
            Some(child) => below(child, rest, gate, out, || format!("{name}.")),
            None => {}
        }
    }
}

/// Calls `remove` for a child and prefixes the new warnings with the step that leads to it.
fn below(value: &mut Value, path: &str, gate: &str, out: &mut Vec<String>, step: impl Fn() -> String) {
    let before = out.len();
    remove(value, path, gate, out);
    out[before..].iter_mut().for_each(|text| text.insert_str(0, &step()));
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use knarr_apimachinery::gvk::GroupVersionKind;
    use knarr_apimachinery::schema::{self, Struct, Type};
    use serde_json::json;

    use super::*;
    use crate::resources;

    fn dropped_of(group: &str, plural: &str, object: Value) -> (Value, Vec<String>) {
        let mut object = object;
        let warnings = drop_fields(resources::find(group, plural).unwrap().types, &mut object);
        (object, warnings)
    }

    #[test]
    fn what_is_not_kept_is_said_with_its_path() {
        let slice = json!({"spec": {"devices": [{"name": "a"}, {"attributes": {"k": {"ints": [1], "int": 1}},
            "nodeAllocatableResources": {"cpu": {}}}]}});
        let (kept, warnings) = dropped_of("resource.k8s.io", "resourceslices", slice);
        assert_eq!(kept, json!({"spec": {"devices": [{"name": "a"}, {"attributes": {"k": {"int": 1}}}]}}));
        let expected = [
            "spec.devices[1].nodeAllocatableResources: not kept: the feature gate DRANodeAllocatableResources is off",
            "spec.devices[1].attributes[k].ints: not kept: the feature gate DRAListTypeAttributes is off",
        ];
        assert_eq!(warnings, expected);

        let spec = json!({"containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGUSR1"}}]});
        let (kept, warnings) =
            dropped_of("apps", "deployments", json!({"spec": {"template": {"spec": spec}}}));
        assert_eq!(kept.pointer("/spec/template/spec/containers/0/lifecycle"), Some(&json!({})));
        let expected = "spec.template.spec.containers[0].lifecycle.stopSignal: not kept: the feature gate ContainerStopSignals is off";
        assert_eq!(warnings, [expected]);
    }

    #[test]
    fn what_is_empty_goes_without_a_word() {
        let (kept, warnings) =
            dropped_of("", "nodes", json!({"spec": {"podPreemptionPolicy": null, "taints": []}}));
        assert_eq!((kept, warnings.len()), (json!({"spec": {"taints": []}}), 0));
        for odd in [json!(null), json!([]), json!({"spec": 1}), json!({"spec": {"devices": {}}})] {
            assert_eq!(dropped_of("resource.k8s.io", "resourceslices", odd.clone()), (odd, Vec::new()));
        }
    }

    /// Returns whether every name that the path may take is a field of the type.
    fn leads(of: &'static Struct, path: &str) -> bool {
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        let names = first.trim_end_matches("[*]").trim_end_matches("{*}");
        names.split('|').all(|name| {
            let Some(field) = of.field(name) else { return false };
            let below = match field.ty {
                Type::List(list) if first.ends_with("[*]") => list.element,
                Type::Map(map) if first.ends_with("{*}") => map.value,
                other => other,
            };
            match below {
                _ if rest.is_empty() => true,
                Type::Struct(below) => leads(below, rest),
                _ => false,
            }
        })
    }

    #[test]
    fn the_paths_lead_to_fields() {
        let pod = schema::for_definition("io.k8s.api.core.v1.PodSpec").unwrap();
        for field in OF_PODS {
            assert!(leads(pod, field.path), "{}", field.path);
        }
        for (group, plural, fields) in OF_OTHERS {
            let types = resources::find(group, plural).unwrap().types;
            let gvk = GroupVersionKind::new(types.group, types.version, types.kind);
            for field in *fields {
                assert!(leads(schema::for_kind(&gvk).unwrap(), field.path), "{plural}: {}", field.path);
            }
        }
    }
}
