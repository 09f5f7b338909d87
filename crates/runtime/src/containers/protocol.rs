//! What server and shim say to each other: frames of JSON, some with descriptors.
//!
//! A frame is the length of its JSON and the number of its descriptors, 4 bytes each, little endian,
//! then the JSON. Answers carry the request's number; number 0 is a push that nobody asked for.
//!
//! Shims outlive servers, so that the two may be of different versions of the program. The record of a sandbox and the
//! first line of its shim carry the version of all this ([`VERSION`]). A shim refuses requests with fields or of kinds
//! that it does not know; a field that is added later is therefore left out while it has its default.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cgroups::Resources;
use super::socket::MAX_FDS;
use super::spec::ContainerSpec;
use super::status::{ContainerStatus, TerminalSize};

/// Of requests, answers, specs and the files of the state folder. Shims of version 0 do not tell theirs, and leave out
/// of account what they do not know.
pub const VERSION: u32 = 1;

/// The oldest version that a server of this version can talk to.
const OLDEST: u32 = 0;

/// Why a shim cannot be talked to; `None` if it can.
pub fn incompatible(version: u32) -> Option<String> {
    let known = (OLDEST..=VERSION).contains(&version);
    (!known).then(|| {
        format!("protocol version {version} of the shim is not known: known are {OLDEST} to {VERSION}")
    })
}

/// What of a spec shims of the version would leave out without a word; `None` if they understand or refuse all of it.
pub fn lost_by(version: u32, spec: &ContainerSpec) -> Option<String> {
    let lost = version == 0 && spec.app_armor.is_some();
    lost.then(|| "the sandbox was made by a version that applies no AppArmor profiles".to_owned())
}

/// A spec with a large environment and many mounts stays far below.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

pub const HEADER_BYTES: usize = 8;

#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub number: u64,
    pub body: T,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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
    Pid { pid: i32, version: u32 },
    Error(String),
}

/// A request that came in: its number, and itself or why it is not understood.
pub fn decode_request(body: &[u8]) -> serde_json::Result<(u64, Result<Request, String>)> {
    let envelope: Envelope<Value> = serde_json::from_slice(body)?;
    let request = serde_json::from_value(envelope.body);
    let request = request.map_err(|error| {
        format!("the sandbox's shim (protocol version {VERSION}) does not understand: {error}")
    });
    Ok((envelope.number, request))
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

    #[test]
    fn what_a_later_server_asks_is_refused_in_words() {
        let decode = |text: &str| decode_request(text.as_bytes()).unwrap();
        let (number, request) =
            decode(r#"{"number":1,"body":{"Create":{"id":"c","args":["sh"],"rootfs":"/r"}}}"#);
        assert_eq!(number, 1);
        assert!(matches!(request, Ok(Request::Create(spec)) if spec.id == "c"));
        for (body, unknown) in [
            (r#"{"Create":{"id":"c","colour":"red"}}"#, "unknown field `colour`"),
            (
                r#"{"Create":{"mounts":[{"destination":"/d","kind":{"Bind":{"source":"/s","sealed":true}}}]}}"#,
                "`sealed`",
            ),
            (r#"{"Create":{"user":{"uid":1,"nick":"x"}}}"#, "`nick`"),
            (r#"{"Update":{"id":"c","resources":{"cpu_burst":1}}}"#, "`cpu_burst`"),
            (r#"{"Kill":{"id":"c","signal":9,"all":true,"core":true}}"#, "`core`"),
            (r#"{"Checkpoint":{"id":"c"}}"#, "unknown variant `Checkpoint`"),
        ] {
            let (number, request) = decode(&format!(r#"{{"number":7,"body":{body}}}"#));
            let error = request.unwrap_err();
            assert!(number == 7 && error.contains(unknown) && error.contains("version 1"), "{error}");
        }
        assert!(decode_request(b"{}").is_err(), "nobody to answer");
    }

    #[test]
    fn versions_that_are_understood() {
        for version in OLDEST..=VERSION {
            assert_eq!(incompatible(version), None);
        }
        assert_eq!(incompatible(9).unwrap(), "protocol version 9 of the shim is not known: known are 0 to 1");
    }

    #[test]
    fn what_old_shims_do_not_know_is_not_sent() {
        let plain = ContainerSpec::default();
        assert!(!serde_json::to_string(&plain).unwrap().contains("app_armor"), "left out at its default");
        let confined = ContainerSpec { app_armor: Some("web".into()), ..plain.clone() };
        assert_eq!((lost_by(0, &plain), lost_by(1, &confined)), (None, None));
        assert!(lost_by(0, &confined).unwrap().contains("AppArmor"));
    }
}
