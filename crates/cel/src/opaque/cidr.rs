//! Networks such as `10.0.0.0/8`.

use std::fmt;
use std::net::IpAddr;

/// A network: an address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    pub address: IpAddr,
    pub prefix: u8,
}

/// Returns the bits of an address, counted from the left.
fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn mask(prefix: u8) -> u128 {
    if prefix == 0 { 0 } else { u128::MAX << (128 - u32::from(prefix)) }
}

impl Cidr {
    pub fn parse(text: &str) -> Result<Self, String> {
        let refusal = |why: &str| format!("netip.ParsePrefix({text:?}): {why}");
        let (address, prefix) = text.rsplit_once('/').ok_or_else(|| refusal("no '/'"))?;
        let ip: IpAddr =
            address.parse().map_err(|_| refusal(&format!("ParseAddr({address:?}): unable to parse IP")))?;
        let plain =
            prefix.bytes().all(|b| b.is_ascii_digit()) && !(prefix.len() > 1 && prefix.starts_with('0'));
        let number: u8 = prefix
            .parse()
            .ok()
            .filter(|_| plain)
            .ok_or_else(|| refusal(&format!("bad bits after slash: {prefix:?}")))?;
        if number > if ip.is_ipv4() { 32 } else { 128 } {
            return Err(refusal("prefix length out of range"));
        }
        Ok(Self { address: ip, prefix: number })
    }

    pub fn masked(self) -> Self {
        let kept = bits(self.address) & mask(self.prefix);
        let address = match self.address {
            IpAddr::V4(_) => IpAddr::V4(((kept >> 96) as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(kept.into()),
        };
        Self { address, ..self }
    }

    pub fn contains(self, ip: IpAddr) -> bool {
        self.address.is_ipv4() == ip.is_ipv4() && (bits(self.address) ^ bits(ip)) & mask(self.prefix) == 0
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}
