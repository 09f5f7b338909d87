//! Messages on the wire: one byte with the compressed flag, four with the length, then the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

pub const PREFIX: usize = 5;

/// Encodes a message with its prefix.
pub fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed, so encoding into it cannot fail.
    let _ = message.encode(&mut framed);
    framed.freeze()
}

/// The received part of a stream of messages.
#[derive(Default)]
pub struct Incoming {
    buffer: BytesMut,
}

impl Incoming {
    pub fn push(&mut self, bytes: Bytes) {
        self.buffer.put(bytes);
    }

    /// Takes a complete message, if there is one; returns an error text if it is compressed or longer than
    /// `most` bytes.
    pub fn take(&mut self, most: usize) -> Result<Option<Bytes>, String> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let [compressed, length @ ..] = *prefix;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err("a compressed message, although no compression was requested".to_owned());
        }
        if length > most {
            return Err(format!("received message larger than max ({length} vs. {most})"));
        }
        if self.buffer.len() < PREFIX + length {
            self.buffer.reserve(PREFIX + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_or_not_at_all() {
        let whole = frame(&"knarr".to_owned());
        let mut incoming = Incoming::default();
        incoming.push(whole.slice(..7));
        assert_eq!(incoming.take(100), Ok(None));
        incoming.push(whole.slice(7..));
        let message = incoming.take(100).unwrap().unwrap();
        assert_eq!(String::decode(message).unwrap(), "knarr");
        assert_eq!(incoming.take(100), Ok(None));
        incoming.push(whole.clone());
        assert!(incoming.take(3).unwrap_err().contains("7 vs. 3"));
        let mut compressed = Incoming::default();
        compressed.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert!(compressed.take(100).is_err());
    }
}
