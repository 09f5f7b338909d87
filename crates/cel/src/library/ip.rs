//! IP addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::function::Function;
use crate::error::EvalError;
use crate::opaque::Opaque;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "ip",
        overloads: &[("string_to_ip", "(string)net.IP")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(Value::Opaque(Opaque::Ip(parse(s)?))),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "family",
        overloads: &[("ip_family", "net.IP.()int")],
        call: |args, _| one(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
    },
    Function {
        name: "ip.isCanonical",
        overloads: &[("ip_is_canonical", "(string)bool")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(Value::Bool(parse(s)?.to_string() == **s)),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "isUnspecified",
        overloads: &[("ip_is_unspecified", "net.IP.()bool")],
        call: |args, _| one(args, |ip| Value::Bool(ip.is_unspecified())),
    },
    Function {
        name: "isLoopback",
        overloads: &[("ip_is_loopback", "net.IP.()bool")],
        call: |args, _| one(args, |ip| Value::Bool(ip.is_loopback())),
    },
    Function {
        name: "isLinkLocalMulticast",
        overloads: &[("ip_is_link_local_multicast", "net.IP.()bool")],
        call: |args, _| one(args, |ip| Value::Bool(is_link_local_multicast(ip))),
    },
    Function {
        name: "isLinkLocalUnicast",
        overloads: &[("ip_is_link_local_unicast", "net.IP.()bool")],
        call: |args, _| one(args, |ip| Value::Bool(is_link_local_unicast(ip))),
    },
    Function {
        name: "isGlobalUnicast",
        overloads: &[("ip_is_global_unicast", "net.IP.()bool")],
        call: |args, _| one(args, |ip| Value::Bool(is_global_unicast(ip))),
    },
    Function {
        name: "isIP",
        overloads: &[("is_ip", "(string)bool")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(Value::Bool(parse(s).is_ok())),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "string",
        overloads: &[("ip_to_string", "(net.IP)string")],
        call: |args, _| one(args, |ip| Value::string(ip.to_string())),
    },
];

fn one<'a>(args: &[Value<'a>], f: impl Fn(IpAddr) -> Value<'a>) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Opaque(Opaque::Ip(ip))] => Ok(f(*ip)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

/// Parses an address; refuses zones and IPv4-mapped IPv6 addresses.
pub fn parse(text: &str) -> Result<IpAddr, EvalError> {
    if text.contains('%') && text.split('%').next().is_some_and(|a| a.parse::<Ipv6Addr>().is_ok()) {
        return Err(EvalError::new(format!("IP address {text:?} with zone value is not allowed")));
    }
    let ip: IpAddr = text.parse().map_err(|_| {
        EvalError::new(format!(
            "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): unable to parse IP"
        ))
    })?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(EvalError::new(format!("IPv4-mapped IPv6 address {text:?} is not allowed")))
        }
        _ => Ok(ip),
    }
}

fn is_link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_global_unicast(ip: IpAddr) -> bool {
    !(ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || is_link_local_unicast(ip)
        || ip == IpAddr::V4(Ipv4Addr::BROADCAST))
}
