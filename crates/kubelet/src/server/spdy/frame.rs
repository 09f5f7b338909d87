//! SPDY/3.1 frames, as far as data streams need them.
//!
//! Source: the SPDY/3.1 draft, section 2.

use bytes::{Bytes, BytesMut};

const VERSION: u16 = 3;
pub const FLAG_FIN: u8 = 1;
pub const FLAG_UNIDIRECTIONAL: u8 = 2;
/// The maximal frame size in bytes: larger frames end the connection; clients send 32 KiB.
const MAX_FRAME: usize = 1 << 20;
const HEADER: usize = 8;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GO_AWAY: u16 = 7;
const HEADERS: u16 = 8;

/// A frame from the peer. Header blocks are still compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    SynStream {
        id: u32,
        flags: u8,
        block: Bytes,
    },
    Headers {
        id: u32,
        flags: u8,
        block: Bytes,
    },
    RstStream {
        id: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    Data {
        id: u32,
        flags: u8,
        data: Bytes,
    },
    /// Settings, window updates and others that are ignored.
    Other,
}

/// The peer does not speak SPDY/3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed SPDY frame")]
pub struct BadFrame;

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |n, byte| n << 8 | u32::from(*byte))
}

/// Removes the next complete frame from the buffer; `None` if more bytes are needed.
pub fn take(buffer: &mut BytesMut) -> Result<Option<Frame>, BadFrame> {
    if buffer.len() < HEADER {
        return Ok(None);
    }
    let length = number(&[0, buffer[5], buffer[6], buffer[7]]) as usize;
    if length > MAX_FRAME {
        return Err(BadFrame);
    }
    if buffer.len() < HEADER + length {
        return Ok(None);
    }
    let head = buffer.split_to(HEADER);
    let payload = buffer.split_to(length).freeze();
    let flags = head[4];
    if head[0] & 0x80 == 0 {
        return Ok(Some(Frame::Data { id: number(&head), flags, data: payload }));
    }
    if u16::from_be_bytes([head[0] & 0x7f, head[1]]) != VERSION {
        return Err(BadFrame);
    }
    let id = || payload.get(..4).map(|b| number(b) & 0x7fff_ffff).ok_or(BadFrame);
    Ok(Some(match u16::from_be_bytes([head[2], head[3]]) {
        SYN_STREAM if payload.len() >= 10 => {
            Frame::SynStream { id: id()?, flags, block: payload.slice(10..) }
        }
        SYN_STREAM => return Err(BadFrame),
        HEADERS => Frame::Headers { id: id()?, flags, block: payload.slice(4..) },
        RST_STREAM => Frame::RstStream { id: id()? },
        PING => Frame::Ping { id: payload.get(..4).map(number).ok_or(BadFrame)? },
        GO_AWAY => Frame::GoAway,
        _ => Frame::Other,
    }))
}

fn control(kind: u16, flags: u8, payload: &[&[u8]]) -> Vec<u8> {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(HEADER + length);
    frame.extend_from_slice(&(VERSION | 0x8000).to_be_bytes());
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.push(flags);
    frame.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    payload.iter().for_each(|part| frame.extend_from_slice(part));
    frame
}

/// Encodes a frame that opens a stream of the highest priority without dependencies.
pub fn syn_stream(id: u32, block: &[u8]) -> Vec<u8> {
    control(SYN_STREAM, 0, &[&id.to_be_bytes(), &[0; 6], block])
}

/// Encodes a frame that accepts a stream.
pub fn syn_reply(id: u32, block: &[u8]) -> Vec<u8> {
    control(SYN_REPLY, 0, &[&id.to_be_bytes(), block])
}

/// Encodes a frame that aborts a stream.
pub fn rst_stream(id: u32, status: u32) -> Vec<u8> {
    control(RST_STREAM, 0, &[&id.to_be_bytes(), &status.to_be_bytes()])
}

/// Encodes a ping.
pub fn ping(id: u32) -> Vec<u8> {
    control(PING, 0, &[&id.to_be_bytes()])
}

/// Encodes the header of a data frame; the data follows.
pub fn data_head(id: u32, flags: u8, length: usize) -> [u8; HEADER] {
    let (id, length) = (id.to_be_bytes(), (length as u32).to_be_bytes());
    [id[0] & 0x7f, id[1], id[2], id[3], flags, length[1], length[2], length[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole() {
        let mut bytes = data_head(5, FLAG_FIN, 2).to_vec();
        bytes.extend_from_slice(b"hi");
        bytes.extend_from_slice(&ping(7));
        let mut buffer = BytesMut::new();
        let mut seen = Vec::new();
        for byte in bytes {
            buffer.extend_from_slice(&[byte]);
            seen.extend(take(&mut buffer).unwrap());
        }
        assert_eq!(
            seen,
            [Frame::Data { id: 5, flags: FLAG_FIN, data: Bytes::from_static(b"hi") }, Frame::Ping { id: 7 }]
        );
        assert!(buffer.is_empty());
    }

    #[test]
    fn nonsense_ends_the_connection() {
        let wrong_version = [0x80, 2, 0, 6, 0, 0, 0, 0];
        let short_syn = [0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1];
        let huge = [0, 0, 0, 1, 0, 0xff, 0xff, 0xff];
        for bad in [&wrong_version[..], &short_syn, &huge] {
            assert_eq!(take(&mut BytesMut::from(bad)), Err(BadFrame), "{bad:?}");
        }
    }
}
