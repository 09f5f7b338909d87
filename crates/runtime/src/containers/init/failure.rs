//! Why a process could not start, and its report to the shim.

use std::io;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

use crate::containers::socket;
use crate::containers::sys::errno_text;

/// The limits of a report and of the message in it: escapes make a byte up to six times as long.
pub const MAX_REPORT_BYTES: usize = 16 << 10;
const MAX_MESSAGE_BYTES: usize = 2 << 10;

/// Why a process could not start; the message has runc's wording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub message: String,
    pub exit_code: i32,
}

impl Failure {
    /// Describes a failed step of the set-up as `what: errno`.
    pub(in crate::containers) fn step(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure { message: format!("{what}: {}", errno_text(&error)), exit_code: 128 }
    }
}

/// Reports the failure to the shim over the report socket.
pub fn report_failure(report: BorrowedFd<'_>, mut failure: Failure) {
    // A message that the socket refused as too long would be taken for a successful start.
    failure.message.truncate(failure.message.floor_char_boundary(MAX_MESSAGE_BYTES));
    let text = serde_json::to_vec(&failure).unwrap_or_default();
    let _ = socket::send(report, &text, &[]);
}
