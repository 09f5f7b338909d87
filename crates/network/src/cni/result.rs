//! Parses a plugin's result, in any version of the specification.

use std::net::IpAddr;

use serde_json::Value;

/// Returns the addresses of `interface` within the sandbox, in the plugin's order.
pub fn addresses(result: &Value, interface: &str) -> Vec<IpAddr> {
    // Up to version 0.2.0 a result has at most one address of each family.
    let old = ["ip4", "ip6"].iter().filter_map(|family| parse(&result[family]["ip"]));
    let interfaces = result["interfaces"].as_array().map_or(&[][..], Vec::as_slice);
    let is_wanted = |ip: &Value| match ip.get("interface").and_then(Value::as_u64) {
        None => true,
        Some(index) => usize::try_from(index).ok().and_then(|i| interfaces.get(i)).is_some_and(|found| {
            found["name"] == interface && found["sandbox"].as_str().is_some_and(|s| !s.is_empty())
        }),
    };
    let ips = result["ips"].as_array().map_or(&[][..], Vec::as_slice);
    old.chain(ips.iter().filter(|ip| is_wanted(ip)).filter_map(|ip| parse(&ip["address"]))).collect()
}

/// Parses an address like `10.1.2.3/24`.
fn parse(address: &Value) -> Option<IpAddr> {
    address.as_str()?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_of_every_version() {
        let of = |result| addresses(&result, "eth0").iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            of(json!({"ip4": {"ip": "10.1.2.3/24"}, "ip6": {"ip": "fd00::3/64"}})),
            ["10.1.2.3", "fd00::3"]
        );
        assert_eq!(of(json!({"ips": [{"version": "4", "address": "10.1.2.3/24"}]})), ["10.1.2.3"]);
        let interfaces =
            json!([{"name": "cni0"}, {"name": "vethx"}, {"name": "eth0", "sandbox": "/run/netns/x"}]);
        let ips = json!([
            {"address": "10.9.9.9/24", "interface": 1}, {"address": "fd00::3/64", "interface": 2},
            {"address": "10.1.2.3/24", "interface": 2}, {"address": "10.1.2.4/24", "interface": 7},
        ]);
        assert_eq!(of(json!({"interfaces": interfaces, "ips": ips})), ["fd00::3", "10.1.2.3"]);
        for nothing in [json!({}), json!([]), json!({"ips": "x"}), json!({"ips": [{"address": "x"}]})] {
            assert!(of(nothing).is_empty());
        }
    }
}
