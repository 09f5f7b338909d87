//! Lists, finds, changes and deletes devices.

use super::{Links, Mac};
use crate::netlink::{Attribute, Message, NetlinkError, Writer, ignore_missing};

const RTM_NEWLINK: u16 = libc::RTM_NEWLINK;
const RTM_DELLINK: u16 = libc::RTM_DELLINK;
const RTM_GETLINK: u16 = libc::RTM_GETLINK;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const HEADER_LEN: usize = 16;

/// A device as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
    pub mac: Option<Mac>,
    /// The index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// For example `bridge` or `veth`; `None` for physical devices and loopback.
    pub kind: Option<String>,
    pub up: bool,
}

/// Returns the fixed header of a link message.
pub(super) fn link_header(family: u8, index: u32, flags: u32, change: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

impl Link {
    fn parse(message: Message<'_>) -> Option<Self> {
        let header = message.payload.get(..HEADER_LEN)?;
        let index = u32::from_ne_bytes(header[4..8].try_into().ok()?);
        let flags = u32::from_ne_bytes(header[8..12].try_into().ok()?);
        let up = flags & libc::IFF_UP as u32 != 0;
        let mut link = Self { index, name: String::new(), mtu: 0, mac: None, master: None, kind: None, up };
        for attribute in message.attributes(HEADER_LEN) {
            link.read(attribute);
        }
        Some(link)
    }

    fn read(&mut self, attribute: Attribute<'_>) {
        match attribute.kind {
            IFLA_IFNAME => self.name = attribute.as_str().to_owned(),
            IFLA_MTU => self.mtu = attribute.u32(),
            IFLA_ADDRESS => self.mac = attribute.payload.try_into().ok(),
            IFLA_MASTER => self.master = Some(attribute.u32()),
            IFLA_LINKINFO => {
                self.kind = attribute.nested().find_kind(IFLA_INFO_KIND).map(|a| a.as_str().to_owned());
            }
            _ => {}
        }
    }
}

impl Links {
    /// Returns all devices of the namespace.
    pub fn list(&mut self) -> Result<Vec<Link>, NetlinkError> {
        self.netlink.dump("list devices", RTM_GETLINK, &link_header(0, 0, 0, 0), |_| {}, Link::parse)
    }

    /// Returns the device with this name; `None` if it does not exist.
    pub fn get(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut found = None;
        let result = self.netlink.query(
            &format!("look up device {name}"),
            RTM_GETLINK,
            &link_header(0, 0, 0, 0),
            |w| w.string(IFLA_IFNAME, name),
            |message| found = Link::parse(message),
        );
        ignore_missing(result)?;
        Ok(found)
    }

    /// Changes a device: its `flags` whose bits are set in `change`, and the attributes that `body` writes.
    pub(super) fn change(
        &mut self,
        what: &str,
        header: [u8; HEADER_LEN],
        body: impl FnOnce(&mut Writer),
    ) -> Result<(), NetlinkError> {
        self.netlink.request(what, RTM_NEWLINK, 0, &header, body)
    }

    pub(super) fn create(
        &mut self,
        what: &str,
        header: [u8; HEADER_LEN],
        body: impl FnOnce(&mut Writer),
    ) -> Result<(), NetlinkError> {
        self.netlink.request(what, RTM_NEWLINK, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &header, body)
    }

    pub fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        let up = libc::IFF_UP as u32;
        self.change("bring a device up", link_header(0, index, up, up), |_| {})
    }

    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        self.change("set a device's MTU", link_header(0, index, 0, 0), |w| w.u32(IFLA_MTU, mtu))
    }

    /// Deletes a device; succeeds if it does not exist. Deleting one end of a veth pair deletes the other too.
    pub fn delete(&mut self, name: &str) -> Result<(), NetlinkError> {
        let result = self.netlink.request(
            &format!("delete device {name}"),
            RTM_DELLINK,
            0,
            &link_header(0, 0, 0, 0),
            |w| w.string(IFLA_IFNAME, name),
        );
        ignore_missing(result)
    }
}
