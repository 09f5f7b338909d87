//! Image volumes: a snapshot of the image for each mount of a container, named after it.

use std::path::{Path, PathBuf};

use knarr_runtime::images::MappedIds;

use super::{Embedded, errors};
use crate::runtime::{Mount, Result, RuntimeError};

const INFIX: &str = "-image-";

fn name(container: &str, number: usize) -> String {
    format!("{container}{INFIX}{number}")
}

/// Returns the container that owns a snapshot.
pub fn owner(snapshot: &str) -> &str {
    snapshot.split_once(INFIX).map_or(snapshot, |(container, _)| container)
}

/// Returns the path to mount of an image's tree. The tree is read-only, so it cannot change before the mount.
fn inside(tree: &Path, sub_path: &str) -> Result<PathBuf> {
    let failed = |why: &str| {
        RuntimeError::Failed(format!("failed to mount image volume: sub path {sub_path:?}: {why}"))
    };
    let tree = tree.canonicalize().map_err(|e| failed(&e.to_string()))?;
    let path = tree.join(sub_path).canonicalize().map_err(|e| failed(&e.to_string()))?;
    if path.starts_with(&tree) { Ok(path) } else { Err(failed("it leads out of the image")) }
}

impl Embedded {
    /// Prepares the image trees that a container mounts, and records their paths.
    pub(super) async fn mount_images(
        &self,
        container: &str,
        ids: Option<&MappedIds>,
        mounts: &mut [Mount],
    ) -> Result<()> {
        let store = &self.inner.images;
        let wanted = mounts.iter_mut().filter_map(|m| Some((m.image.clone()?, &mut m.host_path)));
        for (number, (image, host_path)) in wanted.enumerate() {
            let name = name(container, number);
            store.create_snapshot(&name, &image.image).await.map_err(errors::image)?;
            let tree = store.mount_snapshot(&name, ids.cloned()).await.map_err(errors::image)?;
            let found = tokio::task::spawn_blocking(move || inside(&tree, &image.sub_path));
            *host_path = found.await.map_err(|e| RuntimeError::Failed(format!("background work: {e}")))??;
        }
        Ok(())
    }

    /// Removes a container's snapshots, its own writable one last.
    pub(super) async fn remove_snapshots(&self, container: &str) -> Result<()> {
        let store = &self.inner.images;
        let mut count = 0;
        while store.snapshot(&name(container, count)).await.map_err(errors::image)?.is_some() {
            count += 1;
        }
        for number in (0..count).rev() {
            store.remove_snapshot(&name(container, number)).await.map_err(errors::image)?;
        }
        store.remove_snapshot(container).await.map_err(errors::image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_know_their_container() {
        assert_eq!(owner(&name("abc", 1)), "abc");
        assert_eq!(owner("abc"), "abc");
    }

    #[test]
    fn sub_paths_stay_inside() {
        let tree = std::env::temp_dir().join(format!("knarr-image-volume-{}", std::process::id()));
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", tree.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", tree.join("out")).unwrap();
        let real = tree.canonicalize().unwrap();
        for (sub_path, expected) in [("", Some("")), ("a/b", Some("a/b")), ("link/b", Some("a/b"))] {
            assert_eq!(inside(&tree, sub_path).ok(), expected.map(|e| real.join(e)), "{sub_path}");
        }
        for sub_path in ["missing", "out", "..", "/etc"] {
            assert!(inside(&tree, sub_path).is_err(), "{sub_path}");
        }
        std::fs::remove_dir_all(&tree).unwrap();
    }
}
