//! The capacity of a device, and the portions in which it may be requested.

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::quantity::Quantity;

const VALUES_MAX: usize = 10;

type ApiQuantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Returns the amount in billionths; decoding has already checked the quantity.
fn nanos(quantity: &ApiQuantity) -> i128 {
    Quantity::parse(&quantity.0).map(|q| q.nanos()).unwrap_or(0)
}

pub fn validate(errors: &mut ErrorList, path: &Path, capacity: &api::DeviceCapacity, shared: bool) {
    let Some(policy) = &capacity.request_policy else { return };
    let path = path.child("requestPolicy");
    if !shared {
        errors.push(Error::forbidden(&path, "allowMultipleAllocations must be true"));
        return;
    }
    let values = policy.valid_values.as_deref().unwrap_or_default();
    match (values.is_empty(), &policy.valid_range) {
        (false, Some(_)) => {
            let problem = r#"exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time"#;
            errors.push(Error::forbidden(&path, problem));
        }
        (false, None) => match &policy.default {
            None => required_default(errors, &path, "validValues"),
            Some(default) => discrete(errors, &path.child("validValues"), default, &capacity.value, values),
        },
        (true, Some(range)) => match &policy.default {
            None => required_default(errors, &path, "validRange"),
            Some(default) => within(errors, &path.child("validRange"), default, &capacity.value, range),
        },
        (true, None) => {}
    }
}

fn required_default(errors: &mut ErrorList, path: &Path, with: &str) {
    errors.push(Error::required(&path.child("default"), format!("required when {with} is defined")));
}

fn discrete(
    errors: &mut ErrorList,
    path: &Path,
    default: &ApiQuantity,
    most: &ApiQuantity,
    values: &[ApiQuantity],
) {
    for (i, pair) in values.windows(2).enumerate() {
        if nanos(&pair[0]) > nanos(&pair[1]) {
            let problem = "values must be sorted in ascending order";
            errors.push(Error::invalid(&path.index(i + 1), pair[1].0.as_str(), problem));
        }
    }
    if values.len() > VALUES_MAX {
        errors.push(Error::too_many(path, values.len(), VALUES_MAX));
    } else {
        for (i, value) in values.iter().enumerate() {
            if nanos(value) > nanos(most) {
                let problem = format!("option is larger than capacity value: {}", most.0);
                errors.push(Error::invalid(&path.index(i), value.0.as_str(), problem));
            }
        }
    }
    if !values.iter().any(|v| nanos(v) == nanos(default)) {
        let problem = "default value is not valid according to the requestPolicy";
        errors.push(Error::invalid(path, default.0.as_str(), problem));
    }
}

fn within(
    errors: &mut ErrorList,
    path: &Path,
    default: &ApiQuantity,
    most: &ApiQuantity,
    range: &api::CapacityRequestPolicyRange,
) {
    let mut must = |fine: bool, field: &str, value: &ApiQuantity, problem: String| {
        if !fine {
            errors.push(Error::invalid(&path.child(field), value.0.as_str(), problem));
        }
    };
    let min = &range.min;
    let larger = |what: &str| format!("{what} is larger than capacity value: {}", most.0);
    must(nanos(min) <= nanos(most), "min", min, larger("min"));
    must(nanos(default) >= nanos(min), "default", default, format!("default is less than min: {}", min.0));
    if let Some(max) = &range.max {
        must(nanos(min) <= nanos(max), "max", min, format!("min is larger than max: {}", max.0));
        must(nanos(max) <= nanos(most), "max", max, larger("max"));
        must(
            nanos(default) <= nanos(max),
            "default",
            default,
            format!("default is more than max: {}", max.0),
        );
    }
    let Some(step) = &range.step else { return };
    if nanos(step) <= 0 {
        must(false, "step", step, "must be greater than zero".to_owned());
        return;
    }
    let mut values = vec![default];
    values.extend(range.max.as_ref());
    for value in values {
        let problem = format!("value is not a multiple of a given step ({}) from ({})", step.0, min.0);
        must((nanos(value) - nanos(min)) % nanos(step) == 0, "step", value, problem);
    }
}
