//! LimitRange: bounds and defaults for resources in a namespace.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;
use serde_json::Value;

use crate::core::pod::validation::resource_name;
use crate::defaults::{Fields, child, existing, items, text, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::Resource;
use crate::strategy::Strategy;
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["limits"],
    ..Resource::stored(api::LimitRange::RESOURCE, "LimitRangeList", "limitrange", &Rules)
};

/// Copies quantities to the other list, where that has none.
fn inherit(item: &mut Fields, from: &str, to: &str) {
    let given = item.get(from).and_then(Value::as_object).cloned().unwrap_or_default();
    if given.is_empty() {
        return;
    }
    let to = child(item, to);
    for (name, quantity) in given {
        unset(to, &name, quantity);
    }
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let Some(spec) = existing(prepare::object(object), "spec") else { return };
        for item in items(spec, "limits") {
            if text(item, "type") == "Container" {
                inherit(item, "max", "default");
                inherit(item, "default", "defaultRequest");
                inherit(item, "min", "defaultRequest");
            }
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::LimitRange>().map(|o| validate_limits(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, _: Option<&str>) -> ErrorList {
        self.validate(new)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_limits(range: &api::LimitRange) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (i, limit) in range.spec.iter().flat_map(|s| &s.limits).enumerate() {
        let path = Path::new("spec").child("limits").index(i);
        let kind = limit.type_.as_str();
        let found = names::label_key(kind);
        let qualified = found.is_empty();
        validate::problems(&mut errors, &path.child("type"), kind, found);
        let standard = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim");
        if qualified && !kind.contains('/') && !standard {
            let problem = "must be a standard limit type or fully qualified";
            errors.push(Error::invalid(&path.child("type"), kind, problem));
        }
        if !seen.insert(kind) {
            errors.push(Error::duplicate(&path.child("type"), kind));
        }
        validate_item(&mut errors, &path, limit);
    }
    errors
}

type Amounts = BTreeMap<String, Quantity>;

fn validate_item(errors: &mut ErrorList, path: &Path, limit: &api::LimitRangeItem) {
    let mut amounts = |field: &str, list: &Option<BTreeMap<String, ApiQuantity>>| -> Amounts {
        for name in list.iter().flatten().map(|(name, _)| name) {
            resource_name(errors, &path.child(field).key(name), name);
        }
        let parsed = |(name, q): (&String, &ApiQuantity)| Some((name.clone(), Quantity::try_from(q).ok()?));
        list.iter().flatten().filter_map(parsed).collect()
    };
    let (max, min) = (amounts("max", &limit.max), amounts("min", &limit.min));
    let of_pod = limit.type_ == "Pod";
    let (mut default, mut request) = (Amounts::new(), Amounts::new());
    if !of_pod {
        default = amounts("default", &limit.default);
        request = amounts("defaultRequest", &limit.default_request);
    }
    let ratio = amounts("maxLimitRequestRatio", &limit.max_limit_request_ratio);
    if of_pod {
        for (field, list) in [("default", &limit.default), ("defaultRequest", &limit.default_request)] {
            if list.as_ref().is_some_and(|l| !l.is_empty()) {
                let why = "may not be specified when `type` is 'Pod'";
                errors.push(Error::forbidden(&path.child(field), why));
            }
        }
    }
    if limit.type_ == "PersistentVolumeClaim" && !max.contains_key("storage") && !min.contains_key("storage")
    {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(Error::required(&path.child("limits"), why));
    }
    // Each entry: the error field, the list of smaller amounts, the list of larger ones, and their names in the
    // message.
    for (field, low, high, low_words, high_words) in [
        ("min", &min, &max, "min value", "max value"),
        ("defaultRequest", &min, &request, "min value", "default request value"),
        ("defaultRequest", &request, &max, "default request value", "max value"),
        ("defaultRequest", &request, &default, "default request value", "default limit value"),
        ("default", &min, &default, "min value", "default value"),
        ("default", &default, &max, "default value", "max value"),
    ] {
        for (name, small) in low {
            let Some(large) = high.get(name).filter(|large| small > large) else { continue };
            let shown = if field == "defaultRequest" {
                &request[name]
            } else if field == "default" && high_words == "max value" {
                large
            } else {
                small
            };
            let problem = format!("{low_words} {small} is greater than {high_words} {large}");
            errors.push(Error::invalid(&path.child(field).key(name), shown.to_string(), problem));
        }
    }
    for (name, ratio) in ratio.iter().filter(|(_, r)| r.nanos() < 1_000_000_000) {
        let path = path.child("maxLimitRequestRatio").key(name);
        errors.push(Error::invalid(&path, ratio.to_string(), format!("ratio {ratio} is less than 1")));
    }
}
