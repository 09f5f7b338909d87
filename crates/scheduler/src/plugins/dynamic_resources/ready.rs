//! Binding conditions: whether devices that must be prepared before a pod can use them are ready.

use std::time::Duration;

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kind::Kind;

use super::names::allocation;
use super::taken::results;

fn waits(result: &DeviceRequestAllocationResult) -> bool {
    result.binding_conditions.as_ref().is_some_and(|c| !c.is_empty())
}

/// Returns whether any of the claim's devices has binding conditions.
pub fn has_conditions(claim: &ResourceClaim) -> bool {
    results(claim).iter().any(waits)
}

fn status_of<'a>(
    claim: &'a ResourceClaim,
    result: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let mut all = claim.status.as_ref()?.devices.iter().flatten();
    all.find(|d| d.device == result.device && d.driver == result.driver && d.pool == result.pool)
}

fn met<'a>(device: &'a AllocatedDeviceStatus, condition: &str) -> Option<&'a Condition> {
    let mut all = device.conditions.iter().flatten();
    all.find(|c| c.type_ == condition && c.status == "True")
}

/// Returns whether all of the claim's devices are ready. The error says which device failed.
pub fn is_ready(claim: &ResourceClaim) -> Result<bool, String> {
    if allocation(claim).is_none() {
        return Ok(false);
    }
    for result in results(claim).iter().filter(|r| waits(r)) {
        let Some(device) = status_of(claim, result) else { return Ok(false) };
        for failure in result.binding_failure_conditions.iter().flatten() {
            if let Some(met) = met(device, failure) {
                let (name, reason, message) = (claim.name(), &met.reason, &met.message);
                return Err(format!(
                    "device binding failed: claim={name}, reason={reason}, message={message:?}"
                ));
            }
        }
        if !result.binding_conditions.iter().flatten().all(|c| met(device, c).is_some()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the time for preparing the claim's devices is over.
pub fn is_late(claim: &ResourceClaim, now: Timestamp, limit: Duration) -> bool {
    let made = allocation(claim).and_then(|a| a.allocation_timestamp.as_ref());
    let waits = results(claim).iter().any(|r| r.binding_conditions.is_some());
    made.is_some_and(|made| waits && made.0.saturating_add(limit).is_ok_and(|until| until < now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn devices_are_prepared_or_late() {
        let claim = |conditions: &[&str]| -> ResourceClaim {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|c| {
                    json!({"type": c, "status": "True", "reason": "R", "message": "m",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
                })
                .collect();
            serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": {
                "allocation": {"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {"results": [
                    {"request": "r", "driver": "d", "pool": "p", "device": "x",
                        "bindingConditions": ["A", "B"], "bindingFailureConditions": ["F"]}]}},
                "devices": [{"driver": "d", "pool": "p", "device": "x", "conditions": conditions}]}}))
            .unwrap()
        };
        assert_eq!(is_ready(&claim(&[])), Ok(false));
        assert_eq!(is_ready(&claim(&["A"])), Ok(false));
        assert_eq!(is_ready(&claim(&["A", "B"])), Ok(true));
        assert_eq!(
            is_ready(&claim(&["F"])),
            Err("device binding failed: claim=c, reason=R, message=\"m\"".into())
        );
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let limit = Duration::from_secs(60);
        assert!(!is_late(&claim(&[]), at("2026-01-01T00:00:59Z"), limit));
        assert!(is_late(&claim(&[]), at("2026-01-01T00:01:01Z"), limit));
        assert!(has_conditions(&claim(&[])));
    }
}
