//! Networks such as `10.0.0.0/8`.

use std::net::IpAddr;

use super::function::Function;
use super::ip;
use crate::error::EvalError;
use crate::opaque::Opaque;
use crate::opaque::cidr::Cidr;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "cidr",
        overloads: &[("string_to_cidr", "(string)net.CIDR")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(Value::Opaque(Opaque::Cidr(convert(s)?))),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "containsIP",
        overloads: &[
            ("cidr_contains_ip_string", "net.CIDR.(string)bool"),
            ("cidr_contains_ip_ip", "net.CIDR.(net.IP)bool"),
        ],
        call: contains_ip,
    },
    Function {
        name: "containsCIDR",
        overloads: &[
            ("cidr_contains_cidr_string", "net.CIDR.(string)bool"),
            ("cidr_contains_cidr", "net.CIDR.(net.CIDR)bool"),
        ],
        call: contains_cidr,
    },
    Function {
        name: "ip",
        overloads: &[("cidr_ip", "net.CIDR.()net.IP")],
        call: |args, _| one(args, |c| Value::Opaque(Opaque::Ip(c.address))),
    },
    Function {
        name: "prefixLength",
        overloads: &[("cidr_prefix_length", "net.CIDR.()int")],
        call: |args, _| one(args, |c| Value::Int(c.prefix.into())),
    },
    Function {
        name: "masked",
        overloads: &[("cidr_masked", "net.CIDR.()net.CIDR")],
        call: |args, _| one(args, |c| Value::Opaque(Opaque::Cidr(c.masked()))),
    },
    Function {
        name: "isCIDR",
        overloads: &[("is_cidr", "(string)bool")],
        call: |args, _| match args {
            [Value::String(s)] => Ok(Value::Bool(Cidr::parse(s).is_ok())),
            _ => Err(EvalError::NoSuchOverload),
        },
    },
    Function {
        name: "string",
        overloads: &[("cidr_to_string", "(net.CIDR)string")],
        call: |args, _| one(args, |c| Value::string(c.to_string())),
    },
];

fn convert(text: &str) -> Result<Cidr, EvalError> {
    let parsed = Cidr::parse(text).map_err(|why| {
        let inner = format!("network address parse error during conversion from string: {why}");
        EvalError::new(format!("network address parse error during conversion from string: {inner}"))
    })?;
    match parsed.address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(EvalError::new(format!(
            "network address parse error during conversion from string: IPv4-mapped IPv6 address {text:?} is not \
             allowed"
        ))),
        _ => Ok(parsed),
    }
}

fn one<'a>(args: &[Value<'a>], f: impl Fn(Cidr) -> Value<'a>) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Opaque(Opaque::Cidr(cidr))] => Ok(f(*cidr)),
        _ => Err(EvalError::NoSuchOverload),
    }
}

fn contains_ip<'a>(args: &[Value<'a>], _: &mut crate::budget::Budget<'_>) -> Result<Value<'a>, EvalError> {
    let (cidr, ip) = match args {
        [Value::Opaque(Opaque::Cidr(c)), Value::Opaque(Opaque::Ip(ip))] => (c, *ip),
        [Value::Opaque(Opaque::Cidr(c)), Value::String(s)] => (c, ip::parse(s)?),
        _ => return Err(EvalError::NoSuchOverload),
    };
    Ok(Value::Bool(cidr.contains(ip)))
}

fn contains_cidr<'a>(args: &[Value<'a>], _: &mut crate::budget::Budget<'_>) -> Result<Value<'a>, EvalError> {
    let (cidr, other) = match args {
        [Value::Opaque(Opaque::Cidr(a)), Value::Opaque(Opaque::Cidr(b))] => (a, *b),
        [Value::Opaque(Opaque::Cidr(a)), Value::String(s)] => (a, convert(s)?),
        _ => return Err(EvalError::NoSuchOverload),
    };
    Ok(Value::Bool(cidr.prefix <= other.prefix && cidr.contains(other.address)))
}
