//! Counts connections, in total and by address. When the server is full, the least important connection of the
//! network with the most connections is closed, so that no peer can shut others out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::Limits;
use crate::place::{Place, Standing};

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
    /// The number of connections that are ending but still hold their descriptors.
    leaving: usize,
    next: u64,
    /// The connections of other machines, by [`network`].
    networks: BTreeMap<IpAddr, Network>,
    /// The networks with connections without a certificate, by the number of these.
    sizes: BTreeSet<(usize, IpAddr)>,
}

#[derive(Debug, Default)]
struct Network {
    connections: BTreeMap<u64, Connection>,
    /// The number of these connections without a certificate.
    uncertified: usize,
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    place: Arc<Place>,
}

/// The slot of one connection, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    /// Its network and number; `None` for this machine's own connections, which are never closed for others.
    key: Option<(IpAddr, u64)>,
    place: Arc<Place>,
}

/// Returns whether the peer is this machine: other machines and pods must not be able to shut out its own
/// components.
pub fn is_own(peer: IpAddr, local: Option<IpAddr>) -> bool {
    let peer = peer.to_canonical();
    peer.is_loopback() || local.is_some_and(|local| local.to_canonical() == peer)
}

/// Returns the range of addresses that one machine can use: its address, or with IPv6 the /64.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

impl Slots {
    /// Takes a slot for a connection of `peer`; `own` is whether the peer is this machine.
    pub fn take(self: &Arc<Self>, peer: IpAddr, own: bool, limits: &Limits) -> Result<Slot, Full> {
        let address = peer.to_canonical();
        let place = Arc::new(Place::new());
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let key = if own {
            if taken.total >= limits.connections {
                taken.make_room(None, limits)?;
            }
            None
        } else {
            taken.make_room_at(address, limits)?;
            if taken.total >= limits.for_others() {
                taken.make_room(Some(network(address)), limits)?;
            }
            Some((network(address), taken.add(Connection { address, place: Arc::clone(&place) })))
        };
        taken.total += 1;
        Ok(Slot { slots: Arc::clone(self), key, place })
    }
}

impl Taken {
    fn add(&mut self, connection: Connection) -> u64 {
        let (network, number) = (network(connection.address), self.next);
        self.next += 1;
        self.change(network, |network| {
            network.connections.insert(number, connection);
            network.uncertified += 1;
        });
        number
    }

    /// Changes the connections of a network, and updates the order of networks.
    fn change<T>(&mut self, of: IpAddr, change: impl FnOnce(&mut Network) -> T) -> T {
        let network = self.networks.entry(of).or_default();
        let before = network.uncertified;
        let changed = change(network);
        let after = network.uncertified;
        if network.connections.is_empty() {
            self.networks.remove(&of);
        }
        if before != after {
            self.sizes.remove(&(before, of));
            if after > 0 {
                self.sizes.insert((after, of));
            }
        }
        changed
    }

    /// Removes a connection; returns `None` if it was removed before.
    fn remove(&mut self, (of, number): (IpAddr, u64)) -> Option<Arc<Place>> {
        let place = self.change(of, |network| {
            let connection = network.connections.remove(&number)?;
            if connection.place.standing() != Standing::Certified {
                network.uncertified -= 1;
            }
            Some(connection.place)
        })?;
        self.total = self.total.saturating_sub(1);
        Some(place)
    }

    fn evict(&mut self, key: (IpAddr, u64)) {
        if let Some(place) = self.remove(key) {
            self.leaving += 1;
            place.evict();
        }
    }

    /// Makes room at an address that has the most connections it may have. All unknown peers of its network
    /// count as one address, because over IPv6 a machine can use as many addresses as it likes.
    fn make_room_at(&mut self, address: IpAddr, limits: &Limits) -> Result<(), Full> {
        let of = network(address);
        let Some(found) = self.networks.get(&of) else { return Ok(()) };
        if found.connections.len() < limits.per_address {
            return Ok(());
        }
        let same = |connection: &Connection| connection.address == address;
        let unknown = |connection: &Connection| connection.place.standing() == Standing::Unknown;
        let full = |which: &dyn Fn(&Connection) -> bool| {
            found.connections.values().filter(|c| which(c)).count() >= limits.per_address
        };
        let weakest = match (full(&same), full(&unknown)) {
            (true, _) => found.weakest(same, true),
            (false, true) => found.weakest(unknown, true),
            (false, false) => return Ok(()),
        };
        self.leave(weakest.map(|number| (of, number)), limits).ok_or(Full::Address)
    }

    /// Makes room for a connection of a network, or with `None` of this machine. Closes a connection of the
    /// network with the most connections without a certificate, if those are more than the newcomer's;
    /// otherwise one of the newcomer's own; or, if all have certificates, one of the network with the most of
    /// them.
    fn make_room(&mut self, newcomer: Option<IpAddr>, limits: &Limits) -> Result<(), Full> {
        let own = newcomer.and_then(|of| Some((of, self.networks.get(&of)?)));
        let uncertified = |connection: &Connection| connection.place.standing() != Standing::Certified;
        let own_count = own.map_or(0, |(_, network)| network.uncertified);
        let largest = self.sizes.last().filter(|(count, _)| *count > own_count);
        let victim = match (largest, own) {
            (Some((_, of)), _) => {
                self.networks.get(of).and_then(|network| Some((*of, network.weakest(uncertified, false)?)))
            }
            (None, Some((of, network))) if own_count > 0 => {
                network.weakest(uncertified, true).map(|number| (of, number))
            }
            (None, own) => {
                let own_count = own.map_or(0, |(_, network)| network.connections.len());
                let most = self.networks.iter().max_by_key(|(_, network)| network.connections.len());
                let most = most.filter(|(_, network)| network.connections.len() > own_count + 1);
                most.and_then(|(of, network)| Some((*of, network.weakest(|_| true, false)?)))
            }
        };
        self.leave(victim, limits).ok_or(Full::Server)
    }

    /// Evicts a connection, unless too many are leaving, because these still hold their descriptors.
    fn leave(&mut self, victim: Option<(IpAddr, u64)>, limits: &Limits) -> Option<()> {
        let victim = victim.filter(|_| self.leaving <= limits.connections / 10)?;
        self.evict(victim);
        Some(())
    }
}

impl Network {
    /// Returns the connection to close first among those that `which` selects; with `yielding`, only if another
    /// connection of the same address may replace it.
    fn weakest(&self, which: impl Fn(&Connection) -> bool, yielding: bool) -> Option<u64> {
        let all = self.connections.iter().filter(|(_, connection)| which(connection));
        let (worth, number) = all.map(|(number, connection)| (connection.place.worth(), *number)).min()?;
        (!yielding || worth.yields()).then_some(number)
    }
}

impl Slot {
    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Records that the peer has presented a client certificate that the service accepts.
    pub(crate) fn certify(&self) {
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.place.standing();
        self.place.raise(Standing::Certified);
        if let Some((of, number)) = self.key
            && before != Standing::Certified
            && taken.networks.get(&of).is_some_and(|network| network.connections.contains_key(&number))
        {
            taken.change(of, |network| network.uncertified -= 1);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match self.key {
            None => taken.total = taken.total.saturating_sub(1),
            Some(key) => {
                if taken.remove(key).is_none() {
                    taken.leaving = taken.leaving.saturating_sub(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
