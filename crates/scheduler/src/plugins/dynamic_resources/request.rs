//! A request for devices, or one of its alternatives.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClass, DeviceRequest, DeviceSelector, DeviceTaint, DeviceToleration, ResourceClaim,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_api::kind::Kind;

pub const EXACT_COUNT: &str = "ExactCount";
pub const ALL: &str = "All";

/// The common form of requests and alternatives.
#[derive(Clone)]
pub struct Ask<'a> {
    pub name: &'a str,
    /// For an alternative: the name of its request.
    pub parent: Option<&'a str>,
    pub class_name: &'a str,
    pub mode: &'a str,
    pub count: i64,
    pub admin_access: Option<bool>,
    pub selectors: &'a [DeviceSelector],
    pub tolerations: Option<&'a Vec<DeviceToleration>>,
    pub capacity: Option<&'a BTreeMap<String, ApiQuantity>>,
    pub has_derived_attributes: bool,
}

/// A request with its class.
pub struct Wanted<'a> {
    pub ask: Ask<'a>,
    pub class: Arc<DeviceClass>,
    /// The number of devices.
    pub count: usize,
    /// For allocation mode All: the devices, as indexes of the candidates.
    pub all: Option<Vec<usize>>,
}

impl<'a> Ask<'a> {
    /// Returns the request itself or its alternatives in order; empty for unknown types of requests.
    pub fn of(request: &'a DeviceRequest) -> Vec<Self> {
        if let Some(subs) = request.first_available.as_ref().filter(|s| !s.is_empty()) {
            let asks = subs.iter().map(|sub| Self {
                name: &sub.name,
                parent: Some(&request.name),
                class_name: &sub.device_class_name,
                mode: sub.allocation_mode.as_deref().unwrap_or(EXACT_COUNT),
                count: sub.count.unwrap_or(1),
                admin_access: None,
                selectors: sub.selectors.as_deref().unwrap_or_default(),
                tolerations: sub.tolerations.as_ref(),
                capacity: sub.capacity.as_ref().and_then(|c| c.requests.as_ref()),
                has_derived_attributes: sub.derived_attributes.as_ref().is_some_and(|d| !d.is_empty()),
            });
            return asks.collect();
        }
        let exactly = request.exactly.iter().map(|exactly| Self {
            name: &request.name,
            parent: None,
            class_name: &exactly.device_class_name,
            mode: exactly.allocation_mode.as_deref().unwrap_or(EXACT_COUNT),
            count: exactly.count.unwrap_or(1),
            admin_access: exactly.admin_access,
            selectors: exactly.selectors.as_deref().unwrap_or_default(),
            tolerations: exactly.tolerations.as_ref(),
            capacity: exactly.capacity.as_ref().and_then(|c| c.requests.as_ref()),
            has_derived_attributes: exactly.derived_attributes.as_ref().is_some_and(|d| !d.is_empty()),
        });
        exactly.collect()
    }

    /// The name in allocation results: `request`, or `request/alternative`.
    pub fn full_name(&self) -> String {
        match self.parent {
            Some(parent) => format!("{parent}/{}", self.name),
            None => self.name.to_owned(),
        }
    }

    pub fn is_admin(&self) -> bool {
        self.admin_access == Some(true)
    }

    /// The name of the request, and that of the alternative.
    pub fn names(&self) -> (&'a str, Option<&'a str>) {
        match self.parent {
            Some(parent) => (parent, Some(self.name)),
            None => (self.name, None),
        }
    }

    /// Returns whether one of these taints excludes the device.
    pub fn is_kept_off(&self, taints: &[DeviceTaint]) -> bool {
        let matter = taints.iter().filter(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"));
        { matter }.any(|taint| !self.tolerations.into_iter().flatten().any(|t| tolerates(t, taint)))
    }
}

/// Returns whether the toleration covers the taint, whatever the taint's effect is.
pub fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let covers = |wanted: &Option<String>, has: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == has)
    };
    covers(&toleration.effect, &taint.effect)
        && covers(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => text(&toleration.value) == text(&taint.value),
            "Exists" => true,
            _ => false,
        }
}

/// The devices that a claim requests.
pub fn asked_of(claim: &ResourceClaim) -> Option<&DeviceClaim> {
    claim.spec.as_ref()?.devices.as_ref()
}

/// The requests of a claim.
pub fn requests(claim: &ResourceClaim) -> &[DeviceRequest] {
    asked_of(claim).and_then(|d| d.requests.as_deref()).unwrap_or_default()
}

/// `namespace/name`.
pub fn full_name(claim: &ResourceClaim) -> String {
    format!("{}/{}", claim.namespace(), claim.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tolerations_cover_taints() {
        let taint: DeviceTaint =
            serde_json::from_value(json!({"key": "k", "value": "v", "effect": "NoSchedule"})).unwrap();
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Equal", "value": "v"}), true),
            (json!({"key": "k", "value": "v", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "l", "operator": "Exists"}), false),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"operator": "Gt"}), false),
        ] {
            let toleration: DeviceToleration = serde_json::from_value(toleration).unwrap();
            assert_eq!(tolerates(&toleration, &taint), expected, "{toleration:?}");
        }
    }
}
