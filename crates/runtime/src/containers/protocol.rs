//! What server and shim say to each other: frames of JSON, some with descriptors.
//!
//! A frame is the length of its JSON and the number of its descriptors, 4 bytes each, little endian,
//! then the JSON. Answers carry the request's number; number 0 is a push that nobody asked for.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::cgroups::Resources;
use super::socket::MAX_FDS;
use super::spec::ContainerSpec;
use super::status::{ContainerStatus, TerminalSize};

/// A spec with a large environment and many mounts stays far below.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

pub const HEADER_BYTES: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub number: u64,
    pub body: T,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// All containers; pushes follow on this connection from now on.
    Subscribe,
    Create(Box<ContainerSpec>),
    Start {
        id: String,
    },
    /// To the first process or, with `all`, to every process of the container.
    Kill {
        id: String,
        signal: i32,
        all: bool,
    },
    Update {
        id: String,
        resources: Resources,
    },
    Delete {
        id: String,
    },
    ReopenLog {
        id: String,
    },
    Resize {
        id: String,
        size: TerminalSize,
    },
    /// With the descriptors of the streams that are wanted, in order.
    Exec(ExecSpec),
    KillExec {
        exec_id: String,
        signal: i32,
    },
    /// With the descriptors of the streams that are wanted, in order.
    Attach {
        id: String,
        streams: StreamSet,
    },
    /// Kills all containers and ends the shim.
    Stop,
}

/// Which standard streams a request carries descriptors for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSet {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

impl StreamSet {
    pub fn count(self) -> usize {
        [self.stdin, self.stdout, self.stderr].into_iter().filter(|wanted| *wanted).count()
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ExecSpec {
    pub container_id: String,
    pub exec_id: String,
    pub args: Vec<String>,
    /// A terminal instead of streams; its master comes back with the answer.
    pub tty: bool,
    pub size: Option<TerminalSize>,
    pub streams: StreamSet,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Response {
    Done,
    Containers(Vec<ContainerStatus>),
    Container(ContainerStatus),
    /// Started; with a terminal, its master is attached.
    Exec {
        pid: i32,
    },
    Error(RemoteError),
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RemoteError {
    pub kind: ErrorKind,
    pub message: String,
    pub exit_code: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    NotFound,
    Exists,
    Invalid,
    State,
    Start,
    Exec,
    Other,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Push {
    Container(ContainerStatus),
    Oom { container_id: String },
    ExecExited { exec_id: String, exit_code: i32 },
}

/// What the server receives.
#[derive(Debug, Serialize, Deserialize)]
pub enum Incoming {
    Answer(Response),
    Push(Push),
}

/// First line on the new shim's standard output.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ready {
    Pid(i32),
    Error(String),
}

/// A frame ready to send.
pub fn encode<T: Serialize>(message: &T, fds: usize) -> serde_json::Result<Vec<u8>> {
    let mut out = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut out, message)?;
    let length = (out.len() - HEADER_BYTES) as u32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..8].copy_from_slice(&(fds as u32).to_le_bytes());
    Ok(out)
}

/// Puts frames together from what the socket gives.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
}

/// A frame's JSON and descriptors.
pub type Frame = (Vec<u8>, Vec<OwnedFd>);

/// The peer does not speak this protocol; the connection is of no more use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame")]
pub struct Malformed;

impl Decoder {
    pub fn push(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        self.bytes.extend_from_slice(bytes);
        self.fds.extend(fds);
    }

    /// The next whole frame, if there is one.
    pub fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let word = |at: usize| {
            let bytes: Option<[u8; 4]> = self.bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map(|b| u32::from_le_bytes(b) as usize)
        };
        let (Some(length), Some(count)) = (word(0), word(4)) else { return Ok(None) };
        if length > MAX_FRAME_BYTES || count > MAX_FDS {
            return Err(Malformed);
        }
        if self.bytes.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        if self.fds.len() < count {
            return Err(Malformed);
        }
        let body = self.bytes[HEADER_BYTES..HEADER_BYTES + length].to_vec();
        self.bytes.drain(..HEADER_BYTES + length);
        if self.bytes.is_empty() && self.bytes.capacity() > (64 << 10) {
            self.bytes = Vec::new();
        }
        Ok(Some((body, self.fds.drain(..count).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_apart_and_together() {
        let one = encode(&Envelope { number: 1, body: Request::Subscribe }, 0).unwrap();
        let two = encode(&Envelope { number: 2, body: Request::Stop }, 0).unwrap();
        let all = [one, two].concat();
        let mut decoder = Decoder::default();
        let mut numbers = Vec::new();
        for byte in all {
            decoder.push(&[byte], vec![]);
            while let Some((body, _)) = decoder.next().unwrap() {
                numbers.push(serde_json::from_slice::<Envelope<Request>>(&body).unwrap().number);
            }
        }
        assert_eq!(numbers, [1, 2]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&[0xff; 16], vec![]);
        assert!(decoder.next().is_err());
        let mut decoder = Decoder::default();
        decoder.push(&[2, 0, 0, 0, 1, 0, 0, 0, b'{', b'}'], vec![]);
        assert!(decoder.next().is_err(), "a descriptor is announced that did not come");
    }
}
