//! Files that containers may have replaced: only regular files are opened, and opening never blocks.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading. A link, a pipe or a device is an error ([`ErrorKind::InvalidInput`], `ELOOP`
/// for links).
pub fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a plain file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_pipes_are_refused_at_once() {
        let dir = std::env::temp_dir().join(format!("knarr-plain-{:016x}", fastrand::u64(..)));
        std::fs::create_dir_all(&dir).unwrap();
        let [plain, link, pipe] = ["plain", "link", "pipe"].map(|name| dir.join(name));
        std::fs::write(&plain, "x").unwrap();
        std::os::unix::fs::symlink(&plain, &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(open(&plain).is_ok());
        assert_eq!(open(&link).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(open(&pipe).unwrap_err().kind(), ErrorKind::InvalidInput);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
