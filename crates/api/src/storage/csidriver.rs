//! CSIDriver: the capabilities and requirements of a CSI driver.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

use crate::defaults::{child, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::CSIDriver::RESOURCE, "CSIDriverList", "csidriver", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new(
        "AttachRequired",
        "boolean",
        "Whether volumes of the driver must be attached before they are mounted.",
    ),
    Column::new(
        "PodInfoOnMount",
        "boolean",
        "Whether the driver requires pod information when it mounts a volume.",
    ),
    Column::new("StorageCapacity", "boolean", "Whether the driver publishes its storage capacity."),
    Column::new(
        "TokenRequests",
        "string",
        "The audiences of the service account tokens that the driver requires.",
    ),
    Column::new(
        "RequiresRepublish",
        "boolean",
        "Whether the driver requires NodePublishVolume to be called periodically.",
    ),
    Column::new("Modes", "string", "The volume lifecycle modes that the driver supports."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::CSIDriver>().unwrap_or_default();
    let spec = &o.spec;
    let tokens = spec.token_requests.as_ref().map_or("<unset>".to_owned(), |requests| {
        requests.iter().map(|r| r.audience.as_str()).collect::<Vec<_>>().join(",")
    });
    let modes = spec.volume_lifecycle_modes.as_deref().unwrap_or_default().join(",");
    vec![
        Value::from(object.name()),
        Value::from(spec.attach_required.unwrap_or(true)),
        Value::from(spec.pod_info_on_mount.unwrap_or(false)),
        Value::from(spec.storage_capacity.unwrap_or(false)),
        Value::from(tokens),
        Value::from(spec.requires_republish.unwrap_or(false)),
        table::or_none(&modes),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        unset(spec, "attachRequired", true);
        unset(spec, "podInfoOnMount", false);
        unset(spec, "storageCapacity", false);
        unset(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if spec.get("volumeLifecycleModes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
        }
        unset(spec, "requiresRepublish", false);
        unset(spec, "seLinuxMount", false);
        unset(spec, "preventPodSchedulingIfMissing", false);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        prepare::bump_generation(new, old, &["/spec"]);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        if let Ok(driver) = object.typed::<api::CSIDriver>() {
            validate_spec(&mut errors, &driver.spec);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let mut errors = self.validate(new);
        if let (Ok(new), Ok(old)) = (new.typed::<api::CSIDriver>(), old.typed::<api::CSIDriver>()) {
            let (new, old) = (&new.spec, &old.spec);
            let at = |field| Path::new("spec").child(field);
            // Upstream's error path has another field name here.
            let path = at("attachedRequired");
            validate::immutable(&mut errors, &path, &new.attach_required, &old.attach_required);
            let path = at("volumeLifecycleModes");
            validate::immutable(&mut errors, &path, &new.volume_lifecycle_modes, &old.volume_lifecycle_modes);
        }
        errors
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(new) = new.typed::<api::CSIDriver>() else { return Vec::new() };
        let old = old.and_then(|o| o.typed::<api::CSIDriver>().ok());
        let same = old.is_some_and(|o| o.spec.token_requests == new.spec.token_requests);
        let asks = new.spec.token_requests.as_ref().is_some_and(|t| !t.is_empty());
        if same || !asks || new.spec.service_account_token_in_secrets.is_some() {
            return Vec::new();
        }
        vec![
            "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, \
             set to true to prevent possible logging of tokens in volume attributes"
                .to_owned(),
        ]
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_spec(errors: &mut ErrorList, spec: &api::CSIDriverSpec) {
    let path = Path::new("spec");
    let required = |errors: &mut ErrorList, field: &str, flag: Option<bool>| {
        if flag.is_none() {
            errors.push(Error::required(&path.child(field), ""));
        }
    };
    required(errors, "attachedRequired", spec.attach_required);
    required(errors, "podInfoOnMount", spec.pod_info_on_mount);
    required(errors, "storageCapacity", spec.storage_capacity);
    if let Some(policy) = spec.fs_group_policy.as_deref() {
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        validate::supported_value(errors, &path.child("fsGroupPolicy"), policy, &policies);
    }
    let requests = spec.token_requests.as_deref().unwrap_or_default();
    token_requests(errors, &path.child("tokenRequests"), requests);
    for mode in spec.volume_lifecycle_modes.iter().flatten() {
        let modes = ["Persistent", "Ephemeral"];
        validate::supported_value(errors, &path.child("volumeLifecycleModes"), mode, &modes);
    }
    required(errors, "seLinuxMount", spec.se_linux_mount);
    if let Some(seconds) = spec.node_allocatable_update_period_seconds.filter(|s| *s < 10) {
        let path = path.child("nodeAllocatableUpdatePeriodSeconds");
        errors.push(Error::invalid(&path, seconds, "must be greater than or equal to 10 seconds"));
    }
    if let Some(flag) = spec.service_account_token_in_secrets.filter(|_| requests.is_empty()) {
        let problem = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(Error::invalid(&path.child("serviceAccountTokenInSecrets"), flag, problem));
    }
    required(errors, "preventPodSchedulingIfMissing", spec.prevent_pod_scheduling_if_missing);
}

fn token_requests(errors: &mut ErrorList, path: &Path, requests: &[api::TokenRequest]) {
    let mut seen = BTreeSet::new();
    for (i, request) in requests.iter().enumerate() {
        let path = path.index(i);
        if !seen.insert(&request.audience) {
            errors.push(Error::duplicate(&path.child("audience"), request.audience.as_str()));
            continue;
        }
        let problem = match request.expiration_seconds {
            Some(..600) => "may not specify a duration less than 10 minutes",
            Some(seconds) if seconds > 1 << 32 => "may not specify a duration larger than 2^32 seconds",
            _ => continue,
        };
        let path = path.child("expirationSeconds");
        errors.push(Error::invalid(&path, request.expiration_seconds, problem));
    }
}
