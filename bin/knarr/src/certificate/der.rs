//! DER, the binary encoding of certificates.

use std::net::IpAddr;

use jiff::Timestamp;

pub fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        short @ 0..0x80 => out.push(short as u8),
        length => {
            let bytes = length.to_be_bytes();
            let bytes = &bytes[bytes.iter().take_while(|b| **b == 0).count()..];
            out.push(0x80 | bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
    out.extend_from_slice(content);
    out
}

pub fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

/// Encodes an explicitly tagged value `[number]`.
pub fn tagged(number: u8, content: &[u8]) -> Vec<u8> {
    tlv(0xa0 | number, content)
}

/// Encodes a positive number, most significant byte first.
pub fn integer(bytes: &[u8]) -> Vec<u8> {
    tlv(0x02, bytes)
}

pub fn oid(bytes: &[u8]) -> Vec<u8> {
    tlv(0x06, bytes)
}

pub fn bit_string(unused_bits: u8, bytes: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[unused_bits], bytes].concat())
}

/// Encodes an extension of id-ce (2.5.29).
pub fn extension(number: u8, critical: bool, value: &[u8]) -> Vec<u8> {
    let mut parts = vec![oid(&[0x55, 0x1d, number])];
    if critical {
        parts.push(tlv(0x01, &[0xff]));
    }
    parts.push(tlv(0x04, value));
    sequence(&parts)
}

/// Encodes a time: UTCTime until 2049, GeneralizedTime from then on.
pub fn time(at: Timestamp) -> Vec<u8> {
    let text = at.strftime("%Y%m%d%H%M%SZ").to_string();
    match text.get(2..) {
        Some(short) if text.as_str() < "2050" => tlv(0x17, short.as_bytes()),
        _ => tlv(0x18, text.as_bytes()),
    }
}

/// Encodes a subject with organizations and a common name.
pub fn name(organizations: &[&str], common_name: &str) -> Vec<u8> {
    let attribute = |type_: u8, text: &str| {
        let pair = sequence(&[oid(&[0x55, 4, type_]), tlv(0x0c, text.as_bytes())]);
        tlv(0x31, &pair)
    };
    let organizations = organizations.iter().map(|o| attribute(10, o));
    sequence(&organizations.chain([attribute(3, common_name)]).collect::<Vec<_>>())
}

/// Encodes alternative names; `None` if there are none.
pub fn general_names(names: &[String], addresses: &[IpAddr]) -> Option<Vec<u8>> {
    let names = names.iter().map(|name| tlv(0x82, name.as_bytes()));
    let addresses = addresses.iter().map(|address| match address {
        IpAddr::V4(v4) => tlv(0x87, &v4.octets()),
        IpAddr::V6(v6) => tlv(0x87, &v6.octets()),
    });
    let all: Vec<Vec<u8>> = names.chain(addresses).collect();
    (!all.is_empty()).then(|| sequence(&all))
}
