//! StatefulSet: pods with names and volumes of their own.

use k8s_openapi::api::apps::v1 as api;
use serde_json::Value;

use crate::core::persistentvolumeclaim;
use crate::core::pod::default_template;
use crate::defaults::{blank, child, existing, items, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["sts"],
    categories: &["all"],
    subresources: &[resource::SCALE, resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::StatefulSet::RESOURCE, "StatefulSetList", "statefulset", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Ready", "string", "Ready pods of those wanted."),
    AGE,
    Column::wide("Containers", "string", "Names of the containers."),
    Column::wide("Images", "string", "Images of the containers."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::StatefulSet>().unwrap_or_default();
    let spec = Some(&o.spec);
    let ready = o.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0);
    let wanted = spec.and_then(|s| s.replicas).unwrap_or(0);
    let template = spec.and_then(|s| s.template.spec.as_ref());
    let [names, images] = table::containers(template.map_or(&[], |s| &s.containers));
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    vec![Value::from(object.name()), Value::from(format!("{ready}/{wanted}")), age, names, images]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        default_template(object);
        let spec = child(prepare::object(object), "spec");
        blank(spec, "podManagementPolicy", "OrderedReady");
        let strategy = child(spec, "updateStrategy");
        if text(strategy, "type").is_empty() {
            strategy.insert("type".to_owned(), Value::from("RollingUpdate"));
            child(strategy, "rollingUpdate");
        }
        if text(strategy, "type") == "RollingUpdate"
            && let Some(rolling) = existing(strategy, "rollingUpdate")
        {
            unset(rolling, "partition", 0);
            unset(rolling, "maxUnavailable", 1);
        }
        let retention = child(spec, "persistentVolumeClaimRetentionPolicy");
        blank(retention, "whenDeleted", "Retain");
        blank(retention, "whenScaled", "Retain");
        unset(spec, "replicas", 1);
        unset(spec, "revisionHistoryLimit", 10);
        for claim in items(spec, "volumeClaimTemplates") {
            blank(claim, "apiVersion", "v1");
            blank(claim, "kind", "PersistentVolumeClaim");
            blank(child(claim, "status"), "phase", "Pending");
            persistentvolumeclaim::default_spec(child(claim, "spec"));
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
