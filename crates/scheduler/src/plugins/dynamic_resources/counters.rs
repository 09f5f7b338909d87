//! Counters shared by the devices of a pool: how much the partitions of a device consume of it.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::Device;
use knarr_apimachinery::quantity::Quantity;

use super::pools::{Pool, devices};
use super::taken::{DeviceId, Taken};

/// The amounts left in a pool, by counter set and counter; negative when more is in use than exists.
type Left<'a> = BTreeMap<(&'a str, &'a str), Quantity>;

/// The amounts left in each pool, computed on first use.
pub struct Counters<'a> {
    pools: Vec<Option<Left<'a>>>,
}

fn consumed(device: &Device) -> impl Iterator<Item = ((&str, &str), Quantity)> {
    device.consumes_counters.iter().flatten().flat_map(|consumption| {
        let set = consumption.counter_set.as_str();
        consumption.counters.iter().map(move |(name, counter)| {
            let amount = Quantity::parse(&counter.value.0).ok();
            ((set, name.as_str()), amount.unwrap_or_else(|| Quantity::new(0, DECIMAL)))
        })
    })
}

const DECIMAL: knarr_apimachinery::quantity::Format = knarr_apimachinery::quantity::Format::DecimalSI;

impl<'a> Counters<'a> {
    pub fn new(pools: usize) -> Self {
        Self { pools: vec![None; pools] }
    }

    /// Reserves what the device consumes, if all counters of its pool have enough left.
    pub fn reserve(&mut self, pool: &Pool<'a>, at: usize, device: &'a Device, taken: &Taken) -> bool {
        let left = self.pools[at].get_or_insert_with(|| left_in(pool, taken));
        for (counter, amount) in consumed(device) {
            if let Some(left) = left.get_mut(&counter) {
                left.sub(&amount);
            }
        }
        let enough = left.values().all(|left| left.signum() >= 0);
        if !enough {
            self.release(at, device);
        }
        enough
    }

    /// Releases what the device consumes.
    pub fn release(&mut self, at: usize, device: &'a Device) {
        let Some(left) = &mut self.pools[at] else { return };
        for (counter, amount) in consumed(device) {
            if let Some(left) = left.get_mut(&counter) {
                left.add(&amount);
            }
        }
    }
}

fn left_in<'a>(pool: &Pool<'a>, taken: &Taken) -> Left<'a> {
    let mut left = Left::new();
    for (set, counters) in &pool.counters {
        for (name, counter) in &counters.counters {
            let value = Quantity::parse(&counter.value.0).ok();
            left.insert((set, name), value.unwrap_or_else(|| Quantity::new(0, DECIMAL)));
        }
    }
    for slice in pool.here.iter().chain(&pool.elsewhere) {
        for device in devices(slice).iter().filter(|d| d.consumes_counters.is_some()) {
            let (driver, name) = pool.id;
            let (driver, pool) = (driver.to_owned(), name.to_owned());
            let id = DeviceId { driver, pool, device: device.name.clone() };
            if !taken.whole.contains(&id) && !taken.shared.contains_key(&id) {
                continue;
            }
            for (counter, amount) in consumed(device) {
                if let Some(left) = left.get_mut(&counter) {
                    left.sub(&amount);
                }
            }
        }
    }
    left
}
