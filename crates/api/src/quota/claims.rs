//! The usage of claims: storage by storage class, and devices by device class.

use crate::core::storage_class_name::CLASS_ANNOTATION;
use knarr_apimachinery::quantity::{Format, Quantity};
use serde_json::Value;

use super::amounts::{Amounts, add, count, list, raise};
use super::scopes::Requirement;

const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";
const COUNT_VOLUMES: &str = "count/persistentvolumeclaims";
const COUNT_DEVICES: &str = "count/resourceclaims.resource.k8s.io";
const DEVICES_OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The number of devices counted for a request for all devices.
const MOST_DEVICES: i64 = 32;

pub fn volumes_track(name: &str) -> bool {
    let of_class = name.split_once(OF_CLASS).map(|(_, rest)| rest);
    matches!(name, CLAIMS | STORAGE | COUNT_VOLUMES) || matches!(of_class, Some(CLAIMS | STORAGE))
}

fn class_of(claim: &Value) -> &str {
    match claim["metadata"]["annotations"][CLASS_ANNOTATION].as_str() {
        Some(class) => class,
        None => claim["spec"]["storageClassName"].as_str().unwrap_or(""),
    }
}

/// Rounds up to whole bytes.
fn rounded(amount: &Quantity) -> Quantity {
    if amount.nanos() % 1_000_000_000 == 0 {
        return amount.clone();
    }
    let format = if amount.format() == Format::BinarySI { Format::BinarySI } else { Format::DecimalSI };
    Quantity::new(amount.value(), format)
}

pub fn volume_usage(claim: &Value) -> Amounts {
    let mut sum = Amounts::from([(CLAIMS.to_owned(), count(1)), (COUNT_VOLUMES.to_owned(), count(1))]);
    let class = class_of(claim);
    if !class.is_empty() {
        sum.insert(format!("{class}{OF_CLASS}{CLAIMS}"), count(1));
    }
    let requested = list(&claim["spec"]["resources"]["requests"]).remove("storage");
    let Some(mut storage) = requested else { return sum };
    // An expansion that is in progress or was given up keeps its allocated size.
    if let Some(allocated) = list(&claim["status"]["allocatedResources"]).remove("storage")
        && allocated > storage
    {
        storage = allocated;
    }
    let storage = rounded(&storage);
    if !class.is_empty() {
        sum.insert(format!("{class}{OF_CLASS}{STORAGE}"), storage.clone());
    }
    sum.insert(STORAGE.to_owned(), storage);
    sum
}

/// Returns the volume attributes classes that the claim requests, has, or is being changed to.
fn attribute_classes(claim: &Value) -> Vec<&str> {
    let names = [
        &claim["spec"]["volumeAttributesClassName"],
        &claim["status"]["currentVolumeAttributesClassName"],
        &claim["status"]["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    let mut names: Vec<&str> =
        names.into_iter().filter_map(Value::as_str).filter(|n| !n.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns whether a change of a claim's status changes its usage.
pub fn counts_anew(new: &Value, old: &Value) -> bool {
    let allocated = |claim: &Value| list(&claim["status"]["allocatedResources"]).remove("storage");
    allocated(new) != allocated(old) || attribute_classes(new) != attribute_classes(old)
}

pub fn in_scope(requirement: &Requirement, claim: &Value) -> bool {
    if requirement.scope != "VolumeAttributesClass" {
        return false;
    }
    let classes = attribute_classes(claim);
    if classes.is_empty() {
        return requirement.holds(None);
    }
    classes.into_iter().any(|class| requirement.holds(Some(class)))
}

pub fn devices_track(name: &str) -> bool {
    name == COUNT_DEVICES || name.ends_with(DEVICES_OF_CLASS)
}

pub fn device_usage(claim: &Value) -> Amounts {
    let mut sum = Amounts::from([(COUNT_DEVICES.to_owned(), count(1))]);
    let number = |request: &Value| match request["allocationMode"].as_str() {
        Some("All") => MOST_DEVICES,
        Some("ExactCount") => request["count"].as_i64().unwrap_or(1),
        _ => 0,
    };
    let of = |request: &Value| {
        let class = request["deviceClassName"].as_str().unwrap_or("");
        Amounts::from([(format!("{class}{DEVICES_OF_CLASS}"), count(number(request)))])
    };
    for request in claim["spec"]["devices"]["requests"].as_array().into_iter().flatten() {
        let mut most = Amounts::new();
        match request["firstAvailable"].as_array().filter(|list| !list.is_empty()) {
            // Alternatives: counts the maximum of each device class.
            Some(list) => list.iter().for_each(|r| raise(&mut most, &of(r))),
            None if request["exactly"].is_object() => most = of(&request["exactly"]),
            None => {}
        }
        add(&mut sum, &most);
    }
    sum
}
