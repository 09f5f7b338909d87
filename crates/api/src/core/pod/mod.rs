//! Pod: a group of containers on one node.

mod app_armor;
mod columns;
mod defaults;
mod disabled;
mod image;
pub mod node_features;
mod paths;
pub mod placement;
mod prepare;
pub mod validation;
pub mod warnings;

pub use defaults::{
    network_volume as default_network_volume, pod_spec as default_pod_spec, template as default_template,
};
pub(crate) use disabled::{drop_gated, pod_spec_of};
pub use prepare::qos_class;
pub use warnings::template as template_warnings;

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_apimachinery::field::ErrorList;
use knarr_apimachinery::names;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{self, CREATE_ONLY, PART, Resource, Subresource};
use crate::strategy::Strategy;

const STREAM: &[&str] = &["create", "get"];

const SUBRESOURCES: &[Subresource] = &[
    Subresource { name: "attach", body: Some(("", "v1", "PodAttachOptions")), verbs: STREAM },
    Subresource { name: "binding", body: Some(("", "v1", "Binding")), verbs: CREATE_ONLY },
    Subresource { name: "ephemeralcontainers", body: None, verbs: PART },
    Subresource { name: "eviction", body: Some(("policy", "v1", "Eviction")), verbs: CREATE_ONLY },
    Subresource { name: "exec", body: Some(("", "v1", "PodExecOptions")), verbs: STREAM },
    Subresource { name: "log", body: None, verbs: &["get"] },
    Subresource { name: "portforward", body: Some(("", "v1", "PodPortForwardOptions")), verbs: STREAM },
    Subresource {
        name: "proxy",
        body: Some(("", "v1", "PodProxyOptions")),
        verbs: &["create", "delete", "get", "patch", "update"],
    },
    Subresource { name: "resize", body: None, verbs: PART },
    resource::STATUS,
];

pub const RESOURCE: Resource = Resource {
    short_names: &["po"],
    categories: &["all"],
    subresources: SUBRESOURCES,
    selectable: &[
        "spec.hostNetwork",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.nominatedNodeName",
        "status.phase",
        "status.podIP",
        "status.podIPs",
    ],
    columns: columns::COLUMNS,
    cells: columns::cells,
    ..Resource::stored(api::Pod::RESOURCE, "PodList", "pod", &Rules)
};

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        defaults::pod(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::for_create(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::for_update(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Pod>().map(|pod| validation::create(&pod)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::Pod>(), old.typed::<api::Pod>()) else {
            return ErrorList::new();
        };
        match subresource {
            Some("status") => validation::status_update(&new, &old),
            Some("ephemeralcontainers") => validation::ephemeral_containers_update(&new, &old),
            Some("resize") => validation::resize_update(&new, &old),
            _ => validation::update(&new, &old),
        }
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        if old.is_some() {
            return Vec::new();
        }
        let problems = names::dns1123_label(new.name());
        let mut all = Vec::new();
        if !problems.is_empty() {
            all.push(format!(
                "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; \
                 a DNS label is recommended: [{}]",
                problems.join(" ")
            ));
        }
        all.extend(new.typed::<api::Pod>().map(|pod| warnings::pod(&pod)).unwrap_or_default());
        all
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn grace_period_seconds(&self, object: &Object, options: &DeleteOptions) -> Option<i64> {
        let pod = object.typed::<api::Pod>().ok()?;
        let spec = pod.spec.as_ref();
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
        let scheduled = spec.and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty());
        if !scheduled || matches!(phase, "Failed" | "Succeeded") {
            return Some(0);
        }
        let wanted = options.grace_period_seconds.or(spec.and_then(|s| s.termination_grace_period_seconds));
        Some(match wanted.unwrap_or(0) {
            negative if negative < 0 => 1,
            seconds => seconds,
        })
    }
}
