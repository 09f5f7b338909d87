//! Netlink framing: writing messages, reading attributes, and a blocking socket that matches answers to
//! requests.

mod attributes;
mod socket;
mod writer;

pub use attributes::{Attribute, Attributes, Message, Messages};
pub use socket::Netlink;
pub use writer::Writer;

use thiserror::Error;

/// Why a netlink exchange failed.
#[derive(Debug, Error)]
pub enum NetlinkError {
    #[error("opening a netlink socket")]
    Open(#[source] std::io::Error),
    #[error("sending to the kernel: {what}")]
    Send { what: String, source: std::io::Error },
    #[error("reading the kernel's answer: {what}")]
    Receive { what: String, source: std::io::Error },
    /// The kernel refused the request; `detail` is its extended message if it sent one.
    #[error("{what}: {}{}", std::io::Error::from_raw_os_error(*.errno), .detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Kernel { what: String, errno: i32, detail: Option<String> },
    #[error("the kernel's answer is malformed: {what}")]
    Malformed { what: String },
}

impl NetlinkError {
    /// Returns whether the kernel refused the request with this errno.
    pub fn is(&self, wanted: i32) -> bool {
        matches!(self, Self::Kernel { errno, .. } if *errno == wanted)
    }
}

/// Turns a "does not exist" error into success, for deletes that must be repeatable.
pub fn ignore_missing(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(error)
            if [libc::ENOENT, libc::ENODEV, libc::ESRCH, libc::EADDRNOTAVAIL]
                .iter()
                .any(|e| error.is(*e)) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Turns an "exists already" error into success, for creates that must be repeatable.
pub fn ignore_existing(result: Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    match result {
        Err(error) if error.is(libc::EEXIST) => Ok(()),
        other => other,
    }
}
