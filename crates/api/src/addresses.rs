//! IP addresses and networks: parsing, validation of strict and legacy fields, and warnings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knarr_apimachinery::field::{Error, ErrorList, Path};

/// Parses an address in any form that a field ever accepted: IPv4 octets may have leading zeros.
pub fn parse_ip(value: &str) -> Option<IpAddr> {
    if value.contains(':') {
        return value.parse().ok();
    }
    let mut octets = [0u8; 4];
    let mut parts = value.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

/// Maps an IPv4-mapped IPv6 address to the IPv4 address; other addresses stay as they are.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        v4 => v4,
    }
}

fn is_mapped(address: IpAddr) -> bool {
    plain(address) != address
}

/// Validates an address that need not be in canonical form (`FE80::0` for `fe80::`) and returns it.
pub fn ip(errors: &mut ErrorList, path: &Path, value: &str) -> Option<IpAddr> {
    let Some(address) = parse_ip(value) else {
        let problem = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.push(Error::invalid(path, value, problem));
        return None;
    };
    if value.parse::<IpAddr>().is_err() {
        errors.push(Error::invalid(path, value, "must not have leading 0s"));
    } else if is_mapped(address) {
        errors.push(Error::invalid(path, value, "must not be an IPv4-mapped IPv6 address"));
    }
    Some(plain(address))
}

/// Validates an address that must be in canonical form, as newer fields require, and returns it.
pub fn canonical_ip(errors: &mut ErrorList, path: &Path, value: &str) -> Option<IpAddr> {
    let before = errors.0.len();
    let address = ip(errors, path, value)?;
    if errors.0.len() == before && address.to_string() != value {
        let problem = format!("must be in canonical form (\"{address}\")");
        errors.push(Error::invalid(path, value, problem));
    }
    Some(address)
}

/// Returns a warning for an address in a legacy or non-canonical form.
pub fn ip_warning(path: &Path, value: &str) -> Option<String> {
    let address = parse_ip(value)?;
    let strict = value.parse::<IpAddr>().ok();
    if strict.is_none() || is_mapped(address) {
        let better = plain(address);
        return Some(format!("{path}: non-standard IP address {value:?} is invalid: use \"{better}\""));
    }
    (address.is_ipv6() && address.to_string() != value).then(|| {
        format!("{path}: IPv6 address {value:?} should be in RFC 5952 canonical format (\"{address}\")")
    })
}

/// A network: an address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// As the field spells it; bits beyond the prefix may be set.
    pub address: IpAddr,
    pub bits: u8,
}

impl Network {
    /// Parses a network in any form that a field ever accepted.
    pub fn parse(value: &str) -> Option<Self> {
        let (address, bits) = value.split_once('/')?;
        let address = parse_ip(address)?;
        if bits.is_empty() || !bits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let bits = bits.parse::<u8>().ok().filter(|bits| *bits <= size(address))?;
        Some(Self { address, bits })
    }

    /// Returns the network's first address: all bits beyond the prefix are zero.
    pub fn first(&self) -> IpAddr {
        let fixed = |size: u32| size - u32::from(self.bits).min(size);
        match self.address {
            IpAddr::V4(a) => {
                Ipv4Addr::from(u32::from(a) & u32::MAX.checked_shl(fixed(32)).unwrap_or(0)).into()
            }
            IpAddr::V6(a) => {
                Ipv6Addr::from(u128::from(a) & u128::MAX.checked_shl(fixed(128)).unwrap_or(0)).into()
            }
        }
    }

    pub fn contains(&self, other: &Self) -> bool {
        self.bits <= other.bits
            && self.address.is_ipv4() == other.address.is_ipv4()
            && Self { bits: self.bits, ..*other }.first() == self.first()
    }

    /// Returns the canonical form.
    pub fn canonical(&self) -> String {
        let (first, bits) = (self.first(), self.bits);
        match first {
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() && bits >= 96 => {
                format!("{}/{}", plain(first), bits - 96)
            }
            _ => format!("{first}/{bits}"),
        }
    }
}

fn size(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn has_leading_zeros(value: &str) -> bool {
    value.split_once('/').is_none_or(|(address, bits)| {
        address.parse::<IpAddr>().is_err() || (bits.len() > 1 && bits.starts_with('0'))
    })
}

/// Validates a network whose address need not be in canonical form, and returns it.
pub fn cidr(errors: &mut ErrorList, path: &Path, value: &str) -> Option<Network> {
    let Some(network) = Network::parse(value) else {
        let problem = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        errors.push(Error::invalid(path, value, problem));
        return None;
    };
    let problem = if has_leading_zeros(value) {
        "must not have leading 0s in IP or prefix length"
    } else if is_mapped(network.address) {
        "must not have an IPv4-mapped IPv6 address"
    } else if network.first() != network.address {
        "must not have bits set beyond the prefix length"
    } else {
        return Some(network);
    };
    errors.push(Error::invalid(path, value, problem));
    Some(network)
}

/// Validates a network that must be in canonical form, as newer fields require, and returns it.
pub fn canonical_cidr(errors: &mut ErrorList, path: &Path, value: &str) -> Option<Network> {
    let before = errors.0.len();
    let network = cidr(errors, path, value)?;
    let canonical = network.canonical();
    if errors.0.len() == before && canonical != value {
        let problem = format!("must be in canonical form ({canonical:?})");
        errors.push(Error::invalid(path, value, problem));
    }
    Some(network)
}

/// Returns warnings for a network in a legacy or non-canonical form.
pub fn cidr_warnings(path: &Path, value: &str) -> Vec<String> {
    let Some(network) = Network::parse(value) else { return Vec::new() };
    let canonical = network.canonical();
    let mut warnings = Vec::new();
    if network.first() != network.address {
        let single = format!("{}/{}", plain(network.address), size(network.address));
        warnings.push(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be {canonical:?} or {single:?}?)"
        ));
    }
    if has_leading_zeros(value) || is_mapped(network.address) {
        warnings.push(format!("{path}: non-standard CIDR value {value:?} is invalid: use {canonical:?}"));
    }
    if warnings.is_empty() && network.address.is_ipv6() && canonical != value {
        warnings.push(format!(
            "{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({canonical:?})"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let leading = "must not have leading 0s";
        for (text, problem) in [
            ("10.0.0.1", ""),
            ("010.000.0.01", leading),
            ("2001:db8::1", ""),
            ("2001:DB8::0:1", ""),
            ("::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address"),
            ("256.0.0.1", "must be a valid IP address"),
            ("1.2.3", "must be a valid IP address"),
            ("", "must be a valid IP address"),
        ] {
            let mut errors = ErrorList::new();
            ip(&mut errors, &Path::new("f"), text);
            assert_eq!(errors.is_empty(), problem.is_empty(), "{text}");
            assert!(errors.to_string().contains(problem), "{text}: {errors}");
        }
        let mut errors = ErrorList::new();
        canonical_ip(&mut errors, &Path::new("f"), "2001:DB8::0:1");
        assert!(errors.to_string().ends_with(r#"must be in canonical form ("2001:db8::1")"#), "{errors}");
    }

    #[test]
    fn networks() {
        for (text, problem) in [
            ("10.0.0.0/8", ""),
            ("10.0.0.0/08", "leading 0s"),
            ("10.0.0.1/8", "must not have bits set beyond the prefix length"),
            ("10.0.0.0/33", "must be a valid CIDR value"),
            ("::ffff:1.2.3.0/120", "IPv4-mapped"),
            ("0.0.0.0/0", ""),
            ("::/0", ""),
            ("x/8", "must be a valid CIDR value"),
        ] {
            let mut errors = ErrorList::new();
            cidr(&mut errors, &Path::new("f"), text);
            assert_eq!(errors.is_empty(), problem.is_empty(), "{text}");
            assert!(errors.to_string().contains(problem), "{text}: {errors}");
        }
        let network = |text| Network::parse(text).unwrap();
        assert!(network("10.0.0.0/8").contains(&network("10.1.0.0/16")));
        assert!(!network("10.0.0.0/8").contains(&network("11.0.0.0/16")));
        assert!(!network("10.0.0.0/16").contains(&network("10.0.0.0/8")));
        assert_eq!(
            cidr_warnings(&Path::new("f"), "10.0.0.1/8"),
            [
                r#"f: CIDR value "10.0.0.1/8" is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)"#
            ]
        );
    }
}
