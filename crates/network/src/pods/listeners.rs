//! Finds host ports that a process of the node already uses. Packets are redirected to the pod before any
//! socket sees them, so the kernel would not refuse such a host port, but the process could not be reached any
//! more.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::PortMapping;
use super::rules::listen;
use crate::protocol::Protocol;

/// States in the kernel's tables: a listening TCP socket, and a UDP socket without a peer.
const TCP_LISTEN: u8 = 0x0a;
const UDP_UNCONNECTED: u8 = 0x07;

/// Returns the first of `ports` on which a process in the thread's network namespace listens. `apart` are
/// addresses of the node on which host ports are not served.
pub fn first_in_use<'a>(ports: &'a [PortMapping], apart: &[Ipv4Addr]) -> io::Result<Option<&'a PortMapping>> {
    for (protocol, state, tables) in
        [(Protocol::Tcp, TCP_LISTEN, ["tcp", "tcp6"]), (Protocol::Udp, UDP_UNCONNECTED, ["udp", "udp6"])]
    {
        let wanted: Vec<_> = ports.iter().filter(|port| port.protocol == protocol).collect();
        if wanted.is_empty() {
            continue;
        }
        for table in tables {
            let file = match File::open(format!("/proc/thread-self/net/{table}")) {
                Ok(file) => file,
                // The kernel has no IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for line in BufReader::new(file).lines() {
                let line = line?;
                let Some((address, number)) = listener(&line, state) else { continue };
                if let Some(taken) = wanted.iter().find(|port| takes(port, address, number, apart)) {
                    return Ok(Some(taken));
                }
            }
        }
    }
    Ok(None)
}

/// Returns whether the host port would take packets from a socket that is bound to this address and port.
fn takes(port: &PortMapping, address: IpAddr, number: u16, apart: &[Ipv4Addr]) -> bool {
    if port.host_port != number {
        return false;
    }
    let address = match address.to_canonical() {
        IpAddr::V4(address) => address,
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv4Addr::UNSPECIFIED,
        IpAddr::V6(_) => return false,
    };
    match listen(port) {
        _ if address.is_unspecified() => true,
        Some(wanted) => wanted == address,
        // Host ports are served on one loopback address only.
        None => !apart.contains(&address) && (!address.is_loopback() || address == Ipv4Addr::LOCALHOST),
    }
}

/// Returns address and port from a line of the kernel's tables, if its socket is in this state.
fn listener(line: &str, state: u8) -> Option<(IpAddr, u16)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, _remote, is) = (words.next()?, words.next()?, words.next()?);
    if u8::from_str_radix(is, 16).ok()? != state {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Each word of four bytes is printed as a number in this machine's byte order.
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut octets = [0; 16];
            for at in 0..4 {
                octets[at * 4..at * 4 + 4].copy_from_slice(&word(at * 8)?);
            }
            IpAddr::from(octets)
        }
        _ => return None,
    };
    Some((address, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    fn port(protocol: Protocol, host_port: u16, host_ip: Option<&str>) -> PortMapping {
        PortMapping {
            protocol,
            container_port: 80,
            host_port,
            host_ip: host_ip.map(|ip| ip.parse().unwrap()),
        }
    }

    #[test]
    fn listening_sockets_are_found() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        let (tcp, udp) =
            (tcp.local_addr().map(|a| (tcp, a.port())), udp.local_addr().map(|a| (udp, a.port())));
        let ((_tcp, by_tcp), (_udp, by_udp)) = (tcp.unwrap(), udp.unwrap());
        for (wanted, found) in [
            (port(Protocol::Tcp, by_tcp, None), true),
            (port(Protocol::Tcp, by_tcp, Some("127.0.0.1")), true),
            (port(Protocol::Tcp, by_tcp, Some("192.0.2.1")), false),
            (port(Protocol::Udp, by_udp, Some("192.0.2.1")), true),
            (port(Protocol::Sctp, by_tcp, None), false),
        ] {
            let ports = [wanted];
            assert_eq!(first_in_use(&ports, &[]).unwrap(), found.then_some(&ports[0]), "{ports:?}");
        }
    }

    #[test]
    fn a_socket_is_in_the_way_where_its_packets_would_be_taken() {
        let apart = [Ipv4Addr::new(10, 43, 0, 10)];
        for (wanted, bound, expected) in [
            (None, "0.0.0.0", true),
            (None, "::", true),
            (None, "::ffff:192.0.2.1", true),
            (None, "2001:db8::1", false),
            (None, "127.0.0.1", true),
            (None, "127.0.0.53", false),
            (None, "10.43.0.10", false),
            (Some("192.0.2.1"), "::", true),
            (Some("192.0.2.1"), "192.0.2.1", true),
            (Some("192.0.2.1"), "192.0.2.2", false),
        ] {
            let taken = takes(&port(Protocol::Udp, 53, wanted), bound.parse().unwrap(), 53, &apart);
            assert_eq!(taken, expected, "{wanted:?} {bound}");
        }
        assert!(!takes(&port(Protocol::Udp, 53, None), "0.0.0.0".parse().unwrap(), 54, &apart));
    }

    #[test]
    fn other_lines_are_passed_over() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1";
        if cfg!(target_endian = "little") {
            assert_eq!(listener(line, TCP_LISTEN), Some(("127.0.0.1".parse().unwrap(), 8080)));
        }
        assert_eq!(listener(line, UDP_UNCONNECTED), None);
        for line in
            ["", "  sl  local_address rem_address   st", "0: xyz 1 0A", "0: 01:1F90 0 0A", "0: é:é 0 0A"]
        {
            assert_eq!(listener(line, TCP_LISTEN), None, "{line}");
        }
    }
}
