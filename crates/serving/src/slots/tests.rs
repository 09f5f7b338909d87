//! Tests of connection slots: which connections are accepted, and which are closed for them.

use super::*;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A server with `connections` slots, the last tenth of them for this machine. Each other address gets at most 4.
struct Server {
    slots: Arc<Slots>,
    limits: Limits,
}

impl Server {
    fn new(connections: usize) -> Self {
        let limits = Limits { connections, per_address: 4, ..Limits::default() };
        Self { slots: Arc::default(), limits }
    }

    fn other(&self, text: &str) -> Result<Slot, Full> {
        self.slots.take(address(text), false, &self.limits)
    }

    fn others(&self, text: &str, count: usize) -> Vec<Slot> {
        (0..count).map(|_| self.other(text).unwrap()).collect()
    }
}

fn evicted(slots: &[Slot]) -> Vec<usize> {
    let gone = |(at, slot): (usize, &Slot)| slot.place().evicted().is_cancelled().then_some(at);
    slots.iter().enumerate().filter_map(gone).collect()
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

#[tokio::test(start_paused = true)]
async fn at_its_limit_an_address_loses_its_oldest_idle_connection_to_its_next_one() {
    let server = Server::new(20);
    let mut held = server.others("10.0.0.1", 4);
    let busy: Vec<_> = [0, 2].map(|at| held[at].place().activity.begin()).into();
    held[0].place().raise(Standing::Authenticated);
    held[2].place().raise(Standing::Authenticated);
    held[3].certify();
    held.push(server.other("::ffff:10.0.0.1").unwrap());
    assert_eq!(evicted(&held), [1]);
    held.push(server.other("10.0.0.1").unwrap());
    assert_eq!(evicted(&held), [1, 4]);
    // Requests of a known sender are not cut off for another connection of the same address.
    for at in [3, 5] {
        held[at].place().raise(Standing::Authenticated);
    }
    let all: Vec<_> = [3, 5].map(|at| held[at].place().activity.begin()).into();
    assert_eq!(server.other("10.0.0.1").unwrap_err(), Full::Address);
    drop((busy, all));
    held.push(server.other("10.0.0.1").unwrap());
    // The connection that was idle longest is closed first, the one with a certificate last.
    assert_eq!(evicted(&held), [0, 1, 4]);
    held.clear();
    let taken = server.slots.taken.lock().unwrap();
    assert!(taken.networks.is_empty() && taken.sizes.is_empty());
    assert_eq!((taken.total, taken.leaving), (0, 0));
}

#[test]
fn a_full_server_takes_from_those_who_have_most() {
    let server = Server::new(10);
    let mut attackers = server.others("10.0.0.1", 4);
    attackers.extend(server.others("10.0.0.2", 4));
    let node = server.other("10.0.0.3").unwrap();
    node.certify();
    // All of the attackers' connections have running requests, some from known senders; 9 slots are taken.
    let running: Vec<_> = attackers.iter().map(|slot| slot.place().activity.begin()).collect();
    attackers[4].place().raise(Standing::Authenticated);
    attackers[5].place().raise(Standing::Authenticated);
    let client = server.other("10.0.0.4").unwrap();
    assert_eq!(evicted(&attackers), [6], "10.0.0.2's, of an unknown sender");
    let second = server.other("10.0.0.5").unwrap();
    assert_eq!(evicted(&attackers), [0, 6], "10.0.0.1 has more now");
    assert!(!node.place().evicted().is_cancelled() && !client.place().evicted().is_cancelled());
    // No more than two may be leaving at a time.
    assert_eq!(server.other("10.0.0.6").unwrap_err(), Full::Server);
    drop(running);
    drop(attackers.remove(6));
    drop(attackers.remove(0));
    // A further connection of an attacker replaces one of an attacker.
    let third = server.other("10.0.0.1").unwrap();
    assert_eq!(evicted(&attackers).len(), 1);
    // This machine has reserved slots, and beyond these replaces connections of other machines.
    let own: Vec<Slot> =
        (0..2).map(|_| server.slots.take(address("127.0.0.1"), true, &server.limits).unwrap()).collect();
    assert_eq!(evicted(&attackers).len(), 2);
    drop((attackers, own, third, second, client, node));
    assert_eq!(server.slots.taken.lock().unwrap().total, 0);
}

#[test]
fn certificates_yield_to_certificates_of_others_only_where_there_is_nothing_else() {
    let server = Server::new(10);
    let nodes: Vec<Slot> =
        [server.others("10.0.0.1", 4), server.others("10.0.0.2", 4)].into_iter().flatten().collect();
    nodes.iter().for_each(Slot::certify);
    let stranger = server.other("10.0.0.9").unwrap();
    let next = server.other("10.0.0.3").unwrap();
    assert!(evicted(&nodes).is_empty() && stranger.place().evicted().is_cancelled());
    next.certify();
    drop(stranger);
    let last = server.other("10.0.0.4").unwrap();
    assert_eq!((evicted(&nodes).len(), last.place().evicted().is_cancelled()), (1, false));
}

#[test]
fn unknown_peers_of_one_ipv6_network_count_as_one_address() {
    let server = Server::new(20);
    let mut held: Vec<Slot> =
        (1..=4).map(|host| server.other(&format!("2001:db8::{host}")).unwrap()).collect();
    held.push(server.other("2001:db8::5").unwrap());
    assert_eq!(evicted(&held), [0]);
    // Known peers have a limit each, because the nodes of one network are separate machines.
    held.iter().for_each(|slot| slot.place().raise(Standing::Authenticated));
    held.extend((6..=9).map(|host| server.other(&format!("2001:db8::{host}")).unwrap()));
    assert_eq!(evicted(&held), [0]);
    held.push(server.other("2001:db8:0:1::1").unwrap());
    assert_eq!(evicted(&held), [0]);
    held.push(server.other("2001:db8::10").unwrap());
    assert_eq!(evicted(&held).len(), 2);
}
