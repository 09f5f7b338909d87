//! Parses netlink messages and attributes from received bytes; truncated input ends the iteration.

const MESSAGE_HEADER_LEN: usize = 16;
const KIND_MASK: u16 = 0x3fff;

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// Everything after the netlink header.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the attributes after the family's fixed header of `header_len` bytes.
    pub fn attributes(&self, header_len: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(align(header_len)..).unwrap_or_default())
    }
}

/// The messages of one datagram.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header = self.rest.get(..MESSAGE_HEADER_LEN)?;
        let length = u32_at(header, 0) as usize;
        if length < MESSAGE_HEADER_LEN {
            self.rest = &[];
            return None;
        }
        let payload = self.rest.get(MESSAGE_HEADER_LEN..length)?;
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32_at(header, 8),
            payload,
        };
        self.rest = self.rest.get(align(length)..).unwrap_or_default();
        Some(message)
    }
}

/// One attribute; its accessors return zero or an empty value for a payload of the wrong size.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub fn u8(&self) -> u8 {
        self.payload.first().copied().unwrap_or_default()
    }

    pub fn u32(&self) -> u32 {
        self.payload.get(..4).map(|b| u32_at(b, 0)).unwrap_or_default()
    }

    pub fn be16(&self) -> u16 {
        self.payload.get(..2).map(|b| u16::from_be_bytes([b[0], b[1]])).unwrap_or_default()
    }

    pub fn be32(&self) -> u32 {
        u32::from_be(self.u32())
    }

    pub fn be64(&self) -> u64 {
        self.payload.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes).unwrap_or_default()
    }

    /// Returns the text up to the first NUL; empty if it is not UTF-8.
    pub fn as_str(&self) -> &'a str {
        let end = self.payload.iter().position(|b| *b == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(&self.payload[..end]).unwrap_or_default()
    }

    pub fn ipv4(&self) -> Option<std::net::Ipv4Addr> {
        <[u8; 4]>::try_from(self.payload).ok().map(std::net::Ipv4Addr::from)
    }

    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }
}

/// Iterates over consecutive attributes.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the first attribute of this kind.
    pub fn find_kind(&self, kind: u16) -> Option<Attribute<'a>> {
        self.clone().find(|a| a.kind == kind)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let header = self.rest.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & KIND_MASK;
        let payload = self.rest.get(4..length)?;
        self.rest = self.rest.get(align(length)..).unwrap_or_default();
        Some(Attribute { kind, payload })
    }
}

fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_input_ends_quietly() {
        for bytes in [&[][..], &[1, 0][..], &[200, 0, 1, 0, 9][..], &[0, 0, 1, 0][..], &[3, 0, 1, 0][..]] {
            assert_eq!(Attributes::new(bytes).count(), 0, "{bytes:?}");
        }
        for bytes in [&[0u8; 15][..], &[0u8; 16][..], &[255u8; 20][..]] {
            assert_eq!(Messages::new(bytes).count(), 0);
        }
    }
}
