//! A blocking netlink socket: requests with acknowledgement, dumps, and whole nfnetlink batches.

use std::os::fd::AsRawFd;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

use super::{Attributes, Message, Messages, NetlinkError, Writer};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const RECEIVE_BUFFER: usize = 64 * 1024;
/// How often a dump is read again because the table changed during it; the last reading is then used as it is.
const DUMP_ATTEMPTS: usize = 5;
/// The kernel answers within the system call; a missing answer is a bug, which must not hang a node.
const RECEIVE_TIMEOUT_SECONDS: i64 = 10;

/// A socket that belongs to the network namespace of the thread that opened it.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
    send_buffer: usize,
}

impl Netlink {
    /// Opens a socket for links, addresses and routes.
    pub fn route() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_ROUTE)
    }

    /// Opens a socket for nf_tables and connection tracking.
    pub fn netfilter() -> Result<Self, NetlinkError> {
        Self::open(NETLINK_NETFILTER)
    }

    fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let mut socket = Socket::new(protocol).map_err(NetlinkError::Open)?;
        socket.bind_auto().map_err(NetlinkError::Open)?;
        // Both options only add detail to errors; a kernel without them works as well.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        set_receive_timeout(&socket).map_err(NetlinkError::Open)?;
        let netlink =
            Self { socket, sequence: 0, buffer: Vec::with_capacity(RECEIVE_BUFFER), send_buffer: 0 };
        netlink.set_option(libc::SO_RCVBUFFORCE, 4 * 1024 * 1024).map_err(NetlinkError::Open)?;
        Ok(netlink)
    }

    /// Sends one message and waits for its acknowledgement. Errors contain `what`, the name of the operation.
    pub fn request(
        &mut self,
        what: &str,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Writer),
    ) -> Result<(), NetlinkError> {
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        self.exchange(what, kind, flags, header, body, |_| {})
    }

    /// Sends one message, passes every message of the answer to `each`, and waits for the acknowledgement.
    pub fn query(
        &mut self,
        what: &str,
        kind: u16,
        header: &[u8],
        body: impl FnOnce(&mut Writer),
        each: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        self.exchange(what, kind, flags, header, body, each)
    }

    /// Reads a whole table; `collect` converts one message into at most one item.
    pub fn dump<T>(
        &mut self,
        what: &str,
        kind: u16,
        header: &[u8],
        body: impl Fn(&mut Writer),
        collect: impl Fn(Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        let mut items = Vec::new();
        for _ in 0..DUMP_ATTEMPTS {
            items.clear();
            let mut interrupted = false;
            self.exchange(what, kind, flags, header, &body, |message| {
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                items.extend(collect(message));
            })?;
            if !interrupted {
                break;
            }
        }
        Ok(items)
    }

    fn exchange(
        &mut self,
        what: &str,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Writer),
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut writer = Writer::new();
        writer.message(kind, flags, self.sequence, header, body);
        self.send(what, writer.as_bytes())?;
        loop {
            self.receive(what, 0)?;
            for message in Messages::new(&self.buffer) {
                // Skip answers to an earlier exchange that ended early.
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    NLMSG_ERROR | NLMSG_DONE => return acknowledged(what, &message),
                    _ => each(message),
                }
            }
        }
    }

    /// Sends a whole nfnetlink batch; when this returns, the kernel has committed or refused it. Every error is
    /// returned as (sequence number, errno, extended message); without errors the batch is in force.
    pub fn batch(
        &mut self,
        what: &str,
        batch: &[u8],
    ) -> Result<Vec<(u32, i32, Option<String>)>, NetlinkError> {
        self.grow_send_buffer(batch.len())
            .map_err(|source| NetlinkError::Send { what: what.to_owned(), source })?;
        self.send(what, batch)?;
        let mut errors = Vec::new();
        loop {
            match self.receive(what, libc::MSG_DONTWAIT) {
                Ok(()) => {}
                Err(NetlinkError::Receive { source, .. })
                    if source.kind() == std::io::ErrorKind::WouldBlock =>
                {
                    return Ok(errors);
                }
                // There are more errors than the socket buffer holds: those read so far are sufficient.
                Err(NetlinkError::Receive { source, .. })
                    if source.raw_os_error() == Some(libc::ENOBUFS) && !errors.is_empty() => {}
                Err(error) => return Err(error),
            }
            for message in Messages::new(&self.buffer).filter(|m| m.kind == NLMSG_ERROR) {
                let (errno, detail) = error_of(&message);
                if errno != 0 {
                    errors.push((message.sequence, errno, detail));
                }
            }
        }
    }

    fn send(&self, what: &str, bytes: &[u8]) -> Result<(), NetlinkError> {
        let kernel = SocketAddr::new(0, 0);
        let sent = self
            .socket
            .send_to(bytes, &kernel, 0)
            .map_err(|source| NetlinkError::Send { what: what.to_owned(), source })?;
        if sent != bytes.len() {
            return Err(NetlinkError::Send {
                what: what.to_owned(),
                source: std::io::ErrorKind::WriteZero.into(),
            });
        }
        Ok(())
    }

    fn receive(&mut self, what: &str, flags: i32) -> Result<(), NetlinkError> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, flags) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(NetlinkError::Receive { what: what.to_owned(), source }),
            }
        }
    }

    /// The kernel accepts a batch only as one datagram, so the socket's buffer must be able to hold it.
    fn grow_send_buffer(&mut self, needed: usize) -> std::io::Result<()> {
        let wanted = needed + needed / 4 + 64 * 1024;
        if wanted > self.send_buffer {
            self.set_option(libc::SO_SNDBUFFORCE, wanted)?;
            self.send_buffer = wanted;
        }
        Ok(())
    }

    fn set_option(&self, option: i32, value: usize) -> std::io::Result<()> {
        let value = i32::try_from(value).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        set_socket_option(&self.socket, option, &value)
    }
}

fn set_receive_timeout(socket: &Socket) -> std::io::Result<()> {
    let timeout = libc::timeval { tv_sec: RECEIVE_TIMEOUT_SECONDS, tv_usec: 0 };
    set_socket_option(socket, libc::SO_RCVTIMEO, &timeout)
}

fn set_socket_option<T>(socket: &Socket, option: i32, value: &T) -> std::io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn acknowledged(what: &str, message: &Message<'_>) -> Result<(), NetlinkError> {
    match error_of(message) {
        (0, _) => Ok(()),
        (errno, detail) => Err(NetlinkError::Kernel { what: what.to_owned(), errno, detail }),
    }
}

/// Returns the errno (zero for success) and the extended message of an error or done message.
fn error_of(message: &Message<'_>) -> (i32, Option<String>) {
    let code = message.payload.get(..4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).unwrap_or(0);
    let errno = code.checked_neg().unwrap_or(libc::EIO).max(0);
    if message.flags & NLM_F_ACK_TLVS == 0 || message.kind != NLMSG_ERROR {
        return (errno, None);
    }
    let echoed =
        message.payload.get(4..8).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).unwrap_or(16);
    let skip = if message.flags & NLM_F_CAPPED != 0 { 20 } else { 4 + (echoed as usize).next_multiple_of(4) };
    let attributes = Attributes::new(message.payload.get(skip..).unwrap_or_default());
    let detail = attributes.find_kind(NLMSGERR_ATTR_MSG).map(|a| a.as_str().to_owned());
    (errno, detail)
}
