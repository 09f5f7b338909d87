//! Appends netlink messages and attributes to one growing buffer.

const MESSAGE_HEADER_LEN: usize = 16;
const NESTED: u16 = 1 << 15;

/// A buffer of netlink messages, each 4-byte aligned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Writes one message: the netlink header, the family's fixed `header`, then what `body` writes.
    pub fn message(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        header: &[u8],
        body: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        debug_assert_eq!(self.bytes.len() - start, MESSAGE_HEADER_LEN);
        self.raw(header);
        body(self);
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    /// Writes bytes outside of any attribute, for example a nested fixed header.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Writes an attribute with padding.
    pub fn attribute(&mut self, kind: u16, payload: &[u8]) {
        let length = (payload.len() + 4) as u16;
        debug_assert!(payload.len() + 4 <= usize::from(u16::MAX), "attribute {kind} is too long");
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(payload);
    }

    /// Writes a nested attribute that contains what `body` writes.
    pub fn nested(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        body(self);
        let length = self.bytes.len() - start;
        debug_assert!(length <= usize::from(u16::MAX), "nested attribute {kind} is too long");
        self.bytes[start..start + 2].copy_from_slice(&(length as u16).to_ne_bytes());
    }

    /// Appends the content of another writer, with attributes that were written separately.
    pub fn append(&mut self, other: &Writer) {
        self.bytes.extend_from_slice(&other.bytes);
    }

    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    pub fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    pub fn be16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub fn be64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Writes a NUL-terminated string.
    pub fn string(&mut self, kind: u16, value: &str) {
        let length = value.len() + 5;
        self.bytes.extend_from_slice(&(length as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Messages;

    #[test]
    fn what_is_written_can_be_read() {
        let mut writer = Writer::new();
        writer.message(20, 5, 7, &[1, 2, 3, 4], |w| {
            w.string(1, "eth0");
            w.nested(2, |w| w.be32(3, 0x0102_0304));
        });
        let message = Messages::new(writer.as_bytes()).next().unwrap();
        assert_eq!((message.kind, message.flags, message.sequence), (20, 5, 7));
        let attributes: Vec<_> = message.attributes(4).collect();
        assert_eq!(attributes[0].as_str(), "eth0");
        let inner: Vec<_> = attributes[1].nested().collect();
        assert_eq!((inner[0].kind, inner[0].be32()), (3, 0x0102_0304));
    }
}
