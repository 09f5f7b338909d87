//! The protocol between server and shim: frames of JSON, some with descriptors.
//!
//! A frame consists of the length of its JSON and the number of its descriptors (4 bytes each, little endian),
//! followed by the JSON. Answers carry the number of their request; number 0 marks a push, which answers no
//! request.
//!
//! Shims outlive servers, so the two may be of different versions of the program. The record of a sandbox and
//! the first line that its shim prints carry the protocol version ([`VERSION`]). A shim refuses requests of
//! unknown kinds or with unknown fields; a field added later is therefore omitted while it has its default
//! value.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cgroups::Resources;
use super::socket::MAX_FDS;
use super::spec::ContainerSpec;
use super::status::{ContainerStatus, TerminalSize};

/// The version of requests, answers, specs and the files of the state folder. Shims of version 0 do not report
/// a version, and ignore fields that they do not know.
pub const VERSION: u32 = 1;

/// The oldest shim version that a server of this version supports.
const OLDEST: u32 = 0;

/// Returns why a shim of this version is not supported; `None` if it is.
pub fn incompatible(version: u32) -> Option<String> {
    let known = (OLDEST..=VERSION).contains(&version);
    (!known).then(|| {
        format!("protocol version {version} of the shim is not known: known are {OLDEST} to {VERSION}")
    })
}

/// Returns which setting of a spec shims of this version would silently ignore; `None` if they apply or refuse
/// every one.
pub fn lost_by(version: u32, spec: &ContainerSpec) -> Option<String> {
    let lost = version == 0 && spec.app_armor.is_some();
    lost.then(|| "the sandbox was made by a version that applies no AppArmor profiles".to_owned())
}

/// The largest JSON of a frame. A spec with a large environment and many mounts stays far below it.
pub const MAX_FRAME_BYTES: usize = 8 << 20;

pub const HEADER_BYTES: usize = 8;

/// A message with the number of its request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub number: u64,
    pub body: T,
}

/// What the server asks the shim to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Request {
    /// Asks for the status of all containers; pushes follow on this connection from then on.
    Subscribe,
    Create(Box<ContainerSpec>),
    Start {
        id: String,
    },
    /// Sends a signal to the first process or, with `all`, to every process of the container.
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
    /// Carries the descriptors of the requested streams, in order.
    Exec(ExecSpec),
    KillExec {
        exec_id: String,
        signal: i32,
    },
    /// Carries the descriptors of the requested streams, in order.
    Attach {
        id: String,
        streams: StreamSet,
    },
    /// Asks the shim to kill all containers and to end.
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
    /// Returns the number of descriptors.
    pub fn count(self) -> usize {
        [self.stdin, self.stdout, self.stderr].into_iter().filter(|wanted| *wanted).count()
    }
}

/// A command to run in a container.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    pub container_id: String,
    pub exec_id: String,
    pub args: Vec<String>,
    /// A terminal instead of separate streams; the answer carries its master.
    pub tty: bool,
    pub size: Option<TerminalSize>,
    pub streams: StreamSet,
}

/// The shim's answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Response {
    Done,
    Containers(Vec<ContainerStatus>),
    Container(ContainerStatus),
    /// The process was started; if it has a terminal, the master is attached.
    Exec {
        pid: i32,
    },
    Error(RemoteError),
}

/// Why the shim refused or could not carry out a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct RemoteError {
    pub kind: ErrorKind,
    pub message: String,
    pub exit_code: i32,
}

/// The kind of a shim's error.
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

/// A message of the shim that answers no request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Push {
    Container(ContainerStatus),
    Oom { container_id: String },
    ExecExited { exec_id: String, exit_code: i32 },
}

/// A message that the server receives.
#[derive(Debug, Serialize, Deserialize)]
pub enum Incoming {
    Answer(Response),
    Push(Push),
}

/// The first line that a new shim prints on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ready {
    Pid { pid: i32, version: u32 },
    Error(String),
}

/// Decodes a request and returns its number, with the request itself or the reason why it is not understood.
pub fn decode_request(body: &[u8]) -> serde_json::Result<(u64, Result<Request, String>)> {
    let envelope: Envelope<Value> = serde_json::from_slice(body)?;
    let request = serde_json::from_value(envelope.body);
    let request = request.map_err(|error| {
        format!("the sandbox's shim (protocol version {VERSION}) does not understand: {error}")
    });
    Ok((envelope.number, request))
}

/// Encodes a message as a frame.
pub fn encode<T: Serialize>(message: &T, fds: usize) -> serde_json::Result<Vec<u8>> {
    let mut out = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut out, message)?;
    let length = (out.len() - HEADER_BYTES) as u32;
    out[..4].copy_from_slice(&length.to_le_bytes());
    out[4..8].copy_from_slice(&(fds as u32).to_le_bytes());
    Ok(out)
}

/// Assembles frames from the bytes and descriptors that the socket delivers.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
}

/// A frame's JSON and descriptors.
pub type Frame = (Vec<u8>, Vec<OwnedFd>);

/// The peer does not speak this protocol; the connection cannot be used any longer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame")]
pub struct Malformed;

impl Decoder {
    /// Adds bytes and descriptors from the socket.
    pub fn push(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) {
        self.bytes.extend_from_slice(bytes);
        self.fds.extend(fds);
    }

    /// Returns the next complete frame, if there is one.
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
        assert!(decoder.next().is_err(), "a descriptor is announced that did not arrive");
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
        assert!(decode_request(b"{}").is_err(), "a request without a number cannot be answered");
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
        assert!(!serde_json::to_string(&plain).unwrap().contains("app_armor"), "omitted at its default");
        let confined = ContainerSpec { app_armor: Some("web".into()), ..plain.clone() };
        assert_eq!((lost_by(0, &plain), lost_by(1, &confined)), (None, None));
        assert!(lost_by(0, &confined).unwrap().contains("AppArmor"));
    }
}
