//! Resolves a container's user: names and numbers by the image's own `/etc/passwd` and `/etc/group`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// The largest passwd or group file that is read.
const MAX_FILE_BYTES: u64 = 8 << 20;
const MAX_LINES: usize = 200_000;

/// The user that a process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedUser {
    pub uid: u32,
    pub gid: u32,
    /// The groups in which the image lists the user, in ascending order, without `gid`.
    pub supplementary_groups: Vec<u32>,
    /// `/` if the image does not have the user.
    pub home: String,
    /// The login name, if the image has one for the uid.
    pub name: Option<String>,
}

/// Why a user could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error("user {0:?}: no users found")]
    NoUser(String),
    #[error("group {0:?}: no groups found")]
    NoGroup(String),
    #[error("invalid USER value {0:?}")]
    Format(String),
    #[error("user or group id {0} is out of range")]
    Range(String),
    #[error("cannot read {path} of the image")]
    Read { path: &'static str, source: io::Error },
}

struct Passwd {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

/// Resolves `user` (`""`, `uid`, `name`, each with an optional `:gid` or `:group`) inside `rootfs`, whose links
/// are followed as if it were `/`. A missing passwd or group file counts as empty. Blocks.
pub fn resolve_user(rootfs: &Path, user: &str) -> Result<ResolvedUser, UserError> {
    let passwd = read_passwd(&read_inside(rootfs, "/etc/passwd")?);
    let groups = read_groups(&read_inside(rootfs, "/etc/group")?);
    resolve(&passwd, &groups, user)
}

fn resolve(passwd: &[Passwd], groups: &[Group], user: &str) -> Result<ResolvedUser, UserError> {
    let (who, group) = match user.split_once(':') {
        Some((who, group)) if !group.contains(':') && !group.is_empty() => (who, Some(group)),
        Some(_) => return Err(UserError::Format(user.to_owned())),
        None => (user, None),
    };
    let who = if who.is_empty() { "0" } else { who };
    let (entry, uid) = match number(who)? {
        Some(uid) => (passwd.iter().find(|p| p.uid == uid), uid),
        None => {
            let entry = passwd.iter().find(|p| p.name == who);
            let entry = entry.ok_or_else(|| UserError::NoUser(who.to_owned()))?;
            (Some(entry), entry.uid)
        }
    };
    let gid = match group {
        None => entry.map_or(0, |p| p.gid),
        Some(group) => match number(group)? {
            Some(gid) => gid,
            None => {
                let found = groups.iter().find(|g| g.name == group);
                found.ok_or_else(|| UserError::NoGroup(group.to_owned()))?.gid
            }
        },
    };
    let mut supplementary_groups: Vec<u32> = entry
        .map(|p| groups.iter().filter(|g| g.members.contains(&p.name)).map(|g| g.gid).collect())
        .unwrap_or_default();
    supplementary_groups.sort_unstable();
    supplementary_groups.dedup();
    supplementary_groups.retain(|g| *g != gid);
    Ok(ResolvedUser {
        uid,
        gid,
        supplementary_groups,
        home: entry.map(|p| p.home.clone()).filter(|h| !h.is_empty()).unwrap_or_else(|| "/".to_owned()),
        name: entry.map(|p| p.name.clone()),
    })
}

/// Parses an id; `None` if the text is not numeric. Ids end at 2^31 - 1, as in the runtime specification's
/// users.
fn number(text: &str) -> Result<Option<u32>, UserError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return Ok(None);
    }
    match text.parse::<u32>() {
        Ok(id) if id <= i32::MAX as u32 => Ok(Some(id)),
        _ => Err(UserError::Range(text.to_owned())),
    }
}

fn read_passwd(text: &str) -> Vec<Passwd> {
    lines(text)
        .filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            Some(Passwd {
                name: name.to_owned(),
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
                home: fields.nth(1).unwrap_or("").to_owned(),
            })
        })
        .collect()
}

fn read_groups(text: &str) -> Vec<Group> {
    lines(text)
        .filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
            let members = fields.next().unwrap_or("").split(',').filter(|m| !m.is_empty());
            Some(Group {
                name: name.to_owned(),
                gid: gid.parse().ok()?,
                members: members.map(str::to_owned).collect(),
            })
        })
        .collect()
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take(MAX_LINES).map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'))
}

fn read_inside(rootfs: &Path, path: &'static str) -> Result<String, UserError> {
    match open_inside(rootfs, path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(MAX_FILE_BYTES)
                .read_to_end(&mut bytes)
                .map_err(|source| UserError::Read { path, source })?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        Err(source) => Err(UserError::Read { path, source }),
    }
}

/// Opens a regular file below `rootfs`. Absolute links and `..` stay inside it. Any other file is refused
/// without opening it: an image may have the node of a watchdog or a tape there, and opening that has
/// consequences.
fn open_inside(rootfs: &Path, path: &str) -> io::Result<File> {
    let root = File::open(rootfs)?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let found = File::from(openat2(&root, path, how)?);
    if !found.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::fixture::TempDir;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# note\n\nbad line\napp:x:1000:1001::/home/app:/bin/sh\n\
        nohome:x:7:7\nwww-data:x:33:33:www:/var/www:/x\n1234:x:5:5::/n:/x\n";
    const GROUP: &str =
        "root:x:0:\nstaff:x:50:root,app\nvideo:x:44:app,www-data\nappgrp:x:1001:app\nmore:x:9:app";

    #[test]
    fn users_resolve_as_containerd_resolves_them() {
        let (passwd, groups) = (read_passwd(PASSWD), read_groups(GROUP));
        for (user, uid, gid, extra, home) in [
            ("", 0, 0, vec![50], "/root"),
            ("0", 0, 0, vec![50], "/root"),
            ("root", 0, 0, vec![50], "/root"),
            ("app", 1000, 1001, vec![9, 44, 50], "/home/app"),
            ("1000", 1000, 1001, vec![9, 44, 50], "/home/app"),
            ("app:staff", 1000, 50, vec![9, 44, 1001], "/home/app"),
            ("app:7777", 1000, 7777, vec![9, 44, 50, 1001], "/home/app"),
            ("4242", 4242, 0, vec![], "/"),
            ("4242:4343", 4242, 4343, vec![], "/"),
            (":50", 0, 50, vec![], "/root"),
            ("nohome", 7, 7, vec![], "/"),
        ] {
            let got = resolve(&passwd, &groups, user).unwrap_or_else(|e| panic!("{user}: {e}"));
            assert_eq!((got.uid, got.gid, got.home.as_str()), (uid, gid, home), "{user}");
            assert_eq!(got.supplementary_groups, extra, "{user}");
        }
        for (user, wanted) in [
            ("ghost", "user \"ghost\": no users found"),
            ("app:ghosts", "group \"ghosts\": no groups found"),
            ("a:b:c", "invalid USER value \"a:b:c\""),
            ("app:", "invalid USER value \"app:\""),
            ("4294967295", "user or group id 4294967295 is out of range"),
            ("-1", "user or group id -1 is out of range"),
        ] {
            assert_eq!(resolve(&passwd, &groups, user).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn links_stay_inside_the_image() {
        let dir = TempDir::new();
        let root = dir.path().join("image");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("usr")).unwrap();
        assert_eq!(resolve_user(&root, "5").unwrap().uid, 5, "no files at all");
        std::fs::write(dir.path().join("passwd"), "evil:x:666:666::/:/x\n").unwrap();
        std::os::unix::fs::symlink("../../passwd", root.join("etc/passwd")).unwrap();
        assert!(matches!(resolve_user(&root, "evil"), Err(UserError::NoUser(_))));
        std::fs::write(root.join("usr/passwd"), PASSWD).unwrap();
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        std::os::unix::fs::symlink("/usr/passwd", root.join("etc/passwd")).unwrap();
        assert_eq!(resolve_user(&root, "app").unwrap().uid, 1000);
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        nix::unistd::mkfifo(&root.join("etc/passwd"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let opened = Opened::watch(&root.join("etc/passwd"));
        assert!(matches!(resolve_user(&root, "app"), Err(UserError::Read { .. })));
        assert!(!opened.seen(), "the pipe was opened");
    }

    /// Detects whether a file was opened.
    struct Opened(File);

    impl Opened {
        fn watch(path: &Path) -> Self {
            use std::os::fd::FromRawFd;
            use std::os::unix::ffi::OsStrExt;
            let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: plain system calls; the descriptor is new and the path NUL-terminated.
            unsafe {
                let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
                assert!(fd >= 0 && libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_OPEN) >= 0);
                Self(File::from_raw_fd(fd))
            }
        }

        fn seen(mut self) -> bool {
            self.0.read(&mut [0; 4096]).is_ok()
        }
    }
}
