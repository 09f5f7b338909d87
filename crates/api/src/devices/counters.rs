//! Counters that devices of a pool share.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use super::lists::set;
use crate::validate;

const SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
const CONSUMPTIONS_MAX: usize = 2;

pub fn validate_sets(errors: &mut ErrorList, path: &Path, sets: &[api::CounterSet]) {
    set(
        errors,
        path,
        sets,
        SETS_MAX,
        |s| s.name.clone(),
        |errors, path, set| {
            name(errors, &path.child("name"), &set.name);
            counters(errors, &path.child("counters"), &set.counters);
        },
    );
}

pub fn validate_consumptions(errors: &mut ErrorList, path: &Path, list: &[api::DeviceCounterConsumption]) {
    set(
        errors,
        path,
        list,
        CONSUMPTIONS_MAX,
        |c| c.counter_set.clone(),
        |errors, path, consumption| {
            name(errors, &path.child("counterSet"), &consumption.counter_set);
            counters(errors, &path.child("counters"), &consumption.counters);
        },
    );
}

fn name(errors: &mut ErrorList, path: &Path, name: &str) {
    if validate::required(errors, path, name) {
        validate::dns_label(errors, path, name);
    }
}

fn counters(errors: &mut ErrorList, path: &Path, counters: &BTreeMap<String, api::Counter>) {
    if counters.is_empty() {
        errors.push(Error::required(path, ""));
    }
    if counters.len() > COUNTERS_MAX {
        errors.push(Error::too_many(path, counters.len(), COUNTERS_MAX));
        return;
    }
    counters.keys().for_each(|name| validate::dns_label(errors, path, name));
}
