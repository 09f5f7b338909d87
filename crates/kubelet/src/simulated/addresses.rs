//! Addresses of simulated nodes and pods, which are not reachable: nodes have addresses of 198.18.0.0/15, pods of
//! their node's pod CIDR.

use std::net::Ipv4Addr;

/// The pods' addresses while their node has no pod CIDR: a /24 per node of 100.64.0.0/10.
const FALLBACK_BASE: u32 = 0x6440_0000;
/// The range set aside for benchmarks (RFC 2544).
const NODE_BASE: u32 = 0xC612_0000;
/// The maximal number of addresses of a pod CIDR that are used.
const MAX_ADDRESSES: u32 = 1 << 12;

/// Returns the address of a node by its index.
pub fn of_node(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(NODE_BASE + (index & 0xFFFF) + 1)
}

/// An IPv4 range, such as `10.42.3.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: u32,
    size: u32,
}

impl Range {
    pub fn parse(cidr: &str) -> Option<Self> {
        let (address, length) = cidr.split_once('/')?;
        let (address, length) = (address.parse::<Ipv4Addr>().ok()?, length.parse::<u32>().ok()?);
        if length > 30 {
            return None;
        }
        let size = if length == 0 { u32::MAX } else { 1 << (32 - length) };
        let base = u32::from(address) & !(size - 1);
        Some(Self { base, size: size.min(MAX_ADDRESSES) })
    }

    pub fn fallback(node_index: u32) -> Self {
        Self { base: FALLBACK_BASE + ((node_index & 0x3FFF) << 8), size: 256 }
    }
}

/// The pod addresses of one node that are in use.
#[derive(Debug)]
pub struct Pool {
    range: Range,
    taken: Vec<u64>,
}

impl Pool {
    pub fn new(range: Range) -> Self {
        Self { range, taken: Vec::new() }
    }

    pub fn range(&self) -> Range {
        self.range
    }

    /// Allocates the lowest free address; the first two of the range (network and gateway) and the last are never
    /// used.
    pub fn take(&mut self) -> Option<Ipv4Addr> {
        let offset = (2..self.range.size - 1).find(|offset| !self.is_taken(*offset))?;
        self.mark(offset, true);
        Some(Ipv4Addr::from(self.range.base + offset))
    }

    /// Allocates this address, of a pod that existed before.
    pub fn keep(&mut self, address: Ipv4Addr) {
        if let Some(offset) = self.offset(address) {
            self.mark(offset, true);
        }
    }

    pub fn release(&mut self, address: Ipv4Addr) {
        if let Some(offset) = self.offset(address) {
            self.mark(offset, false);
        }
    }

    fn offset(&self, address: Ipv4Addr) -> Option<u32> {
        u32::from(address).checked_sub(self.range.base).filter(|offset| *offset < self.range.size)
    }

    fn is_taken(&self, offset: u32) -> bool {
        self.taken.get(offset as usize / 64).is_some_and(|word| word & (1 << (offset % 64)) != 0)
    }

    fn mark(&mut self, offset: u32, taken: bool) {
        let at = offset as usize / 64;
        if self.taken.len() <= at {
            self.taken.resize(at + 1, 0);
        }
        let bit = 1u64 << (offset % 64);
        if taken {
            self.taken[at] |= bit;
        } else {
            self.taken[at] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_given_once_and_again_when_released() {
        let mut pool = Pool::new(Range::parse("10.42.3.0/29").unwrap());
        pool.keep("10.42.3.3".parse().unwrap());
        let given: Vec<String> = std::iter::from_fn(|| pool.take()).map(|ip| ip.to_string()).collect();
        assert_eq!(given, ["10.42.3.2", "10.42.3.4", "10.42.3.5", "10.42.3.6"]);
        pool.release("10.42.3.4".parse().unwrap());
        pool.release("1.2.3.4".parse().unwrap());
        assert_eq!(pool.take(), Some("10.42.3.4".parse().unwrap()));
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn ranges() {
        assert_eq!(Range::parse("10.0.0.9/24"), Range::parse("10.0.0.0/24"));
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/31", "fd00::/64", "x/24"] {
            assert_eq!(Range::parse(bad), None, "{bad}");
        }
        assert_ne!(Range::fallback(1), Range::fallback(2));
        assert_eq!(of_node(0).to_string(), "198.18.0.1");
    }
}
