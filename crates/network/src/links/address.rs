//! IPv4 addresses of devices.

use std::net::Ipv4Addr;

use super::Links;
use crate::netlink::{Message, NetlinkError, ignore_existing, ignore_missing};

const RTM_NEWADDR: u16 = libc::RTM_NEWADDR;
const RTM_DELADDR: u16 = libc::RTM_DELADDR;
const RTM_GETADDR: u16 = libc::RTM_GETADDR;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const HEADER_LEN: usize = 8;

/// An address on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub index: u32,
    pub ip: Ipv4Addr,
    pub prefix_len: u8,
}

impl Address {
    fn header(&self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[0] = libc::AF_INET as u8;
        header[1] = self.prefix_len;
        header[4..8].copy_from_slice(&self.index.to_ne_bytes());
        header
    }

    fn parse(message: Message<'_>) -> Option<Self> {
        let header = message.payload.get(..HEADER_LEN)?;
        let attributes = message.attributes(HEADER_LEN);
        let ip = attributes.find_kind(IFA_LOCAL).or_else(|| attributes.find_kind(IFA_ADDRESS))?.ipv4()?;
        Some(Self { index: u32::from_ne_bytes(header[4..8].try_into().ok()?), ip, prefix_len: header[1] })
    }
}

impl Links {
    /// Returns every IPv4 address of the namespace.
    pub fn addresses(&mut self) -> Result<Vec<Address>, NetlinkError> {
        let mut header = [0; HEADER_LEN];
        header[0] = libc::AF_INET as u8;
        self.netlink.dump("list addresses", RTM_GETADDR, &header, |_| {}, Address::parse)
    }

    /// Adds the address; succeeds if it exists already.
    pub fn add_address(&mut self, address: Address) -> Result<(), NetlinkError> {
        let octets = address.ip.octets();
        let result = self.netlink.request(
            &format!("add address {}/{}", address.ip, address.prefix_len),
            RTM_NEWADDR,
            (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16,
            &address.header(),
            |writer| {
                writer.attribute(IFA_LOCAL, &octets);
                writer.attribute(IFA_ADDRESS, &octets);
            },
        );
        ignore_existing(result)
    }

    /// Removes the address; succeeds if it does not exist.
    pub fn delete_address(&mut self, address: Address) -> Result<(), NetlinkError> {
        let what = format!("delete address {}/{}", address.ip, address.prefix_len);
        let result = self.netlink.request(&what, RTM_DELADDR, 0, &address.header(), |writer| {
            writer.attribute(IFA_LOCAL, &address.ip.octets());
        });
        ignore_missing(result)
    }
}
