//! Sends and receives messages with file descriptors over unix sockets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The highest number of descriptors in one message.
pub const MAX_FDS: usize = 4;

const CONTROL_BYTES: usize = 64;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Sends bytes with descriptors attached to the first of them, and returns the number of bytes sent.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut control = Control([0; CONTROL_BYTES]);
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid msghdr; the control buffer is aligned and large enough for MAX_FDS.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let payload = (fds.len() * size_of::<RawFd>()) as u32;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            for (index, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(header).cast::<RawFd>().add(index).write_unaligned(fd.as_raw_fd());
            }
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Receives bytes and appends the descriptors that arrived with them to `fds`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero is a valid msghdr; buffers are valid for the lengths given; received descriptors are new
    // and no other code owns them.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let received = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(index).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        if message.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(io::Error::other("descriptors were lost: too many open files"));
        }
        Ok(received as usize)
    }
}

/// Creates a connected pair of sockets that keeps message boundaries.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fds has room for two descriptors, both fresh on success.
    unsafe {
        super::sys::check(libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        ))?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_travel() {
        let (a, b) = packet_pair().unwrap();
        let (read_end, write_end) = super::super::sys::pipe().unwrap();
        send(a.as_fd(), b"x", &[write_end.as_fd()]).unwrap();
        drop(write_end);
        let (mut buffer, mut fds) = ([0; 8], Vec::new());
        assert_eq!(receive(b.as_fd(), &mut buffer, &mut fds).unwrap(), 1);
        super::super::sys::write(fds[0].as_fd(), b"hello").unwrap();
        assert_eq!(super::super::sys::read(read_end.as_fd(), &mut buffer).unwrap(), 5);
    }
}
