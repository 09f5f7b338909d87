//! Finds a container's executable and reports a failure in runc's wording.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};

use super::sys::{self, errno_text};

/// The value of PATH if neither the image nor the pod sets one.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a program cannot be run, with the exit code that a shell would use.
#[derive(Debug, PartialEq, Eq)]
pub struct LookupError {
    pub message: String,
    pub exit_code: i32,
}

/// Returns the value of a variable in a list of `KEY=value` entries; the last entry counts.
pub fn variable<'a>(env: &'a [String], key: &str) -> Option<&'a str> {
    env.iter().rev().find_map(|entry| entry.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the file that `name` refers to, searching `path` unless the name has a slash. Runs inside the
/// container's root and working directory.
pub fn look_up(name: &str, path: &str) -> Result<PathBuf, LookupError> {
    if name.contains('/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(PathBuf::from(name)),
            Err(Unfit::Stat(error)) => Err(LookupError {
                message: format!("exec: {name:?}: stat {name}: {}", errno_text(&error)),
                exit_code: 127,
            }),
            Err(Unfit::Directory) => {
                Err(LookupError { message: format!("exec: {name:?}: is a directory"), exit_code: 126 })
            }
            Err(Unfit::Mode) => {
                Err(LookupError { message: format!("exec: {name:?}: permission denied"), exit_code: 126 })
            }
        };
    }
    for folder in path.split(':') {
        let candidate = Path::new(if folder.is_empty() { "." } else { folder }).join(name);
        if executable(&candidate).is_ok() {
            return Ok(candidate);
        }
    }
    Err(LookupError {
        message: format!("exec: {name:?}: executable file not found in $PATH"),
        exit_code: 127,
    })
}

enum Unfit {
    Stat(io::Error),
    Directory,
    Mode,
}

/// Refuses magic links of procfs, because /proc/self/exe is the runtime's own program.
fn executable(path: &Path) -> Result<(), Unfit> {
    let how =
        OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = openat2(AT_FDCWD, path, how).map_err(|errno| Unfit::Stat(errno.into()))?;
    let mode = sys::stat_of(file.as_fd()).map_err(Unfit::Stat)?.st_mode;
    if mode & libc::S_IFMT == libc::S_IFDIR {
        return Err(Unfit::Directory);
    }
    if mode & 0o111 == 0 { Err(Unfit::Mode) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(name: &str) -> (String, i32) {
        match look_up(name, DEFAULT_PATH) {
            Ok(path) => (path.display().to_string(), 0),
            Err(error) => (error.message, error.exit_code),
        }
    }

    #[test]
    fn wording() {
        let cases = [
            ("no-such-program", "exec: \"no-such-program\": executable file not found in $PATH", 127),
            ("/no/such", "exec: \"/no/such\": stat /no/such: no such file or directory", 127),
            ("/etc", "exec: \"/etc\": is a directory", 126),
            ("/etc/passwd", "exec: \"/etc/passwd\": permission denied", 126),
            ("/bin/sh", "/bin/sh", 0),
        ];
        for (name, want, code) in cases {
            assert_eq!(message(name), (want.to_owned(), code));
        }
    }

    #[test]
    fn last_variable_counts() {
        let env = ["A=1".to_owned(), "AB=2".to_owned(), "A=3".to_owned()];
        assert_eq!(variable(&env, "A"), Some("3"));
        assert_eq!(variable(&env, "B"), None);
    }
}
