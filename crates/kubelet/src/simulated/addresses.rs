//! Pod addresses on simulated nodes: any free one of the node's prefix.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

/// Addresses by node and pod uid.
#[derive(Debug, Default)]
pub struct Addresses {
    used: HashMap<String, BTreeSet<u32>>,
    of_pod: HashMap<String, (String, u32)>,
}

impl Addresses {
    /// The pod's address on the node with this prefix (`10.42.3.0/24`); the same again for the same pod. `None` when
    /// the prefix does not parse or is full.
    pub fn get(&mut self, node: &str, prefix: &str, pod_uid: &str) -> Option<Ipv4Addr> {
        let (base, length) = prefix.split_once('/')?;
        let (base, length) = (u32::from(base.parse::<Ipv4Addr>().ok()?), length.parse::<u32>().ok()?);
        if let Some((_, offset)) = self.of_pod.get(pod_uid) {
            return Some(Ipv4Addr::from(base + offset));
        }
        let size = 1u32.checked_shl(32u32.checked_sub(length)?)?;
        let used = self.used.entry(node.to_owned()).or_default();
        // The first address is the network's, the second would be the gateway's, the last the broadcast's.
        let free = (2..size.saturating_sub(1)).find(|offset| !used.contains(offset))?;
        used.insert(free);
        self.of_pod.insert(pod_uid.to_owned(), (node.to_owned(), free));
        Some(Ipv4Addr::from(base + free))
    }

    pub fn release(&mut self, pod_uid: &str) {
        if let Some((node, offset)) = self.of_pod.remove(pod_uid)
            && let Some(used) = self.used.get_mut(&node)
        {
            used.remove(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_kept_freed_and_run_out() {
        let mut addresses = Addresses::default();
        let mut get = |pod: &str| addresses.get("n", "10.0.0.0/29", pod).map(|a| a.to_string());
        assert_eq!(get("a").as_deref(), Some("10.0.0.2"));
        assert_eq!(get("a").as_deref(), Some("10.0.0.2"));
        let more: Vec<_> = ["b", "c", "d", "e"].into_iter().filter_map(&mut get).collect();
        assert_eq!(more, ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        assert_eq!(get("f"), None);
        addresses.release("c");
        assert_eq!(
            addresses.get("n", "10.0.0.0/29", "f").map(|a| a.to_string()).as_deref(),
            Some("10.0.0.4")
        );
        assert_eq!(addresses.get("n", "nonsense", "g"), None);
        assert_eq!(addresses.get("n", "10.0.0.0/64", "g"), None);
    }
}
