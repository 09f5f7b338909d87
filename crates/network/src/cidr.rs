//! IPv4 prefixes in the notation of the configuration and of node objects.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use thiserror::Error;

/// An IPv4 prefix with its host bits cleared, for example `10.42.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ipv4Cidr {
    network: Ipv4Addr,
    prefix_len: u8,
}

/// The text is not an IPv4 prefix.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} is not an IPv4 prefix (address/length)")]
pub struct CidrError {
    text: String,
}

impl Ipv4Cidr {
    /// Creates the prefix of `address`, whose host bits are cleared; a `prefix_len` above 32 counts as 32.
    pub fn new(address: Ipv4Addr, prefix_len: u8) -> Self {
        let prefix_len = prefix_len.min(32);
        let network = Ipv4Addr::from(u32::from(address) & mask_bits(prefix_len));
        Self { network, prefix_len }
    }

    pub fn network(&self) -> Ipv4Addr {
        self.network
    }

    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from(mask_bits(self.prefix_len))
    }

    /// Returns the last address of the prefix.
    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.network) | !mask_bits(self.prefix_len))
    }

    pub fn contains(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask_bits(self.prefix_len) == u32::from(self.network)
    }

    /// Returns whether all of `other` is inside.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix_len <= other.prefix_len && self.contains(other.network)
    }

    /// Returns whether the two prefixes have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns the address `offset` above the network address, if it is still inside.
    pub fn nth(&self, offset: u32) -> Option<Ipv4Addr> {
        let address = Ipv4Addr::from(u32::from(self.network).checked_add(offset)?);
        self.contains(address).then_some(address)
    }
}

fn mask_bits(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0)
}

impl FromStr for Ipv4Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let error = || CidrError { text: text.to_owned() };
        let (address, len) = text.split_once('/').ok_or_else(error)?;
        let address = address.parse().map_err(|_| error())?;
        let len: u8 = len.parse().map_err(|_| error())?;
        if len > 32 {
            return Err(error());
        }
        Ok(Self::new(address, len))
    }
}

impl fmt::Display for Ipv4Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_clears_host_bits() {
        for (text, shown) in [
            ("10.42.3.7/24", Some("10.42.3.0/24")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("1.2.3.4/32", Some("1.2.3.4/32")),
            ("1.2.3.4", None),
            ("1.2.3.4/33", None),
            ("a/8", None),
        ] {
            let parsed = text.parse::<Ipv4Cidr>().ok().map(|c| c.to_string());
            assert_eq!(parsed.as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn prefixes_cover_and_overlap() {
        let cidr = |text: &str| text.parse::<Ipv4Cidr>().unwrap();
        for (a, b, covers, overlaps) in [
            ("10.42.0.0/16", "10.42.3.0/24", true, true),
            ("10.42.3.0/24", "10.42.0.0/16", false, true),
            ("10.42.3.0/24", "10.42.3.0/24", true, true),
            ("10.42.3.0/24", "10.42.4.0/24", false, false),
            ("0.0.0.0/0", "192.0.2.1/32", true, true),
        ] {
            assert_eq!((cidr(a).covers(&cidr(b)), cidr(a).overlaps(&cidr(b))), (covers, overlaps), "{a} {b}");
        }
    }

    #[test]
    fn nth_stays_inside() {
        let cidr: Ipv4Cidr = "10.0.0.0/30".parse().unwrap();
        assert_eq!(cidr.nth(1), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(cidr.nth(4), None);
        assert_eq!(cidr.broadcast(), Ipv4Addr::new(10, 0, 0, 3));
    }
}
