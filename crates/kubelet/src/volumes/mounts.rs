//! Mount points: reading the mount table, mounting and unmounting.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::error::{Error, Result};

/// How many mounts that are stacked on one path are unmounted.
const MAX_STACKED: usize = 64;

/// One line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub path: PathBuf,
    pub fs_type: String,
}

/// Parses the text of a mountinfo file; lines that are not valid are left out.
pub fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let path = PathBuf::from(std::ffi::OsString::from_vec(unescape(fields.nth(4)?)));
    let fs_type = fields.skip_while(|f| *f != b"-").nth(1)?;
    Some(Mount { path, fs_type: String::from_utf8_lossy(fs_type).into_owned() })
}

/// Decodes the kernel's escapes: blank, tab, newline and backslash are written as three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

fn mountinfo() -> Result<Vec<Mount>> {
    let path = Path::new("/proc/thread-self/mountinfo");
    Ok(parse(&fs::read(path).map_err(Error::file("read", path))?))
}

/// Returns the type of the file system that is mounted at `path`, or `None` if it is no mount point.
pub fn mounted_at(path: &Path) -> Result<Option<String>> {
    let path = resolved(path);
    // The last line for a path is the topmost mount.
    Ok(mountinfo()?.into_iter().rev().find(|m| m.path == path).map(|m| m.fs_type))
}

/// Returns the mount points at `dir` and below, the deepest first.
pub fn mounted_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let dir = resolved(dir);
    let mut found: Vec<PathBuf> =
        mountinfo()?.into_iter().map(|m| m.path).filter(|p| p.starts_with(&dir)).collect();
    found.sort_by(|a, b| b.cmp(a));
    found.dedup();
    Ok(found)
}

/// Resolves symbolic links, as the kernel lists mount points with links resolved.
fn resolved(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Mounts a tmpfs of at most `size_bytes`, without swap where the kernel supports that.
pub fn mount_tmpfs(dir: &Path, size_bytes: Option<u64>) -> Result<()> {
    let size = size_bytes.map(|bytes| format!("size={bytes}")).unwrap_or_default();
    let with_noswap = if size.is_empty() { "noswap".to_owned() } else { format!("{size},noswap") };
    let attempt = |options: &str| mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some(options));
    match attempt(&with_noswap) {
        Err(nix::Error::EINVAL) => attempt(&size),
        result => result,
    }
    .map_err(|errno| Error::file("mount tmpfs at", dir)(errno.into()))
}

/// Bind mounts `source` at `target`, with the mounts below it.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(|errno| Error::file("bind mount at", target)(errno.into()))
}

/// Unmounts everything that is mounted at `path`. A mount that is in use is detached.
pub fn unmount(path: &Path) -> Result<()> {
    for _ in 0..MAX_STACKED {
        let flags = MntFlags::UMOUNT_NOFOLLOW;
        let result = match umount2(path, flags) {
            Err(nix::Error::EBUSY) => umount2(path, flags | MntFlags::MNT_DETACH),
            result => result,
        };
        match result {
            Ok(()) => {}
            // The path is no mount point, or does not exist.
            Err(nix::Error::EINVAL | nix::Error::ENOENT) => return Ok(()),
            Err(errno) => return Err(Error::file("unmount", path)(errno.into())),
        }
    }
    Err(Error::file("unmount", path)(io::Error::from_raw_os_error(libc::EBUSY)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_mountinfo() {
        let text = b"36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 shared:2 - ext4 /dev/root rw\n\
            37 35 0:5 / /mnt/c rw - tmpfs tmpfs rw\nnonsense\n";
        let got = parse(text);
        let want = [("/mnt/a b", "ext4"), ("/mnt/c", "tmpfs")];
        let want: Vec<Mount> =
            want.iter().map(|(p, t)| Mount { path: p.into(), fs_type: (*t).to_owned() }).collect();
        assert_eq!(got, want);
        assert_eq!(unescape(b"a\\134\\0"), b"a\\\\0");
    }
}
