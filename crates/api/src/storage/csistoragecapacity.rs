//! CSIStorageCapacity: the free capacity of a storage class in a part of the cluster.

use k8s_openapi::api::storage::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;

use crate::core::pod::warnings::old_node_label;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::Resource;
use crate::strategy::Strategy;
use crate::validate;

pub const RESOURCE: Resource = Resource {
    ..Resource::stored(
        api::CSIStorageCapacity::RESOURCE,
        "CSIStorageCapacityList",
        "csistoragecapacity",
        &Rules,
    )
};

struct Rules;

impl Strategy for Rules {
    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        let Ok(capacity) = object.typed::<api::CSIStorageCapacity>() else { return errors };
        let topology = capacity.node_topology.as_ref();
        validate::label_selector(&mut errors, &Path::new("nodeTopology"), topology);
        let class = &capacity.storage_class_name;
        validate::dns_subdomain(&mut errors, &Path::new("storageClassName"), class);
        let amount = capacity.capacity.as_ref().and_then(|c| Quantity::try_from(c).ok());
        if let Some(amount) = amount.filter(|a| a.signum() < 0) {
            let path = Path::new("capacity");
            errors.push(Error::invalid(&path, amount.to_string(), validate::NEGATIVE));
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let mut errors = self.validate(new);
        let (Ok(new), Ok(old)) =
            (new.typed::<api::CSIStorageCapacity>(), old.typed::<api::CSIStorageCapacity>())
        else {
            return errors;
        };
        if new.node_topology != old.node_topology {
            let text = new.node_topology.as_ref().map_or("null".to_owned(), validate::selector_text);
            let path = Path::new("nodeTopology");
            errors.push(validate::invalid_text(&path, &text, validate::IMMUTABLE));
        }
        let (now, before) = (&new.storage_class_name, &old.storage_class_name);
        validate::immutable(&mut errors, &Path::new("storageClassName"), now, before);
        errors
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        let Ok(capacity) = new.typed::<api::CSIStorageCapacity>() else { return Vec::new() };
        let topology = capacity.node_topology.clone().unwrap_or_default();
        let path = Path::new("nodeTopology");
        let mut warnings = Vec::new();
        for (i, expression) in topology.match_expressions.iter().flatten().enumerate() {
            if let Some(message) = old_node_label(&expression.key) {
                let path = path.child("matchExpressions").index(i).child("key");
                warnings.push(format!("{path}: {} is {message}", expression.key));
            }
        }
        for key in topology.match_labels.iter().flatten().map(|(key, _)| key) {
            if let Some(message) = old_node_label(key) {
                warnings.push(format!("{}: {message}", path.child("matchLabels").child(key)));
            }
        }
        warnings
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
