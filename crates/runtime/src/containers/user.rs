//! Reads a user's entry in the container's own passwd file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Larger than any reasonable account file; of a larger one, only this many bytes are read.
const ACCOUNT_FILE_LIMIT: u64 = 4 << 20;

/// Reads a file below `root`, with symbolic links confined to it; returns an empty text if it does not exist.
pub(super) fn read_in_root(root: &Path, path: &str) -> String {
    let Ok(root) = File::open(root) else { return String::new() };
    // Non-blocking, because opening a FIFO or a device could block.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let Ok(file) = openat2(&root, path, OpenHow::new().flags(flags).resolve(resolve)) else {
        return String::new();
    };
    let mut bytes = Vec::new();
    let _ = File::from(file).take(ACCOUNT_FILE_LIMIT).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

/// Returns the home folder of `uid` according to the passwd text; `/` if it has none.
pub(super) fn home_of(passwd: &str, uid: u32) -> String {
    fields(passwd)
        .find(|entry| entry.len() >= 6 && entry[2].parse() == Ok(uid))
        .map(|entry| entry[5])
        .filter(|home| !home.is_empty())
        .unwrap_or("/")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:web:/srv:/bin/false\n";

    #[test]
    fn homes() {
        assert_eq!(home_of(PASSWD, 101), "/srv");
        assert_eq!(home_of(PASSWD, 5), "/");
    }
}
