//! Which pods must be evicted because of taints of their devices, and when: a pure function of claims, slices and
//! rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    Device, DeviceRequestAllocationResult, DeviceTaintRule, DeviceToleration, ResourceClaim, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::devices::resourceclaim::foreign;
use knarr_api::kind::Kind;

pub const NO_EXECUTE: &str = "NoExecute";

/// The objects that the decision looks up.
pub trait Seen {
    /// Returns all slices of a pool, by driver and name.
    fn pool(&self, driver: &str, pool: &str) -> Vec<Arc<ResourceSlice>>;
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>>;
}

/// When a pod must be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    pub when: Timestamp,
    /// The uids of the rules that contribute to the eviction.
    pub rules: BTreeSet<String>,
}

impl Eviction {
    fn join(known: &mut Option<Self>, when: Timestamp, rules: impl IntoIterator<Item = String>) {
        let eviction = known.get_or_insert_with(|| Self { when, rules: BTreeSet::new() });
        eviction.when = eviction.when.min(when);
        eviction.rules.extend(rules);
    }
}

/// A taint with effect NoExecute.
struct Taint<'a> {
    key: &'a str,
    value: &'a str,
    since: Timestamp,
    rule: Option<&'a DeviceTaintRule>,
}

pub fn allocated(claim: &ResourceClaim) -> &[DeviceRequestAllocationResult] {
    let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
    allocation.and_then(|a| a.devices.as_ref()?.results.as_deref()).unwrap_or_default()
}

/// Returns whether the rule selects the device. A rule without a selector selects none.
pub fn selects(rule: &DeviceTaintRule, driver: &str, pool: &str, device: &str) -> bool {
    let Some(selector) = &rule.spec.device_selector else { return false };
    let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|w| w == has);
    is(&selector.driver, driver) && is(&selector.pool, pool) && is(&selector.device, device)
}

/// Returns the valid slices of a pool: those of its newest generation.
pub fn newest(slices: &[Arc<ResourceSlice>]) -> impl Iterator<Item = &Arc<ResourceSlice>> {
    let generation = slices.iter().map(|s| s.spec.pool.generation).max();
    slices.iter().filter(move |s| Some(s.spec.pool.generation) == generation)
}

fn since(time: &Option<Time>) -> Option<Timestamp> {
    time.as_ref().map(|t| t.0)
}

fn of_device(device: &Device) -> impl Iterator<Item = Taint<'_>> {
    let taints = device.taints.iter().flatten().filter(|t| t.effect == NO_EXECUTE);
    taints.filter_map(|t| {
        let value = t.value.as_deref().unwrap_or_default();
        Some(Taint { key: &t.key, value, since: since(&t.time_added)?, rule: None })
    })
}

fn of_rule(rule: &DeviceTaintRule) -> Option<Taint<'_>> {
    let taint = &rule.spec.taint;
    let value = taint.value.as_deref().unwrap_or_default();
    Some(Taint { key: &taint.key, value, since: since(&taint.time_added)?, rule: Some(rule) })
}

fn tolerates(toleration: &DeviceToleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let key = text(&toleration.key);
    toleration.effect.as_deref() == Some(NO_EXECUTE)
        && (key.is_empty() || key == taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => text(&toleration.value) == taint.value,
            "Exists" => true,
            _ => false,
        }
}

/// Returns when the taint ends the use of the device; `None` if it is tolerated forever.
fn deadline(taint: &Taint, tolerations: &[DeviceToleration]) -> Option<Timestamp> {
    let mut least: Option<i64> = None;
    for toleration in tolerations.iter().filter(|t| tolerates(t, taint)) {
        let seconds = toleration.toleration_seconds?.max(0);
        least = Some(least.map_or(seconds, |known| known.min(seconds)));
    }
    // A time that overflows the calendar is never reached.
    taint.since.checked_add(SignedDuration::from_secs(least.unwrap_or(0))).ok()
}

/// Returns when the consumers of the claim must be evicted, under these rules of effect NoExecute.
pub fn of_claim(claim: &ResourceClaim, seen: &dyn Seen, rules: &[Arc<DeviceTaintRule>]) -> Option<Eviction> {
    let mut eviction = None;
    for result in allocated(claim) {
        let slices = seen.pool(&result.driver, &result.pool);
        let devices = newest(&slices).flat_map(|s| s.spec.devices.iter().flatten());
        let device = { devices }.find(|d| d.name == result.device);
        let by_rules = rules.iter().filter(|r| selects(r, &result.driver, &result.pool, &result.device));
        let taints = device.into_iter().flat_map(of_device).chain(by_rules.filter_map(|r| of_rule(r)));
        let tolerations = result.tolerations.as_deref().unwrap_or_default();
        for taint in taints {
            if let Some(when) = deadline(&taint, tolerations) {
                Eviction::join(&mut eviction, when, taint.rule.map(|r| r.uid().to_owned()));
            }
        }
    }
    eviction
}

/// Returns the claims that the pod uses: named in its spec, owned by it if created from a template, and reserved for
/// it.
fn claims(pod: &Pod, seen: &dyn Seen) -> Vec<Arc<ResourceClaim>> {
    let listed = pod.spec.as_ref().and_then(|s| s.resource_claims.as_deref()).unwrap_or_default();
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref()).unwrap_or_default();
    let used = listed.iter().filter_map(|of| {
        let (name, own) = match &of.resource_claim_name {
            Some(name) => (name.as_str(), false),
            None => {
                let status = statuses.iter().find(|s| s.name == of.name)?;
                (status.resource_claim_name.as_deref()?, true)
            }
        };
        let claim = seen.claim(pod.namespace(), name)?;
        let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
        let is_for = reserved.iter().any(|r| r.uid == pod.uid());
        (is_for && !(own && foreign(pod, &claim).is_some())).then_some(claim)
    });
    used.collect()
}

/// Returns when the pod must be evicted, if it must. A pod that is not bound to a node uses no devices.
pub fn of_pod(pod: &Pod, seen: &dyn Seen, rules: &[Arc<DeviceTaintRule>]) -> Option<Eviction> {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty())?;
    let mut all = None;
    for claim in claims(pod, seen) {
        if let Some(eviction) = of_claim(&claim, seen, rules) {
            Eviction::join(&mut all, eviction.when, eviction.rules);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    struct Fixed(Vec<Arc<ResourceSlice>>, Vec<Arc<ResourceClaim>>);

    impl Seen for Fixed {
        fn pool(&self, _: &str, _: &str) -> Vec<Arc<ResourceSlice>> {
            self.0.clone()
        }

        fn claim(&self, _: &str, name: &str) -> Option<Arc<ResourceClaim>> {
            self.1.iter().find(|c| c.name() == name).cloned()
        }
    }

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn shared<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
        Arc::new(object(value))
    }

    fn taint(effect: &str) -> Value {
        json!({"key": "broken", "value": "yes", "effect": effect, "timeAdded": "2026-01-01T00:00:10Z"})
    }

    fn slice(generation: i64, taints: Value) -> Arc<ResourceSlice> {
        shared(
            json!({"metadata": {"name": generation.to_string()}, "spec": {"driver": "d", "pool": {"name": "p",
            "generation": generation, "resourceSliceCount": 1}, "devices": [{"name": "x", "taints": taints}]}}),
        )
    }

    fn rule(selector: Value) -> Arc<DeviceTaintRule> {
        let mut taint = taint(NO_EXECUTE);
        taint["timeAdded"] = json!("2026-01-01T00:00:05Z");
        shared(
            json!({"metadata": {"name": "r", "uid": "rule"}, "spec": {"taint": taint, "deviceSelector": selector}}),
        )
    }

    fn claim(tolerations: Value) -> Arc<ResourceClaim> {
        shared(json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}, "status": {
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x",
                "tolerations": tolerations}]}}}}))
    }

    fn pod(uid: &str, node: &str) -> Pod {
        object(json!({"metadata": {"name": "p", "namespace": "ns", "uid": uid}, "spec": {"containers": [],
            "nodeName": node, "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}}))
    }

    /// Returns the second of the eviction, and whether a rule contributes to it.
    fn when(
        slices: Vec<Arc<ResourceSlice>>,
        rules: &[Arc<DeviceTaintRule>],
        tolerations: Value,
    ) -> Option<(i64, bool)> {
        let seen = Fixed(slices, vec![claim(tolerations)]);
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        of_pod(&pod("u", "n"), &seen, rules)
            .map(|e| (e.when.as_second() - start.as_second(), !e.rules.is_empty()))
    }

    #[test]
    fn taints_end_the_use_of_devices() {
        let tainted = || vec![slice(1, json!([taint(NO_EXECUTE)]))];
        let tolerates = |more: Value| {
            let mut toleration = json!({"key": "broken", "operator": "Exists", "effect": NO_EXECUTE});
            for (key, value) in more.as_object().unwrap() {
                toleration[key] = value.clone();
            }
            toleration
        };
        let selected = || vec![rule(json!({"driver": "d"}))];
        for (slices, rules, tolerations, expected) in [
            (tainted(), vec![], json!([]), Some((10, false))),
            (vec![slice(1, json!([taint("NoSchedule")]))], vec![], json!([]), None),
            (tainted(), vec![], json!([tolerates(json!({}))]), None),
            (tainted(), vec![], json!([tolerates(json!({"tolerationSeconds": 5}))]), Some((15, false))),
            (
                tainted(),
                vec![],
                json!([
                    tolerates(json!({"tolerationSeconds": 5})),
                    tolerates(json!({"tolerationSeconds": 3}))
                ]),
                Some((13, false)),
            ),
            (tainted(), vec![], json!([tolerates(json!({"effect": "NoSchedule"}))]), Some((10, false))),
            (
                tainted(),
                vec![],
                json!([tolerates(json!({"operator": "Equal", "value": "no"}))]),
                Some((10, false)),
            ),
            (tainted(), vec![], json!([tolerates(json!({"operator": "Equal", "value": "yes"}))]), None),
            // Only the newest generation of a pool counts.
            (vec![slice(1, json!([taint(NO_EXECUTE)])), slice(2, json!([]))], vec![], json!([]), None),
            (vec![], selected(), json!([]), Some((5, true))),
            (tainted(), selected(), json!([]), Some((5, true))),
            (vec![], vec![rule(json!({"driver": "other"}))], json!([]), None),
            (vec![], vec![rule(json!({"device": "y"}))], json!([]), None),
            (vec![], vec![rule(Value::Null)], json!([]), None),
        ] {
            assert_eq!(when(slices, &rules, tolerations.clone()), expected, "{tolerations}");
        }
    }

    #[test]
    fn only_pods_that_use_the_claim_go() {
        let seen = Fixed(vec![slice(1, json!([taint(NO_EXECUTE)]))], vec![claim(json!([]))]);
        assert!(of_pod(&pod("u", "n"), &seen, &[]).is_some());
        assert!(of_pod(&pod("u", ""), &seen, &[]).is_none());
        assert!(of_pod(&pod("other", "n"), &seen, &[]).is_none());
    }
}
