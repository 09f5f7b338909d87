//! Owners, modes, times, devices and extended attributes of unpacked files.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, UtimensatFlags, mknod, utimensat};
use nix::sys::time::TimeSpec;

const OPAQUE_XATTR: &[u8] = b"trusted.overlay.opaque";

/// Owner, permission bits and modification time, as in a tar header.
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub mtime_seconds: i64,
    pub mtime_nanos: i64,
}

impl Attributes {
    /// The attributes of directories that the archive omits.
    pub const IMPLIED_DIR: Attributes =
        Attributes { uid: 0, gid: 0, mode: 0o755, mtime_seconds: 0, mtime_nanos: 0 };

    pub fn of(metadata: &std::fs::Metadata) -> Attributes {
        Attributes {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode() & 0o7777,
            mtime_seconds: metadata.mtime(),
            mtime_nanos: metadata.mtime_nsec(),
        }
    }

    /// Sets the owner, then the mode, because changing the owner clears the set-uid bits. Never follows a link.
    pub fn apply_owner_and_mode(&self, path: &Path, symlink: bool) -> io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid))?;
        if symlink {
            return Ok(());
        }
        use std::os::unix::fs::PermissionsExt;
        // We created the last component, and it is not a link, so no link can be followed here.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(self.mode & 0o7777))
    }

    pub fn apply_time(&self, path: &Path) -> io::Result<()> {
        let time = TimeSpec::new(self.mtime_seconds, self.mtime_nanos);
        utimensat(nix::fcntl::AT_FDCWD, path, &time, &time, UtimensatFlags::NoFollowSymlink)?;
        Ok(())
    }
}

pub fn make_node(path: &Path, kind: SFlag, mode: u32, device: u64) -> io::Result<()> {
    mknod(path, kind, Mode::from_bits_truncate(mode & 0o7777), device)?;
    Ok(())
}

/// Creates overlayfs' whiteout: a character device 0/0.
pub fn make_whiteout(path: &Path) -> io::Result<()> {
    make_node(path, SFlag::S_IFCHR, 0, 0)
}

pub fn is_whiteout(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    metadata.file_type().is_char_device() && metadata.rdev() == 0
}

/// Marks a directory as opaque: it hides its content in lower layers.
pub fn set_opaque(dir: &Path) -> io::Result<()> {
    set_xattr(dir, OPAQUE_XATTR, b"y")
}

pub fn is_opaque(dir: &Path) -> bool {
    let (Ok(path), Ok(name)) = (CString::new(dir.as_os_str().as_bytes()), CString::new(OPAQUE_XATTR)) else {
        return false;
    };
    let mut value = [0u8; 4];
    // SAFETY: both strings are NUL-terminated and the buffer has the given length.
    let n = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    n == 1 && value[0] == b'y'
}

pub fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let name = CString::new(name)?;
    // SAFETY: both strings are NUL-terminated and the value has the given length.
    let result =
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether an image may set the attribute. It must not set those that control overlayfs
/// (`trusted.overlay.*`, `user.overlay.*`), which could redirect into another layer.
pub fn is_allowed_xattr(name: &str) -> bool {
    match name.split_once('.') {
        Some(("security", rest)) => rest == "capability",
        Some(("user", rest)) => !rest.starts_with("overlay.") && !rest.is_empty(),
        Some(("system", rest)) => rest.starts_with("posix_acl_"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_allowed_xattr;

    #[test]
    fn images_cannot_steer_the_overlay() {
        for (name, allowed) in [
            ("security.capability", true),
            ("user.mime_type", true),
            ("system.posix_acl_access", true),
            ("trusted.overlay.redirect", false),
            ("trusted.x", false),
            ("user.overlay.opaque", false),
            ("security.selinux", false),
            ("security.ima", false),
            ("nonsense", false),
        ] {
            assert_eq!(is_allowed_xattr(name), allowed, "{name}");
        }
    }
}
