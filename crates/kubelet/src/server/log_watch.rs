//! Notifies readers of a log file of changes to the file or its folder.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::inotify::Inotify;

/// How often a log is polled if the kernel has no inotify watches left.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A watch on the folder of a log file: for writes to the file, and for its rotation.
pub struct LogWatch {
    inotify: Option<Inotify>,
}

impl LogWatch {
    pub fn new(log: &Path) -> Self {
        let inotify = log.parent().and_then(|dir| open(dir).ok());
        Self { inotify }
    }

    /// Waits for a change since the previous call.
    pub async fn changed(&mut self) {
        let Some(inotify) = &mut self.inotify else {
            tokio::time::sleep(POLL_INTERVAL).await;
            return;
        };
        if inotify.changed().await.is_err() {
            self.inotify = None;
        }
    }
}

fn open(dir: &Path) -> io::Result<Inotify> {
    let inotify = Inotify::new()?;
    let mask =
        libc::IN_MODIFY | libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_MOVED_FROM | libc::IN_DELETE_SELF;
    inotify.watch(dir, mask)?;
    Ok(inotify)
}
