//! Ethernet frames of a hostile pod, and sockets that send and receive them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd};

use knarr_network::links::{Links, Mac};

use super::TIMEOUT;

pub const BROADCAST: Mac = [0xff; 6];
/// The bridge passes frames with this destination to the host, whatever their content.
pub const LLDP: Mac = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
const ETH_P_ALL: u16 = 3;

/// Sends and receives whole frames on one device of the calling thread's namespace.
pub struct PacketSocket(File);

impl PacketSocket {
    pub fn on(device: &str) -> Self {
        let index = Links::open().unwrap().get(device).unwrap().unwrap().index;
        let protocol = ETH_P_ALL.to_be();
        // SAFETY: the descriptor is new and no other code owns it; the address outlives the call, with its
        // right length.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol));
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            let socket = File::from_raw_fd(fd);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = index as i32;
            let size = size_of_val(&address) as libc::socklen_t;
            assert_eq!(libc::bind(fd, std::ptr::from_ref(&address).cast(), size), 0);
            let timeout = libc::timeval { tv_sec: TIMEOUT.as_secs() as i64, tv_usec: 0 };
            let size = size_of_val(&timeout) as libc::socklen_t;
            let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
            let set = libc::setsockopt(
                socket.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(&timeout).cast(),
                size,
            );
            assert_eq!(set, 0);
            Self(socket)
        }
    }

    /// Sets the mark that sent frames carry within the namespace.
    pub fn mark(self, mark: [u8; 4]) -> Self {
        let size = size_of_val(&mark) as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_MARK);
        // SAFETY: the pointer and the length describe `mark`, which outlives the call.
        let set = unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, mark.as_ptr().cast(), size) };
        assert_eq!(set, 0);
        self
    }

    pub fn send(&mut self, frame: &[u8]) {
        assert_eq!(self.0.write(frame).unwrap(), frame.len());
    }

    /// Receives frames until one contains `last`; returns all of them.
    pub fn until(&mut self, last: &[u8]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let mut buffer = [0; 2048];
            let length = self.0.read(&mut buffer).expect("the last frame arrives");
            frames.push(buffer[..length].to_vec());
            if holds(&buffer[..length], last) {
                return frames;
            }
        }
    }
}

pub fn holds(frame: &[u8], marker: &[u8]) -> bool {
    frame.windows(marker.len()).any(|window| window == marker)
}

pub fn ethernet(to: Mac, from: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes(), payload].concat()
}

/// Returns an ARP answer of `sender`, followed by a marker.
pub fn arp(sender: (Mac, Ipv4Addr), marker: &[u8]) -> Vec<u8> {
    let header = [0, 1, 8, 0, 6, 4, 0, 2];
    [&header[..], &sender.0, &sender.1.octets(), &BROADCAST, &[0; 4], marker].concat()
}

/// Returns an ARP question of `sender` about `target`.
pub fn arp_question(sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let header = [0, 1, 8, 0, 6, 4, 0, 1];
    [&header[..], &sender.0, &sender.1.octets(), &[0; 6], &target.octets()].concat()
}

/// Returns an IPv6 packet without a next header, from a link-local address to all nodes of the link.
pub fn ipv6(data: &[u8]) -> Vec<u8> {
    let mut addresses = [0; 32];
    addresses[..2].copy_from_slice(&[0xfe, 0x80]);
    addresses[15] = 1;
    addresses[16..18].copy_from_slice(&[0xff, 0x02]);
    addresses[31] = 1;
    [&[0x60, 0, 0, 0, 0, data.len() as u8, 59, 255][..], &addresses, data].concat()
}

pub fn udp(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    let length = |header: usize| ((header + data.len()) as u16).to_be_bytes();
    let mut ip =
        [&[0x45, 0][..], &length(28), &[0, 0, 0, 0, 64, 17, 0, 0], &from.0.octets(), &to.0.octets()].concat();
    let mut sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    // The checksum is omitted, which UDP permits.
    [&ip[..], &from.1.to_be_bytes(), &to.1.to_be_bytes(), &length(8), &[0, 0], data].concat()
}
