//! Looks up paths in a stack of unpacked layers as overlayfs will show them, without mounting it.

use std::fs::{self, Metadata};
use std::path::{Component, Path, PathBuf};

use super::attributes::{is_opaque, is_whiteout};

/// Unpacked layers, topmost first.
#[derive(Debug, Clone)]
pub struct Stack {
    layers: Vec<PathBuf>,
}

impl Stack {
    pub fn new(layers: Vec<PathBuf>) -> Stack {
        Stack { layers }
    }

    /// Returns the real path and metadata of the file that is visible at `path` (relative, without links and
    /// dots). The parents must be real directories; the caller resolves links in them.
    pub fn find(&self, path: &Path) -> Option<(PathBuf, Metadata)> {
        for layer in &self.layers {
            match find_in(layer, path) {
                Sight::Found(place, metadata) => return Some((place, metadata)),
                Sight::Hidden => return None,
                Sight::Below => {}
            }
        }
        None
    }
}

enum Sight {
    Found(PathBuf, Metadata),
    /// This layer hides the path in all layers below.
    Hidden,
    /// This layer does not have the path; the layers below decide.
    Below,
}

fn find_in(layer: &Path, path: &Path) -> Sight {
    let mut place = layer.to_owned();
    let mut opaque = is_opaque(&place);
    let mut components = path.components().peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else { return Sight::Hidden };
        place.push(name);
        let Ok(metadata) = fs::symlink_metadata(&place) else {
            return if opaque { Sight::Hidden } else { Sight::Below };
        };
        if is_whiteout(&metadata) {
            return Sight::Hidden;
        }
        if components.peek().is_none() {
            return Sight::Found(place, metadata);
        }
        if !metadata.is_dir() {
            return Sight::Hidden;
        }
        opaque |= is_opaque(&place);
    }
    Sight::Below
}
