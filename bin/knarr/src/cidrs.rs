//! Address ranges in the form in which flags give them.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};

/// Parses an IPv4 prefix of at most `longest` bits whose host bits are zero.
pub fn parse_cidr(option: &str, text: &str, longest: u8) -> Result<(Ipv4Addr, u8)> {
    let parsed =
        text.split_once('/').and_then(|(a, p)| Some((a.parse::<Ipv4Addr>().ok()?, p.parse::<u8>().ok()?)));
    let Some((address, prefix)) = parsed.filter(|(_, p)| *p > 0 && *p <= 32) else {
        bail!("{option}: {text} is not an IPv4 range such as 10.42.0.0/16");
    };
    if prefix > longest {
        bail!("{option}: {text} is too small: give it a prefix of /{longest} or shorter");
    }
    Ok((Ipv4Addr::from(u32::from(address) & (u32::MAX << (32 - prefix))), prefix))
}
