//! The status of a claim: allocated devices, the consumers they are reserved for, and the drivers' reports.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use super::claims::{CONFIGURATIONS_MAX, RequestNames};
use super::lists::{bounded, set};
use super::{configuration, device, identifiers, selection, taints};
use crate::addresses;
use crate::conditions;
use crate::validate;

const RESERVED_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
const CONDITIONS_MAX: usize = 8;
const IPS_MAX: usize = 16;
const INTERFACE_MAX_BYTES: usize = 256;
const HARDWARE_ADDRESS_MAX_BYTES: usize = 128;

/// Returns `driver/pool/device`, followed by the share if there is one.
fn device_id(driver: &str, pool: &str, device: &str, share: Option<&String>) -> String {
    let share = share.map(|s| format!("/{s}")).unwrap_or_default();
    format!("{driver}/{pool}/{device}{share}")
}

pub fn validate_update(new: &api::ResourceClaim, old: &api::ResourceClaim) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("status");
    let names = RequestNames::of(&new.spec.clone().unwrap_or_default());
    let (now, before) = (new.status.clone().unwrap_or_default(), old.status.clone().unwrap_or_default());
    let reserved = now.reserved_for.as_deref().unwrap_or_default();
    let at = path.child("reservedFor");
    set(
        &mut errors,
        &at,
        reserved,
        RESERVED_MAX,
        |r| r.uid.clone(),
        |errors, path, user| {
            validate::required(errors, &path.child("resource"), &user.resource);
            validate::required(errors, &path.child("name"), &user.name);
            validate::required(errors, &path.child("uid"), &user.uid);
        },
    );
    validate_devices(&mut errors, &path.child("devices"), &now);
    if !reserved.is_empty() {
        let before = before.reserved_for.as_deref().unwrap_or_default();
        if now.allocation.is_none() {
            errors.push(Error::forbidden(&at, "may not be specified when `allocated` is not set"));
        } else if new.metadata.deletion_timestamp.is_some() && reserved.iter().any(|r| !before.contains(r)) {
            let problem =
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(Error::forbidden(&at, problem));
        }
    }
    let path = path.child("allocation");
    match (&now.allocation, &before.allocation) {
        (Some(now), Some(before)) => validate::immutable(&mut errors, &path, now, before),
        (Some(now), None) => validate_allocation(&mut errors, &path, now, &names),
        _ => {}
    }
    errors
}

fn validate_devices(errors: &mut ErrorList, path: &Path, status: &api::ResourceClaimStatus) {
    let results = status.allocation.iter().flat_map(|a| &a.devices).flat_map(|d| d.results.iter().flatten());
    let allocated: BTreeSet<String> =
        results.map(|r| device_id(&r.driver, &r.pool, &r.device, r.share_id.as_ref())).collect();
    let devices = status.devices.as_deref().unwrap_or_default();
    let id = |d: &api::AllocatedDeviceStatus| device_id(&d.driver, &d.pool, &d.device, d.share_id.as_ref());
    set(errors, path, devices, usize::MAX, id, |errors, path, device| {
        identifiers::driver(errors, &path.child("driver"), &device.driver);
        identifiers::pool(errors, &path.child("pool"), &device.pool);
        validate::dns_label(errors, &path.child("device"), &device.device);
        if let Some(share) = &device.share_id {
            identifiers::share_id(errors, &path.child("shareID"), share);
        }
        if !allocated.contains(&id(device)) {
            // The message shows upstream's internal Go type.
            let [driver, pool, name] = [&device.driver, &device.pool, &device.device].map(validate::shown);
            let share = validate::shown(&device.share_id.clone().unwrap_or_default());
            let text = format!(r#"{{"Driver":{driver},"Pool":{pool},"Device":{name},"ShareID":{share}}}"#);
            errors.push(validate::invalid_text(path, &text, "must be an allocated device in the claim"));
        }
        let listed = device.conditions.as_deref().unwrap_or_default();
        if listed.len() > CONDITIONS_MAX {
            errors.push(Error::too_many(&path.child("conditions"), listed.len(), CONDITIONS_MAX));
        }
        conditions::validate(errors, &path.child("conditions"), listed);
        if let Some(data) = device.data.as_ref().filter(|d| !d.0.is_null()) {
            configuration::parameters(errors, &path.child("data"), data);
        }
        if let Some(network) = &device.network_data {
            validate_network(errors, &path.child("networkData"), network);
        }
    });
}

fn validate_network(errors: &mut ErrorList, path: &Path, data: &api::NetworkDeviceData) {
    let mut bounded_text = |field: &str, text: &Option<String>, most: usize| {
        if text.as_ref().is_some_and(|t| t.len() > most) {
            errors.push(Error::too_long(&path.child(field), most));
        }
    };
    bounded_text("interfaceName", &data.interface_name, INTERFACE_MAX_BYTES);
    bounded_text("hardwareAddress", &data.hardware_address, HARDWARE_ADDRESS_MAX_BYTES);
    let ips = data.ips.as_deref().unwrap_or_default();
    set(errors, &path.child("ips"), ips, IPS_MAX, String::clone, |errors, path, ip| {
        addresses::cidr(errors, path, ip);
    });
}

fn validate_allocation(
    errors: &mut ErrorList,
    path: &Path,
    allocation: &api::AllocationResult,
    names: &RequestNames,
) {
    let devices = allocation.devices.clone().unwrap_or_default();
    let at = path.child("devices");
    let results = devices.results.as_deref().unwrap_or_default();
    bounded(errors, &at.child("results"), results, RESULTS_MAX, |errors, path, result| {
        validate_result(errors, path, result, names);
    });
    let config = devices.config.as_deref().unwrap_or_default();
    bounded(errors, &at.child("config"), config, 2 * CONFIGURATIONS_MAX, |errors, path, config| {
        validate::one_of(errors, &path.child("source"), &config.source, &["FromClaim", "FromClass"]);
        names.references(errors, &path.child("requests"), config.requests.as_ref());
        configuration::validate(errors, path, config.opaque.as_ref());
    });
    if let Some(selector) = &allocation.node_selector {
        selection::node_selector(errors, &path.child("nodeSelector"), selector);
    }
}

fn validate_result(
    errors: &mut ErrorList,
    path: &Path,
    result: &api::DeviceRequestAllocationResult,
    names: &RequestNames,
) {
    names.reference(errors, &path.child("request"), &result.request);
    identifiers::driver_of_any_case(errors, &path.child("driver"), &result.driver);
    identifiers::pool(errors, &path.child("pool"), &result.pool);
    validate::dns_label(errors, &path.child("device"), &result.device);
    let binding = result.binding_conditions.as_deref().unwrap_or_default();
    let failure = result.binding_failure_conditions.as_deref().unwrap_or_default();
    device::validate_binding(errors, path, binding, failure);
    for (i, toleration) in result.tolerations.iter().flatten().enumerate() {
        taints::validate_toleration(errors, &path.child("tolerations").index(i), toleration);
    }
    if let Some(share) = &result.share_id {
        identifiers::share_id(errors, &path.child("shareID"), share);
    }
    let skipped = result.skip_node_operations.as_deref().unwrap_or_default();
    selection::skipped_operations(errors, &path.child("skipNodeOperations"), skipped);
}
