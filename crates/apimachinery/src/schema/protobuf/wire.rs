//! Protobuf's wire format: tags, varints, lengths, and skipping unknown fields.

use super::{DecodeError, EncodeError};

pub const VARINT: u8 = 0;
pub const FIXED64: u8 = 1;
pub const BYTES: u8 = 2;
const START_GROUP: u8 = 3;
const END_GROUP: u8 = 4;
const FIXED32: u8 = 5;

/// The largest message: many readers use signed 32-bit lengths.
const MAX_LEN: usize = i32::MAX as usize;

/// A field's number and wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    pub number: u32,
    pub wire: u8,
}

/// Reads a message from start to end.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next tag; `None` at the end. `message` names the message in errors.
    pub fn tag(&mut self, message: &'static str) -> Result<Option<Tag>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let wire = (key & 7) as u8;
        // Truncated to 32 bits as in Go, so that it may be negative.
        let number = (key >> 3) as u32 as i32;
        if wire == END_GROUP {
            return Err(DecodeError::StrayEndGroup(message));
        }
        match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(Some(Tag { number, wire })),
            _ => Err(DecodeError::IllegalTag { message, number, wire: key }),
        }
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let (&byte, rest) = self.rest.split_first().ok_or(DecodeError::UnexpectedEof)?;
        self.rest = rest;
        Ok(byte)
    }

    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Overflow)
    }

    pub fn fixed64(&mut self) -> Result<u64, DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk::<8>().ok_or(DecodeError::UnexpectedEof)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// Reads a length and that many bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.varint()?;
        if i64::try_from(length).is_err() {
            return Err(DecodeError::NegativeLength);
        }
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::UnexpectedEof)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Skips a field's value.
    pub fn skip(&mut self, wire: u8) -> Result<(), DecodeError> {
        let mut open = 0_usize;
        let mut wire = wire;
        loop {
            match wire {
                VARINT => drop(self.varint()?),
                FIXED64 => drop(self.take(8)?),
                BYTES => drop(self.bytes()?),
                START_GROUP => open += 1,
                END_GROUP => open = open.checked_sub(1).ok_or(DecodeError::EndOfGroup)?,
                FIXED32 => drop(self.take(4)?),
                other => return Err(DecodeError::IllegalWireType(other)),
            }
            if open == 0 {
                return Ok(());
            }
            wire = (self.varint()? & 7) as u8;
        }
    }
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn put_tag(out: &mut Vec<u8>, number: u32, wire: u8) {
    put_varint(out, u64::from(number) << 3 | u64::from(wire));
}

/// Writes a number; negative ones take ten bytes.
pub fn put_int(out: &mut Vec<u8>, number: u32, value: i64) {
    put_tag(out, number, VARINT);
    put_varint(out, value as u64);
}

pub fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, BYTES);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a message with the content that `write` writes; its length is inserted afterwards.
pub fn put_message(
    out: &mut Vec<u8>,
    number: u32,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    put_tag(out, number, BYTES);
    let start = out.len();
    // Most messages are shorter than 128 bytes: the length fits one byte and nothing needs to be moved.
    out.push(0);
    write(out)?;
    let length = out.len() - start - 1;
    if length > MAX_LEN {
        return Err(EncodeError::TooLarge);
    }
    if length < 0x80 {
        out[start] = length as u8;
        return Ok(());
    }
    let mut prefix = Vec::with_capacity(5);
    put_varint(&mut prefix, length as u64);
    out.splice(start..=start, prefix);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(value));
            assert!(reader.is_empty());
        }
        assert_eq!(Reader::new(&[0x80]).varint(), Err(DecodeError::UnexpectedEof));
        assert_eq!(Reader::new(&[0xff; 11]).varint(), Err(DecodeError::Overflow));
    }

    #[test]
    fn lengths_of_every_size() {
        for size in [0, 127, 128, 20_000] {
            let mut out = Vec::new();
            put_message(&mut out, 5, |out| {
                out.extend(std::iter::repeat_n(7, size));
                Ok(())
            })
            .unwrap();
            let mut reader = Reader::new(&out);
            assert_eq!(reader.tag("X"), Ok(Some(Tag { number: 5, wire: BYTES })));
            assert_eq!(reader.bytes().unwrap().len(), size);
            assert_eq!(reader.tag("X"), Ok(None));
        }
    }

    #[test]
    fn skips_and_refuses() {
        let skip = |data: &[u8]| {
            let mut reader = Reader::new(data);
            let tag = reader.tag("X")?.map_or(0, |t| t.wire);
            reader.skip(tag).map(|()| reader.is_empty())
        };
        assert_eq!(skip(&[0x08, 0x80, 0x01]), Ok(true));
        assert_eq!(skip(&[0x09, 1, 2, 3, 4, 5, 6, 7, 8]), Ok(true));
        assert_eq!(skip(&[0x0b, 0x10, 0x01, 0x0c]), Ok(true));
        assert_eq!(skip(&[0x0d, 1, 2]), Err(DecodeError::UnexpectedEof));
        assert_eq!(skip(&[0x0a, 5, 2]), Err(DecodeError::UnexpectedEof));
        assert_eq!(skip(&[0x0c]), Err(DecodeError::StrayEndGroup("X")));
        assert_eq!(skip(&[0x0f]), Err(DecodeError::IllegalWireType(7)));
        assert_eq!(skip(&[0x00]), Err(DecodeError::IllegalTag { message: "X", number: 0, wire: 0 }));
        let huge = [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(skip(&huge), Err(DecodeError::NegativeLength));
    }
}
