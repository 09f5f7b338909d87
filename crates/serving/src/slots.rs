//! Counts connections, in all and by address, and refuses those above the limits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::Limits;

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    #[error("the server has as many connections as it may have")]
    Server,
    #[error("the address has as many connections as it may have")]
    Address,
}

/// The connections of a server.
#[derive(Debug, Default)]
pub struct Slots {
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    peer: IpAddr,
}

/// Whether the peer is this machine: other machines and pods must not be able to shut its own components out.
pub fn is_own(peer: IpAddr, local: Option<IpAddr>) -> bool {
    let peer = peer.to_canonical();
    peer.is_loopback() || local.is_some_and(|local| local.to_canonical() == peer)
}

impl Slots {
    /// A place for a connection of `peer`; `own` is whether the peer is this machine.
    pub fn take(self: &Arc<Self>, peer: IpAddr, own: bool, limits: &Limits) -> Result<Slot, Full> {
        let peer = peer.to_canonical();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.by_address.get(&peer).copied().unwrap_or(0);
        if taken.total >= if own { limits.connections } else { limits.for_others() } {
            return Err(Full::Server);
        }
        if !own && count >= limits.per_address {
            return Err(Full::Address);
        }
        taken.total += 1;
        taken.by_address.insert(peer, count + 1);
        Ok(Slot { slots: Arc::clone(self), peer })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.total = taken.total.saturating_sub(1);
        let left = taken.by_address.get(&self.peer).copied().unwrap_or(0).saturating_sub(1);
        match left {
            0 => taken.by_address.remove(&self.peer),
            left => taken.by_address.insert(self.peer, left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_its_limit_and_this_machine_its_reserve() {
        let limits = Limits { connections: 10, per_address: 4, ..Limits::default() };
        let slots = Arc::new(Slots::default());
        let other = |text: &str| slots.take(address(text), false, &limits);
        let mut held: Vec<Slot> = (0..4).map(|_| other("10.0.0.1").unwrap()).collect();
        assert_eq!(other("10.0.0.1").unwrap_err(), Full::Address);
        assert_eq!(other("::ffff:10.0.0.1").unwrap_err(), Full::Address);
        held.extend((0..4).map(|_| other("10.0.0.2").unwrap()));
        held.push(other("10.0.0.3").unwrap());
        // The tenth is this machine's.
        assert_eq!(other("10.0.0.3").unwrap_err(), Full::Server);
        held.push(slots.take(address("127.0.0.1"), true, &limits).unwrap());
        assert_eq!(slots.take(address("127.0.0.1"), true, &limits).unwrap_err(), Full::Server);
        held.clear();
        assert!(slots.taken.lock().unwrap().by_address.is_empty());
        assert_eq!(slots.taken.lock().unwrap().total, 0);
    }

    #[test]
    fn own_addresses() {
        for (peer, local, own) in [
            ("127.0.0.1", None, true),
            ("::1", None, true),
            ("::ffff:127.0.0.1", None, true),
            ("192.168.0.5", Some("192.168.0.5"), true),
            ("::ffff:192.168.0.5", Some("192.168.0.5"), true),
            ("10.42.0.9", Some("192.168.0.5"), false),
            ("10.42.0.9", None, false),
        ] {
            assert_eq!(is_own(address(peer), local.map(address)), own, "{peer}");
        }
    }
}
