//! CSINode: the CSI drivers of a node.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Value, json};

use super::parameters::csi_driver;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::CSINode::RESOURCE, "CSINodeList", "csinode", &Rules)
};

const COLUMNS: &[Column] =
    &[NAME, Column::new("Drivers", "integer", "The number of CSI drivers on the node."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::CSINode>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(o.spec.drivers.len()),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    /// Removes the status, the health of storage: an alpha feature of upstream, off by default.
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::keep(new, old, "status");
        if subresource == Some("status") {
            prepare::keep(new, old, "spec");
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        if let Ok(node) = object.typed::<api::CSINode>() {
            drivers(&mut errors, &node.spec.drivers);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let mut errors = self.validate(new);
        let (Ok(new), Ok(old)) = (new.typed::<api::CSINode>(), old.typed::<api::CSINode>()) else {
            return errors;
        };
        let without_count = |driver: &api::CSINodeDriver| {
            let mut driver = driver.clone();
            driver.allocatable = None;
            driver.topology_keys = driver.topology_keys.filter(|keys| !keys.is_empty());
            driver
        };
        let path = Path::new("spec").child("drivers");
        for before in &old.spec.drivers {
            for now in new.spec.drivers.iter().filter(|now| now.name == before.name) {
                if without_count(now) != without_count(before) {
                    // The message shows upstream's internal Go type.
                    let text = format!(
                        r#"{{"Name":{},"NodeID":{},"TopologyKeys":{},"Allocatable":null}}"#,
                        json!(now.name),
                        json!(now.node_id),
                        validate::shown(&now.topology_keys)
                    );
                    errors.push(validate::invalid_text(&path, &text, validate::IMMUTABLE));
                }
            }
        }
        errors
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const NODE_ID_MAX: usize = 256;

fn drivers(errors: &mut ErrorList, drivers: &[api::CSINodeDriver]) {
    let path = Path::new("spec").child("drivers");
    let mut seen = BTreeSet::new();
    for (i, driver) in drivers.iter().enumerate() {
        let path = path.index(i);
        csi_driver(errors, &path.child("name"), &driver.name);
        validate::required(errors, &path.child("nodeID"), &driver.node_id);
        if driver.node_id.len() > NODE_ID_MAX {
            let problem = format!("must be {NODE_ID_MAX} characters or less");
            errors.push(Error::invalid(&path.child("nodeID"), driver.node_id.as_str(), problem));
        }
        if let Some(count) = driver.allocatable.as_ref().and_then(|a| a.count) {
            let path = path.child("allocatable").child("count");
            validate::nonnegative(errors, &path, i64::from(count));
        }
        if !seen.insert(&driver.name) {
            errors.push(Error::duplicate(&path.child("name"), driver.name.as_str()));
        }
        let mut keys = BTreeSet::new();
        for key in driver.topology_keys.iter().flatten() {
            validate::required(errors, &path, key);
            if !keys.insert(key) {
                errors.push(Error::duplicate(&path, key.as_str()));
            }
            validate::label_key(errors, &path, key);
        }
    }
}
