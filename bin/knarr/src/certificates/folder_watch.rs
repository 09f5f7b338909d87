//! Waits for changes in folders (inotify).

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use knarr_apimachinery::clock::Clock;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// Changes within this time are handled together.
const SETTLED: Duration = Duration::from_secs(1);

pub struct FolderWatch {
    inotify: Inotify,
    readiness: AsyncFd<std::os::fd::OwnedFd>,
}

impl FolderWatch {
    /// Watches those of the folders that exist.
    pub fn new(folders: &[PathBuf]) -> Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .context("cannot watch files (inotify)")?;
        for folder in folders {
            add(&inotify, folder)?;
        }
        let descriptor = inotify.as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is a duplicate, owned by the AsyncFd and neither replaced nor closed before
        // it.
        let readiness = unsafe { AsyncFd::register(descriptor) }.context("cannot watch files (epoll)")?;
        Ok(Self { inotify, readiness })
    }

    /// Waits until a file is written, renamed or deleted. Does not report which one: callers read the folder
    /// again.
    pub async fn changed(&self) -> Result<()> {
        loop {
            let mut ready = self.readiness.readable().await.context("cannot watch files")?;
            let changed = self.take();
            ready.clear_ready();
            // The events that made it ready may have been dropped by `forget` since.
            if changed {
                return Ok(());
            }
        }
    }

    /// Drops the changes so far.
    pub fn forget(&self) {
        self.take();
    }

    /// Reads all pending events; returns whether there were any.
    fn take(&self) -> bool {
        let mut some = false;
        while self.inotify.read_events().is_ok_and(|events| !events.is_empty()) {
            some = true;
        }
        some
    }
}

/// Waits for a change, and until further changes have settled: writers change several files, and the caller's
/// reaction may change some too. Waits forever if nothing is watched.
pub async fn changed(watch: Option<&FolderWatch>, clock: &Arc<dyn Clock>) {
    let Some(watch) = watch else { return std::future::pending().await };
    if let Err(error) = watch.changed().await {
        tracing::warn!("{error:#}");
        return std::future::pending().await;
    }
    clock.sleep(SETTLED).await;
    watch.forget();
}

fn add(inotify: &Inotify, folder: &Path) -> Result<()> {
    let changes = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_ONLYDIR;
    match inotify.add_watch(folder, changes) {
        Ok(_) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot watch {}", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_is_noticed_once() {
        let folder = std::env::temp_dir().join(format!("knarr-folder-watch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let watch = FolderWatch::new(&[folder.clone(), folder.join("missing")]).unwrap();
        let quiet = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(quiet, watch.changed()).await.is_err());
        std::fs::write(folder.join("a"), "1").unwrap();
        watch.changed().await.unwrap();
        assert!(tokio::time::timeout(quiet, watch.changed()).await.is_err());
        std::fs::write(folder.join("a"), "2").unwrap();
        watch.forget();
        assert!(tokio::time::timeout(quiet, watch.changed()).await.is_err());
        // Also if the change was read before it is dropped.
        std::fs::write(folder.join("a"), "3").unwrap();
        drop(watch.readiness.readable().await.unwrap());
        watch.forget();
        assert!(tokio::time::timeout(quiet, watch.changed()).await.is_err());
        std::fs::write(folder.join("a"), "4").unwrap();
        watch.changed().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        watch.changed().await.unwrap();
    }
}
