//! The canonical form of the subsets of Endpoints, however they were written.
//!
//! Source: the behaviour of `RepackSubsets` in `k8s.io/kubernetes/pkg/api/v1/endpoints`. The order of subsets is
//! our own.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset};

/// An address with the uid of its target: two pods may have the same address.
type AddressKey = (String, String);
/// The addresses that have a port, and whether each is ready.
type Ready = BTreeMap<AddressKey, bool>;

fn port_key(port: &EndpointPort) -> (Option<&str>, i32, Option<&str>, Option<&str>) {
    (port.name.as_deref(), port.port, port.protocol.as_deref(), port.app_protocol.as_deref())
}

fn address_key(address: &EndpointAddress) -> AddressKey {
    let uid = address.target_ref.as_ref().and_then(|target| target.uid.clone());
    (address.ip.clone(), uid.unwrap_or_default())
}

/// Merges ports with the same addresses into one subset. An address that is both ready and not ready at a port
/// becomes not ready.
pub fn repack(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    let mut addresses: BTreeMap<AddressKey, &EndpointAddress> = BTreeMap::new();
    let mut by_port: BTreeMap<_, (Option<&EndpointPort>, Ready)> = BTreeMap::new();
    for subset in subsets {
        let given = subset.ports.as_deref().unwrap_or_default();
        let ports = given.iter().map(Some).chain(given.is_empty().then_some(None));
        for port in ports {
            let (_, states) = by_port.entry(port.map(port_key)).or_insert_with(|| (port, Ready::new()));
            let ready = subset.addresses.iter().flatten().map(|a| (a, true));
            for (address, is_ready) in
                ready.chain(subset.not_ready_addresses.iter().flatten().map(|a| (a, false)))
            {
                let key = address_key(address);
                addresses.entry(key.clone()).or_insert(address);
                states.entry(key).and_modify(|ready| *ready &= is_ready).or_insert(is_ready);
            }
        }
    }
    let mut groups: Vec<(Ready, Vec<EndpointPort>)> = Vec::new();
    for (port, states) in by_port.into_values() {
        match groups.iter_mut().find(|(other, _)| *other == states) {
            Some((_, ports)) => ports.extend(port.cloned()),
            None => groups.push((states, port.cloned().into_iter().collect())),
        }
    }
    let subset = |(states, ports): (Ready, Vec<EndpointPort>)| {
        let of = |wanted: bool| -> Option<Vec<EndpointAddress>> {
            let of_state = states.iter().filter(|(_, ready)| **ready == wanted);
            let list: Vec<_> = of_state.filter_map(|(key, _)| addresses.get(key).copied().cloned()).collect();
            (!list.is_empty()).then_some(list)
        };
        EndpointSubset {
            addresses: of(true),
            not_ready_addresses: of(false),
            ports: (!ports.is_empty()).then_some(ports),
        }
    };
    groups.into_iter().map(subset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn packed(subsets: Value) -> Value {
        let subsets: Vec<EndpointSubset> = serde_json::from_value(subsets).unwrap();
        let once = repack(&subsets);
        assert_eq!(repack(&once), once, "settled");
        serde_json::to_value(once).unwrap()
    }

    #[test]
    fn ports_with_the_same_addresses_are_together() {
        let (a, b) = (json!({"ip": "10.0.0.1"}), json!({"ip": "10.0.0.2"}));
        let port = |n: i32| json!({"port": n});
        assert_eq!(
            packed(
                json!([{"addresses": [b, a], "ports": [port(80)]}, {"addresses": [a, b], "ports": [port(81)]}])
            ),
            json!([{"addresses": [a, b], "ports": [port(80), port(81)]}])
        );
        assert_eq!(
            packed(json!([{"addresses": [a], "ports": [port(80)]}, {"addresses": [b], "ports": [port(80)]}])),
            json!([{"addresses": [a, b], "ports": [port(80)]}])
        );
        assert_eq!(
            packed(
                json!([{"addresses": [a], "ports": [port(80), port(81)]}, {"addresses": [b], "ports": [port(81)]}])
            ),
            json!([{"addresses": [a], "ports": [port(80)]}, {"addresses": [a, b], "ports": [port(81)]}])
        );
    }

    #[test]
    fn not_ready_wins_and_nothing_gets_lost() {
        let a = json!({"ip": "10.0.0.1"});
        assert_eq!(
            packed(json!([{"addresses": [a]}, {"notReadyAddresses": [a]}])),
            json!([{"notReadyAddresses": [a]}])
        );
        let of = |uid: &str| json!({"ip": "10.0.0.1", "targetRef": {"uid": uid}});
        assert_eq!(
            packed(json!([{"addresses": [of("u"), of("v")]}])),
            json!([{"addresses": [of("u"), of("v")]}])
        );
        assert_eq!(packed(json!([])), json!([]));
    }
}
