//! Watches the folder of network configurations.

use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use super::state;

/// Calls `notify` with the current [`state`] at the start and after each change, until `stop`. Creates the
/// folder if it is missing.
pub async fn watch(
    conf_dir: &Path,
    notify: impl Fn(Result<(), String>),
    stop: CancellationToken,
) -> std::io::Result<()> {
    std::fs::create_dir_all(conf_dir)?;
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let changes = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE;
    inotify.add_watch(conf_dir, changes)?;
    // SAFETY: the descriptor is a duplicate, owned by the AsyncFd and neither replaced nor closed before it.
    let readiness = unsafe { AsyncFd::register(inotify.as_fd().try_clone_to_owned()?)? };
    loop {
        notify(state(conf_dir));
        let mut ready = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            ready = readiness.readable() => ready?,
        };
        // The kind of event does not matter: the folder is read again.
        while inotify.read_events().is_ok() {}
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_configuration_that_comes_and_goes_is_told() {
        let folder = std::env::temp_dir().join(format!("knarr-cni-watch-{}", std::process::id()));
        let (sender, mut states) = tokio::sync::mpsc::channel(16);
        let stop = CancellationToken::new();
        let watching = {
            let (folder, stop) = (folder.clone(), stop.clone());
            tokio::spawn(async move {
                watch(&folder, |state| sender.try_send(state.is_ok()).unwrap(), stop).await.unwrap();
            })
        };
        assert_eq!(states.recv().await, Some(false));
        let file = folder.join("10-a.conf");
        std::fs::write(&file, r#"{"name": "a", "type": "ptp", "cniVersion": "1.0.0"}"#).unwrap();
        assert_eq!(states.recv().await, Some(true));
        std::fs::remove_file(&file).unwrap();
        while states.recv().await != Some(false) {}
        stop.cancel();
        watching.await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
