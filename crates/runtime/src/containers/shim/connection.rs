//! The shim's connection to one server.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::containers::protocol::{
    Decoder, Envelope, Incoming, MAX_FRAME_BYTES, Request, decode_request, encode,
};
use crate::containers::socket;

/// A server that does not read is disconnected, so that its messages cannot fill the shim's memory.
const MAX_QUEUED_BYTES: usize = MAX_FRAME_BYTES;

struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

/// A connection with its unsent messages.
pub struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    queue: VecDeque<Frame>,
    queued_bytes: usize,
    pub subscribed: bool,
}

/// A request with its number and descriptors, or why it is not understood.
pub type Received = (u64, Result<Request, String>, Vec<OwnedFd>);

impl Connection {
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            decoder: Decoder::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            subscribed: false,
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns whether messages are waiting to be sent.
    pub fn wants_write(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Reads the available messages; an error means that the connection has ended.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Vec<Received>> {
        let mut fds = Vec::new();
        match socket::receive(self.stream.as_fd(), buffer, &mut fds) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.decoder.push(&buffer[..count], fds),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let mut out = Vec::new();
        while let Some((body, fds)) = self.decoder.next().map_err(io::Error::other)? {
            let (number, request) = decode_request(&body).map_err(io::Error::other)?;
            out.push((number, request, fds));
        }
        Ok(out)
    }

    /// Queues a message and sends as much as the socket accepts; an error means that the connection has ended.
    pub fn send(&mut self, number: u64, body: &Incoming, fds: Vec<OwnedFd>) -> io::Result<()> {
        let bytes = encode(&Envelope { number, body }, fds.len()).map_err(io::Error::other)?;
        self.queued_bytes += bytes.len();
        if self.queued_bytes > MAX_QUEUED_BYTES {
            return Err(io::Error::other("the server does not read"));
        }
        self.queue.push_back(Frame { bytes, sent: 0, fds });
        self.flush()
    }

    /// Sends queued messages until the socket accepts no more.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(frame) = self.queue.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = frame.fds.iter().map(AsFd::as_fd).collect();
            match socket::send(self.stream.as_fd(), &frame.bytes[frame.sent..], &fds) {
                Ok(count) => {
                    frame.sent += count;
                    frame.fds.clear();
                    if frame.sent == frame.bytes.len() {
                        self.queued_bytes -= frame.bytes.len();
                        self.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
