//! Turns an image's or pod's user into numbers, by the container's own passwd and group files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::spec::User;
use super::{Error, Result};

/// More than any sane account file; a larger one is read only so far.
const ACCOUNT_FILE_LIMIT: u64 = 4 << 20;

/// Resolves `user`, `uid`, `user:group` or `uid:gid` within `rootfs`. Numbers need no entry; names do.
/// The groups that list the user are added.
pub fn resolve_user(rootfs: &Path, text: &str) -> Result<User> {
    let passwd = read_in_root(rootfs, "etc/passwd");
    let group = read_in_root(rootfs, "etc/group");
    resolve(&passwd, &group, text).map_err(Error::Invalid)
}

/// A file below `root` with symbolic links kept inside it; empty if there is none.
pub(super) fn read_in_root(root: &Path, path: &str) -> String {
    let Ok(root) = File::open(root) else { return String::new() };
    // What is not a plain file must not make us wait.
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

fn resolve(passwd: &str, group: &str, text: &str) -> std::result::Result<User, String> {
    let (user_text, group_text) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let user_text = if user_text.is_empty() { "0" } else { user_text };
    let number = user_text.parse::<u32>().ok();
    let entry = fields(passwd).find(|entry| {
        entry.len() >= 4 && (entry[0] == user_text || number.is_some_and(|uid| entry[2].parse() == Ok(uid)))
    });
    let (uid, mut gid) = match (&entry, number) {
        (Some(entry), _) => (
            entry[2].parse().map_err(|_| format!("bad uid of user {user_text:?}"))?,
            entry[3].parse().map_err(|_| format!("bad gid of user {user_text:?}"))?,
        ),
        (None, Some(uid)) => (uid, 0),
        (None, None) => {
            return Err(format!("unable to find user {user_text}: no matching entries in passwd file"));
        }
    };
    let mut additional_gids = Vec::new();
    if let Some(group_text) = group_text.filter(|text| !text.is_empty()) {
        gid = match group_text.parse() {
            Ok(gid) => gid,
            Err(_) => fields(group)
                .find(|entry| entry.len() >= 3 && entry[0] == group_text)
                .and_then(|entry| entry[2].parse().ok())
                .ok_or_else(|| {
                    format!("unable to find group {group_text}: no matching entries in group file")
                })?,
        };
    } else if let Some(entry) = &entry {
        let listed = fields(group)
            .filter(|group| group.len() >= 4 && group[3].split(',').any(|member| member == entry[0]))
            .filter_map(|group| group[2].parse::<u32>().ok());
        additional_gids.extend(listed.filter(|listed| *listed != gid));
    }
    Ok(User { uid, gid, additional_gids })
}

/// The home folder of `uid` by the passwd text given; `/` if it has none.
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
    const GROUP: &str = "root:x:0:\nweb:x:102:\nlogs:x:200:other,web\n";

    #[test]
    fn names_and_numbers() {
        let user = |uid, gid, additional_gids| Ok(User { uid, gid, additional_gids });
        for (text, want) in [
            ("", user(0, 0, vec![])),
            ("web", user(101, 102, vec![200])),
            ("101", user(101, 102, vec![200])),
            ("web:root", user(101, 0, vec![])),
            ("7:8", user(7, 8, vec![])),
            ("7", user(7, 0, vec![])),
        ] {
            assert_eq!(resolve(PASSWD, GROUP, text), want, "{text}");
        }
        assert!(resolve(PASSWD, GROUP, "nobody").is_err());
        assert!(resolve(PASSWD, GROUP, "web:nogroup").is_err());
    }

    #[test]
    fn homes() {
        assert_eq!(home_of(PASSWD, 101), "/srv");
        assert_eq!(home_of(PASSWD, 5), "/");
    }
}
