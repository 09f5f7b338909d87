//! Sets and maps: their definitions, their elements, and the byte layout of keys.

use std::net::Ipv4Addr;

use super::expr::Verdict;
use super::uapi::*;
use crate::netlink::Writer;

/// The type of a field of a key or value, by its number in nft's list of types (`nft list` prints fields by
/// it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    Integer,
    Ipv4Addr,
    InetProto,
    InetService,
}

impl KeyType {
    fn number(self) -> u32 {
        match self {
            Self::Integer => 4,
            Self::Ipv4Addr => 7,
            Self::InetProto => 12,
            Self::InetService => 13,
        }
    }

    /// Returns the number of bytes before padding to a register.
    fn len(self) -> u32 {
        match self {
            Self::Integer | Self::Ipv4Addr => 4,
            Self::InetProto => 1,
            Self::InetService => 2,
        }
    }
}

/// Returns the length in bytes and the type number of consecutive fields. A single field keeps its length,
/// several are padded.
fn shape(fields: &[KeyType]) -> (u32, u32) {
    match fields {
        [single] => (single.len(), single.number()),
        several => (4 * several.len() as u32, several.iter().fold(0, |n, f| n << 6 | f.number())),
    }
}

/// The type of a map's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataType {
    None,
    Verdict,
    Value(Vec<KeyType>),
}

/// Properties of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetFlags {
    /// Elements are ranges.
    pub interval: bool,
    /// Rules add elements, and elements expire.
    pub dynamic: bool,
}

/// A named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    pub name: String,
    pub key: Vec<KeyType>,
    pub data: DataType,
    pub flags: SetFlags,
    /// The highest number of elements; if `None`, the kernel's own limit applies.
    pub size: Option<u32>,
}

/// The value of one element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    None,
    Verdict(Verdict),
    Value(Vec<u8>),
    /// The inclusive end of a concatenated range, for interval sets with several fields.
    RangeEnd(Vec<u8>),
    /// The exclusive end of a range over a single field: it ends the range that began at the element before.
    IntervalEnd,
}

/// A map that exists as long as the rule that uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymousMap {
    pub key: Vec<KeyType>,
    pub data: DataType,
    pub elements: Vec<(Vec<u8>, Data)>,
}

const VERDICT_TYPE: u32 = 0xffff_ff00;
const FLAG_ANONYMOUS: u32 = 0x1;
const FLAG_CONSTANT: u32 = 0x2;
const FLAG_INTERVAL: u32 = 0x4;
const FLAG_MAP: u32 = 0x8;
const FLAG_TIMEOUT: u32 = 0x10;
const FLAG_EVAL: u32 = 0x20;
const FLAG_CONCAT: u32 = 0x80;

impl SetSpec {
    /// Returns a plain set or map without limits.
    pub fn new(name: &str, key: &[KeyType], data: DataType) -> Self {
        Self { name: name.to_owned(), key: key.to_vec(), data, flags: SetFlags::default(), size: None }
    }

    /// Makes the set one to which rules add elements, at most `size`.
    pub fn dynamic(mut self, size: u32) -> Self {
        self.flags.dynamic = true;
        self.size = Some(size);
        self
    }

    pub fn interval(mut self) -> Self {
        self.flags.interval = true;
        self
    }

    pub(super) fn write(&self, table: &str, id: u32, w: &mut Writer) {
        let mut flags = 0;
        if self.flags.interval {
            flags |= FLAG_INTERVAL;
        }
        if self.flags.dynamic {
            flags |= FLAG_TIMEOUT | FLAG_EVAL;
        }
        write_set(table, &self.name, flags, &self.key, &self.data, self.size, id, w);
    }
}

impl AnonymousMap {
    pub(super) fn write(&self, table: &str, name: &str, id: u32, w: &mut Writer) {
        let size = Some(self.elements.len() as u32);
        write_set(table, name, FLAG_ANONYMOUS | FLAG_CONSTANT, &self.key, &self.data, size, id, w);
    }
}

#[expect(clippy::too_many_arguments, reason = "the attributes of one message")]
fn write_set(
    table: &str,
    name: &str,
    mut flags: u32,
    key: &[KeyType],
    data: &DataType,
    size: Option<u32>,
    id: u32,
    w: &mut Writer,
) {
    let (key_len, key_type) = shape(key);
    let ranges_of_several = flags & FLAG_INTERVAL != 0 && key.len() > 1;
    if ranges_of_several {
        flags |= FLAG_CONCAT;
    }
    if *data != DataType::None {
        flags |= FLAG_MAP;
    }
    w.string(SET_TABLE, table);
    w.string(SET_NAME, name);
    w.be32(SET_FLAGS, flags);
    w.be32(SET_KEY_TYPE, key_type);
    w.be32(SET_KEY_LEN, key_len);
    match data {
        DataType::None => {}
        DataType::Verdict => {
            w.be32(SET_DATA_TYPE, VERDICT_TYPE);
            // The kernel sizes verdicts itself, but requires the attribute.
            w.be32(SET_DATA_LEN, 16);
        }
        DataType::Value(fields) => {
            let (len, kind) = shape(fields);
            w.be32(SET_DATA_TYPE, kind);
            w.be32(SET_DATA_LEN, len);
        }
    }
    if size.is_some() || ranges_of_several {
        w.nested(SET_DESC, |desc| {
            if let Some(size) = size {
                desc.be32(SET_DESC_SIZE, size);
            }
            if ranges_of_several {
                desc.nested(SET_DESC_CONCAT, |fields| {
                    for field in key {
                        fields.nested(LIST_ELEM, |f| f.be32(SET_FIELD_LEN, field.len()));
                    }
                });
            }
        });
    }
    w.be32(SET_ID, id);
}

pub(super) fn write_element(w: &mut Writer, key: &[u8], data: &Data) {
    w.nested(LIST_ELEM, |element| {
        element.nested(ELEM_KEY, |w| w.attribute(DATA_VALUE, key));
        match data {
            Data::None => {}
            Data::Verdict(verdict) => element.nested(ELEM_DATA, |w| verdict.write(w)),
            Data::Value(value) => element.nested(ELEM_DATA, |w| w.attribute(DATA_VALUE, value)),
            Data::RangeEnd(end) => element.nested(ELEM_KEY_END, |w| w.attribute(DATA_VALUE, end)),
            Data::IntervalEnd => element.be32(ELEM_FLAGS, ELEM_INTERVAL_END),
        }
    });
}

/// Keys and values in the layout of the registers: each field padded to 4 bytes.
pub mod key {
    use super::Ipv4Addr;

    /// Returns the key `ip . protocol . port`.
    pub fn addr_proto_port(ip: Ipv4Addr, protocol: u8, port: u16) -> Vec<u8> {
        let [a, b] = port.to_be_bytes();
        [&ip.octets()[..], &[protocol, 0, 0, 0, a, b, 0, 0]].concat()
    }

    /// Returns the key `protocol . port`.
    pub fn proto_port(protocol: u8, port: u16) -> Vec<u8> {
        let [a, b] = port.to_be_bytes();
        vec![protocol, 0, 0, 0, a, b, 0, 0]
    }

    /// Returns the key `ip . port`.
    pub fn addr_port(ip: Ipv4Addr, port: u16) -> Vec<u8> {
        let [a, b] = port.to_be_bytes();
        [&ip.octets()[..], &[a, b, 0, 0]].concat()
    }

    /// Returns the key `ip . ip`.
    pub fn addr_addr(a: Ipv4Addr, b: Ipv4Addr) -> Vec<u8> {
        [a.octets(), b.octets()].concat()
    }

    pub fn addr(ip: Ipv4Addr) -> Vec<u8> {
        ip.octets().to_vec()
    }

    /// Returns a number in the form in which the number generator stores it in a register.
    pub fn number(n: u32) -> Vec<u8> {
        n.to_ne_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        for (fields, expected) in [
            (&[KeyType::Ipv4Addr][..], (4, 7)),
            (&[KeyType::InetService][..], (2, 13)),
            (
                &[KeyType::Ipv4Addr, KeyType::InetProto, KeyType::InetService][..],
                (12, 7 << 12 | 12 << 6 | 13),
            ),
        ] {
            assert_eq!(shape(fields), expected, "{fields:?}");
        }
    }
}
