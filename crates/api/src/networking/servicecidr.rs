//! ServiceCIDR: a range of addresses for services.

use k8s_openapi::api::networking::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::addresses::{self, Network};
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
    ..Resource::stored(api::ServiceCIDR::RESOURCE, "ServiceCIDRList", "servicecidr", &Rules)
};

const COLUMNS: &[Column] = &[NAME, Column::new("CIDRs", "string", "The address ranges for services."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ServiceCIDR>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(ranges(&o).join(",")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

fn ranges(cidr: &api::ServiceCIDR) -> Vec<String> {
    cidr.spec.clone().and_then(|s| s.cidrs).unwrap_or_default()
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = ErrorList::new();
        if let Ok(cidr) = object.typed::<api::ServiceCIDR>() {
            validate_ranges(&mut errors, &ranges(&cidr));
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let mut errors = ErrorList::new();
        if let (None, Ok(new), Ok(old)) =
            (subresource, new.typed::<api::ServiceCIDR>(), old.typed::<api::ServiceCIDR>())
        {
            ranges_stay(&mut errors, &ranges(&new), &ranges(&old));
        }
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn path() -> Path {
    Path::new("spec").child("cidrs")
}

fn validate_ranges(errors: &mut ErrorList, ranges: &[String]) {
    let path = path();
    if ranges.is_empty() {
        errors.push(Error::required(&path, "at least one CIDR required"));
        return;
    }
    if ranges.len() > 2 {
        // The message shows upstream's internal Go type.
        let text = format!(r#"{{"CIDRs":{}}}"#, validate::shown(&ranges));
        errors.push(validate::invalid_text(&path, &text, "may only hold up to 2 values"));
        return;
    }
    for (i, range) in ranges.iter().enumerate() {
        addresses::canonical_cidr(errors, &path.index(i), range);
    }
    let families: Vec<bool> =
        ranges.iter().filter_map(|r| Network::parse(r)).map(|n| n.address.is_ipv4()).collect();
    if let [first, second] = families[..]
        && first == second
    {
        let problem =
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(Error::invalid(&path, validate::shown(&ranges), problem));
    }
}

/// Requires that ranges do not change; one range may get a second one.
fn ranges_stay(errors: &mut ErrorList, new: &[String], old: &[String]) {
    let path = path();
    let same = |errors: &mut ErrorList| {
        for (i, (new, old)) in new.iter().zip(old).enumerate() {
            validate::immutable(errors, &path.index(i), new, old);
        }
    };
    match (old.len(), new.len()) {
        (before, now) if before == now => same(errors),
        (1, 2) => {
            same(errors);
            validate_ranges(errors, new);
        }
        _ => errors.push(Error::invalid(&path, validate::shown(&new), validate::IMMUTABLE)),
    }
}
