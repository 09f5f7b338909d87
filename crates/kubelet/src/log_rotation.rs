//! Limits the size of containers' logs: a full log is renamed, and the container continues in a new file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::runtime::{ContainerRuntime, ContainerState};

/// As upstream's containerLogMonitorInterval. There is no notification of sizes, so they are polled.
const INTERVAL: Duration = Duration::from_secs(10);

/// Rotates logs until `stop` is cancelled.
pub async fn run(
    config: Config,
    runtime: Arc<dyn ContainerRuntime>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(INTERVAL) => {}
        }
        let Ok(containers) = runtime.list_containers().await else { continue };
        for container in containers.iter().filter(|c| c.state == ContainerState::Running) {
            let path = &container.log_path;
            let full = fs::metadata(path).is_ok_and(|meta| meta.len() > config.container_log_max_size);
            if !full {
                continue;
            }
            match rotate(path, config.container_log_max_files, clock.now()) {
                Ok(renamed) => {
                    if let Err(error) = runtime.reopen_container_log(&container.id).await {
                        tracing::warn!(container = %container.id, %error, "cannot reopen a log");
                        // One long log is better than none.
                        let _ = fs::rename(renamed, path);
                    }
                }
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot rotate a log"),
            }
        }
    }
}

/// Renames the log and removes the oldest files beyond the limit, in which the current one counts.
fn rotate(path: &Path, max_files: u32, now: Timestamp) -> io::Result<PathBuf> {
    let mut old = rotated(path)?;
    old.sort();
    let keep = usize::try_from(max_files.max(2)).unwrap_or(2) - 2;
    for file in old.iter().take(old.len().saturating_sub(keep)) {
        fs::remove_file(file)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(now.strftime(".%Y%m%d-%H%M%S").to_string());
    let renamed = PathBuf::from(name);
    fs::rename(path, &renamed)?;
    Ok(renamed)
}

/// Returns the earlier files of a log: their names end with a time.
pub fn rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_part = entry
            .file_name()
            .to_str()
            .is_some_and(|n| n.strip_prefix(name).is_some_and(|r| r.starts_with('.')));
        if is_part {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_stay() {
        let dir = std::env::temp_dir().join(format!("knarr-rotate-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let log = dir.join("0.log");
        for second in 0..6 {
            fs::write(&log, "x").unwrap();
            rotate(&log, 3, Timestamp::from_second(1_000_000 + second).unwrap()).unwrap();
            fs::write(&log, "y").unwrap();
        }
        let mut parts = rotated(&log).unwrap();
        parts.sort();
        assert_eq!(parts.len(), 2);
        assert!(parts[1].to_str().unwrap().ends_with("0.log.19700112-134645"), "{parts:?}");
        fs::remove_dir_all(dir).unwrap();
    }
}
