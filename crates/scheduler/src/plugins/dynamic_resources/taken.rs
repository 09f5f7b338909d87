//! Existing allocations: devices that belong to one claim, and the amounts that claims consume of shared devices.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use knarr_apimachinery::quantity::Quantity;

use super::capacity::Amounts;

/// A device, identified by driver, pool and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    pub driver: String,
    pub pool: String,
    pub device: String,
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// The devices in use.
#[derive(Debug, Default)]
pub struct Taken {
    /// Devices that belong to one claim alone.
    pub whole: HashSet<DeviceId>,
    /// Shared devices, with the sum of the amounts that claims consume.
    pub shared: HashMap<DeviceId, Amounts>,
}

/// The devices of the claim's allocation; empty if it is not allocated.
pub fn results(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
    allocation.and_then(|a| a.devices.as_ref()?.results.as_deref()).unwrap_or_default()
}

impl Taken {
    /// Adds the devices of a claim. Devices with admin access do not count as in use.
    pub fn add(&mut self, claim: &ResourceClaim) {
        for result in results(claim).iter().filter(|r| r.admin_access != Some(true)) {
            let id = DeviceId {
                driver: result.driver.clone(),
                pool: result.pool.clone(),
                device: result.device.clone(),
            };
            if result.share_id.is_none() {
                self.whole.insert(id);
                continue;
            }
            let amounts = self.shared.entry(id).or_default();
            for (name, amount) in result.consumed_capacity.iter().flatten() {
                let Ok(amount) = Quantity::parse(&amount.0) else { continue };
                match amounts.get_mut(name) {
                    Some(sum) => sum.add(&amount),
                    None => drop(amounts.insert(name.clone(), amount)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_take_devices_whole_or_in_part() {
        let claim: ResourceClaim =
            serde_json::from_value(json!({"metadata": {}, "spec": {}, "status": {"allocation":
            {"devices": {"results": [
                {"request": "r", "driver": "d", "pool": "p", "device": "whole"},
                {"request": "r", "driver": "d", "pool": "p", "device": "watched", "adminAccess": true},
                {"request": "r", "driver": "d", "pool": "p", "device": "part", "shareID": "1",
                    "consumedCapacity": {"memory": "1Gi"}},
                {"request": "r", "driver": "d", "pool": "p", "device": "part", "shareID": "2",
                    "consumedCapacity": {"memory": "2Gi"}},
            ]}}}}))
            .unwrap();
        let mut taken = Taken::default();
        taken.add(&claim);
        let id = |device: &str| DeviceId { driver: "d".into(), pool: "p".into(), device: device.into() };
        assert_eq!(taken.whole, HashSet::from([id("whole")]));
        assert_eq!(taken.shared.len(), 1);
        assert_eq!(taken.shared[&id("part")]["memory"], Quantity::parse("3Gi").unwrap());
    }
}
