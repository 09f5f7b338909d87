//! Tests of the plugin and of the allocator, case by case.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice,
};
use serde_json::{Value, json};

use super::allocator::{AllocateError, Cluster, Patience, Tools};
use super::selector::Programs;
use super::taken::Taken;
use super::{DESCRIPTOR, rank};
use crate::framework::{Catalog, Status};
use crate::plugins::testing::{PodBuilder, node, object, pod, verdicts_of};

fn slice(node: &str, devices: Value) -> ResourceSlice {
    object(json!({"metadata": {"name": format!("slice-{node}")}, "spec": {"driver": "d", "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": devices}}))
}

fn class(selectors: &[&str]) -> DeviceClass {
    let selectors: Vec<_> = selectors.iter().map(|s| json!({"cel": {"expression": s}})).collect();
    object(json!({"metadata": {"name": "gpu"}, "spec": {"selectors": selectors,
        "config": [{"opaque": {"driver": "d", "parameters": {"from": "class"}}}]}}))
}

fn claim(name: &str, devices: Value) -> ResourceClaim {
    object(json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": devices}}))
}

fn exactly(more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    for (key, value) in more.as_object().unwrap() {
        exactly[key] = value.clone();
    }
    exactly
}

fn one(more: Value) -> Value {
    json!({"requests": [{"name": "r", "exactly": exactly(more)}]})
}

fn some(names: &[&str]) -> Value {
    Value::Array(names.iter().map(|n| json!({"name": n})).collect())
}

fn allocate(slices: Vec<ResourceSlice>, taken: Taken, claims: &[ResourceClaim]) -> Allocated {
    let slices = slices.into_iter().map(Arc::new).collect();
    let cluster = Cluster::new(slices, vec![Arc::new(class(&["device.driver == 'd'"]))], taken);
    let programs = Programs::default();
    let never = || false;
    let patience = Patience::until(&never);
    let share_id = || "share".to_owned();
    let tools = Tools { programs: &programs, patience: &patience, share_id: &share_id };
    let claims: Vec<&ResourceClaim> = claims.iter().collect();
    cluster.allocate(&node("n").label("zone", "a").build(), &claims, tools)
}

type Allocated = Result<Option<Vec<AllocationResult>>, AllocateError>;

/// Formats the result: `request=device` for each claim, claims separated by `;`, `none`, or the error.
fn text(allocated: &Allocated) -> String {
    let of_claim = |a: &AllocationResult| {
        let results = a.devices.iter().flat_map(|d| d.results.iter().flatten());
        results.map(|r| format!("{}={}", r.request, r.device)).collect::<Vec<_>>().join(" ")
    };
    match allocated {
        Ok(Some(all)) => all.iter().map(of_claim).collect::<Vec<_>>().join("; "),
        Ok(None) => "none".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn check(devices: Value, claims: &[Value], expected: &str) {
    let claims: Vec<_> = claims.iter().enumerate().map(|(i, c)| claim(&format!("c{i}"), c.clone())).collect();
    let found = text(&allocate(vec![slice("n", devices.clone())], Taken::default(), &claims));
    assert_eq!(found, expected, "{devices} {claims:?}");
}

#[test]
fn counts() {
    check(some(&["x", "y"]), &[one(json!({}))], "r=x");
    check(some(&["x", "y"]), &[one(json!({"count": 2}))], "r=x r=y");
    check(some(&["x", "y"]), &[one(json!({"count": 3}))], "none");
    check(some(&["x", "y"]), &[one(json!({})), one(json!({}))], "r=x; r=y");
    check(some(&["x", "y"]), &[one(json!({})), one(json!({"count": 2}))], "none");
    check(some(&["x", "y"]), &[one(json!({"allocationMode": "All"}))], "r=x r=y");
    check(some(&[]), &[one(json!({"allocationMode": "All"}))], "none");
    check(some(&["x", "y"]), &[one(json!({})), one(json!({"allocationMode": "All"}))], "none");
    check(
        some(&["x"]),
        &[one(json!({"count": 33}))],
        "claim default/c0: number of requested devices 33 exceeds the claim limit of 32",
    );
    check(
        some(&["x"]),
        &[one(json!({"allocationMode": "Few"}))],
        "claim default/c0, request r: unsupported count mode Few",
    );
}

#[test]
fn selectors_choose() {
    let devices = json!([
        {"name": "small", "capacity": {"memory": {"value": "8Gi"}}},
        {"name": "large", "capacity": {"memory": {"value": "80Gi"}}}]);
    let by = |expression: &str| one(json!({"selectors": [{"cel": {"expression": expression}}]}));
    let large = "device.capacity['d'].memory.compareTo(quantity('40Gi')) > 0";
    check(devices.clone(), &[by(large)], "r=large");
    check(devices.clone(), &[by("false")], "none");
    // The first claim's choice is undone for the second claim.
    check(
        devices.clone(),
        &[by("true"), by("device.capacity['d'].memory == quantity('8Gi')")],
        "r=large; r=small",
    );
    check(
        devices,
        &[by("device.attributes['d'].nope == 1")],
        "claim default/c0: selector #0 on device d/n/small: CEL runtime error: no such key: nope. consider using CEL \
         optional chaining (.? followed by orValue()) or guarding the check with has() for optional fields",
    );
}

#[test]
fn alternatives_in_order() {
    let sub = |name: &str, more: Value| {
        let mut sub = exactly(more);
        sub["name"] = json!(name);
        sub
    };
    let any_of = |subs: Vec<Value>| json!({"requests": [{"name": "r", "firstAvailable": subs}]});
    let two_or_one = any_of(vec![sub("two", json!({"count": 2})), sub("one", json!({}))]);
    check(some(&["x", "y"]), std::slice::from_ref(&two_or_one), "r/two=x r/two=y");
    check(some(&["x"]), std::slice::from_ref(&two_or_one), "r/one=x");
    check(some(&["x", "y"]), &[two_or_one.clone(), one(json!({}))], "r/one=x; r=y");
    let many = any_of(vec![sub("many", json!({"count": 40})), sub("one", json!({}))]);
    check(some(&["x"]), &[many], "r/one=x");
    let claim = claim("c", two_or_one);
    for (devices, expected) in [(&["x", "y"][..], 8), (&["x"], 7)] {
        let made = allocate(vec![slice("n", some(devices))], Taken::default(), std::slice::from_ref(&claim));
        assert_eq!(rank(&claim, &made.unwrap().unwrap()[0]), expected);
    }
}

#[test]
fn constraints_between_requests() {
    let devices = json!([
        {"name": "a", "attributes": {"numa": {"int": 0}}},
        {"name": "b", "attributes": {"numa": {"int": 1}}},
        {"name": "c", "attributes": {"numa": {"int": 1}}},
        {"name": "d"}]);
    let with = |kind: &str, count: i64| {
        let mut asked = one(json!({"count": count}));
        asked["constraints"] = json!([{kind: "d/numa"}]);
        asked
    };
    check(devices.clone(), &[with("matchAttribute", 2)], "r=b r=c");
    check(devices.clone(), &[with("matchAttribute", 3)], "none");
    check(devices.clone(), &[with("distinctAttribute", 2)], "r=a r=b");
    check(devices.clone(), &[with("distinctAttribute", 3)], "none");
    let mut all = one(json!({"allocationMode": "All"}));
    all["constraints"] = json!([{"matchAttribute": "d/numa"}]);
    check(
        devices,
        &[all],
        "claim default/c0, request r: cannot add device d/n/b because a claim constraint would not be satisfied",
    );
}

#[test]
fn taints_keep_off() {
    let devices = json!([
        {"name": "x", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        {"name": "y", "taints": [{"key": "k", "effect": "None"}]}]);
    check(devices.clone(), &[one(json!({}))], "r=y");
    check(devices.clone(), &[one(json!({"count": 2}))], "none");
    let tolerant = json!({"count": 2, "tolerations": [{"key": "k", "operator": "Exists"}]});
    check(devices, &[one(tolerant)], "r=x r=y");
}

#[test]
fn admins_see_devices_in_use() {
    let mut taken = Taken::default();
    taken.add(&object(json!({"metadata": {}, "spec": {}, "status": {"allocation": {"devices": {"results": [
        {"request": "r", "driver": "d", "pool": "n", "device": "x"}]}}}})));
    let slices = || vec![slice("n", some(&["x"]))];
    let plain = claim("c", one(json!({})));
    assert_eq!(allocate(slices(), taken, std::slice::from_ref(&plain)), Ok(None));
    let mut taken = Taken::default();
    taken.add(&object(json!({"metadata": {}, "spec": {}, "status": {"allocation": {"devices": {"results": [
        {"request": "r", "driver": "d", "pool": "n", "device": "x"}]}}}})));
    let admin = claim("c", one(json!({"adminAccess": true})));
    let made = allocate(slices(), taken, &[admin]).unwrap().unwrap();
    let results = made[0].devices.as_ref().unwrap().results.clone().unwrap();
    assert_eq!(results[0].admin_access, Some(true));
}

#[test]
fn capacity_is_shared() {
    let devices =
        json!([{"name": "x", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "10Gi"}}}]);
    let wants = |amount: &str| one(json!({"capacity": {"requests": {"memory": amount}}}));
    check(devices.clone(), &[wants("4Gi"), wants("6Gi")], "r=x; r=x");
    check(devices.clone(), &[wants("4Gi"), wants("7Gi")], "none");
    check(devices.clone(), &[one(json!({"capacity": {"requests": {"cores": "1"}}}))], "none");
    let claims = [claim("c", wants("4Gi"))];
    let made = allocate(vec![slice("n", devices)], Taken::default(), &claims).unwrap().unwrap();
    let results = made[0].devices.as_ref().unwrap().results.clone().unwrap();
    assert_eq!(results[0].share_id.as_deref(), Some("share"));
    assert_eq!(results[0].consumed_capacity.as_ref().unwrap()["memory"].0, "4Gi");
}

#[test]
fn partitions_use_up_counters() {
    let part = |name: &str, amount: &str| json!({"name": name, "consumesCounters": [{"counterSet": "s", "counters": {"slots": {"value": amount}}}]});
    let pool = |kind: &str, name: &str, value: Value| -> ResourceSlice {
        object(json!({"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": "n", kind: value,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}}}))
    };
    let counters = json!([{"name": "s", "counters": {"slots": {"value": "4"}}}]);
    let slices =
        |parts: Value| vec![pool("devices", "a", parts), pool("sharedCounters", "b", counters.clone())];
    let parts = json!([part("whole", "4"), part("half-0", "2"), part("half-1", "2"), part("quarter", "1")]);
    for (count, expected) in [(1, "r=whole"), (2, "r=half-0 r=half-1"), (3, "none")] {
        let claims = [claim("c", one(json!({"count": count})))];
        assert_eq!(text(&allocate(slices(parts.clone()), Taken::default(), &claims)), expected);
    }
    let mut taken = Taken::default();
    taken.add(&object(json!({"metadata": {}, "spec": {}, "status": {"allocation": {"devices": {"results": [
        {"request": "r", "driver": "d", "pool": "p", "device": "half-0"}]}}}})));
    let claims = [claim("c", one(json!({})))];
    assert_eq!(text(&allocate(slices(parts), taken, &claims)), "r=half-1");
    let unknown = json!([{"name": "x", "consumesCounters": [{"counterSet": "t", "counters": {}}]}]);
    assert_eq!(
        text(&allocate(slices(unknown), Taken::default(), &claims)),
        "invalid resource pools were encountered"
    );
}

#[test]
fn results_say_where_and_how() {
    let mut asked = json!({"requests": [
        {"name": "a", "exactly": exactly(json!({}))}, {"name": "b", "exactly": exactly(json!({}))}]});
    asked["config"] = json!([
        {"requests": ["b"], "opaque": {"driver": "d", "parameters": {"from": "claim"}}},
        {"requests": ["c"], "opaque": {"driver": "d", "parameters": {}}}]);
    let claims = [claim("c", asked)];
    let made = allocate(vec![slice("n", some(&["x", "y"]))], Taken::default(), &claims).unwrap().unwrap();
    let found = serde_json::to_value(&made[0]).unwrap();
    assert_eq!(
        found["devices"]["config"],
        json!([
            {"source": "FromClass", "opaque": {"driver": "d", "parameters": {"from": "class"}}},
            {"source": "FromClaim", "requests": ["b"], "opaque": {"driver": "d", "parameters": {"from": "claim"}}}])
    );
    assert_eq!(
        found["nodeSelector"],
        json!({"nodeSelectorTerms": [{"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]})
    );
    let zone = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]});
    let mut zonal = slice("n", some(&["x", "y"]));
    (zonal.spec.node_name, zonal.spec.node_selector) = (None, Some(object(zone.clone())));
    let made = allocate(vec![zonal], Taken::default(), &claims).unwrap().unwrap();
    assert_eq!(serde_json::to_value(&made[0].node_selector).unwrap(), zone);
}

#[test]
fn a_search_ends() {
    // No two of thirty devices match: the search would have to try all pairs of all claims.
    let devices = (0..30).map(|i| json!({"name": format!("x{i}"), "attributes": {"n": {"int": i % 15}}}));
    let devices = Value::Array(devices.collect());
    let mut asked = one(json!({"count": 2}));
    asked["constraints"] = json!([{"matchAttribute": "d/n"}]);
    let mut claims: Vec<_> = (0..15).map(|i| claim(&format!("c{i}"), asked.clone())).collect();
    claims.push(claim("last", one(json!({"selectors": [{"cel": {"expression": "false"}}]}))));
    let found = allocate(vec![slice("n", devices)], Taken::default(), &claims);
    assert_eq!(found, Err(AllocateError::TimedOut));
    let deep: Vec<_> = (0..300).map(|i| claim(&format!("c{i}"), one(json!({"count": 0})))).collect();
    assert_eq!(
        allocate(vec![slice("n", some(&["x"]))], Taken::default(), &deep).unwrap().unwrap().len(),
        300
    );
}

fn with_claim(pod: PodBuilder, name: &str) -> PodBuilder {
    let mut pod = pod.build();
    let claims = vec![object(json!({"name": name, "resourceClaimName": name}))];
    pod.spec.as_mut().unwrap().resource_claims = Some(claims);
    pod.into()
}

/// Returns the statuses for nodes `a`, which has two devices, and `b`, which has none.
fn plugin_says(put: impl FnOnce(&Catalog)) -> Vec<Status> {
    let catalog = Arc::new(Catalog::default());
    catalog.put(slice("a", some(&["x", "y"])));
    catalog.put(class(&[]));
    put(&catalog);
    verdicts_of(DESCRIPTOR, &catalog, with_claim(pod("p"), "c"), vec![node("a"), node("b")], vec![])
}

#[test]
fn nodes_have_the_devices_or_not() {
    let ok = Status::SUCCESS;
    let no = Status::unresolvable;
    let asked = claim("c", one(json!({})));
    assert_eq!(plugin_says(|c| c.put(asked.clone())), [ok.clone(), no("cannot allocate all claims")]);
    assert_eq!(plugin_says(|_| ()), vec![no("could not find ResourceClaim \"default/c\""); 2]);
    let other_class = claim("c", one(json!({"deviceClassName": "nic"})));
    assert_eq!(
        plugin_says(|c| c.put(other_class)),
        vec![no("request r: device class nic does not exist"); 2]
    );
    let mut allocated = asked.clone();
    allocated.status = object(json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": [{"matchFields":
        [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}}));
    assert_eq!(plugin_says(|c| c.put(allocated)), [no("resourceclaim not available on the node"), ok]);
    let rule: DeviceTaintRule = object(json!({"metadata": {"name": "r"}, "spec": {
        "deviceSelector": {"driver": "d"}, "taint": {"key": "broken", "effect": "NoExecute"}}}));
    assert_eq!(
        plugin_says(|c| {
            c.put(asked);
            c.put(rule);
        }),
        vec![no("cannot allocate all claims"); 2]
    );
}
