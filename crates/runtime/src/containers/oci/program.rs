//! Checks that a program may be used as an OCI runtime, and reads which features it reports.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::child::wait_within;
use crate::containers::exec_path::DEFAULT_PATH;
use crate::containers::sys::errno_text;

/// The command only prints what is compiled in.
const FEATURES_TIMEOUT: Duration = Duration::from_secs(10);
/// A pipe holds no more, and its content is read only after the program has ended.
const MOST_FEATURES: u64 = 64 << 10;

/// An OCI runtime that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciProgram {
    /// The path of the program itself, with links resolved.
    pub path: PathBuf,
    /// Whether it supports `recursiveReadOnly` of volume mounts.
    pub recursive_read_only_mounts: bool,
}

impl OciProgram {
    /// Checks the program and reads its features. Root runs it, so no other user may be able to change it.
    /// Blocks until the program has reported its features.
    pub fn open(path: &Path) -> Result<Self, String> {
        let path = checked(path)?;
        let recursive_read_only_mounts = features(&path).is_some_and(|f| f.makes_recursively_read_only());
        Ok(Self { path, recursive_read_only_mounts })
    }
}

fn checked(path: &Path) -> Result<PathBuf, String> {
    let refuse = |what: &str| format!("{}: {what}", path.display());
    if !path.is_absolute() {
        return Err(refuse("the path of an OCI runtime is absolute"));
    }
    let failed = |error: io::Error| refuse(&errno_text(&error));
    let real = fs::canonicalize(path).map_err(failed)?;
    let program = fs::metadata(&real).map_err(failed)?;
    if !program.is_file() {
        return Err(refuse("not a file"));
    }
    if program.mode() & 0o111 == 0 {
        return Err(refuse("not executable"));
    }
    if let Some(why) = changeable(program.uid(), program.mode(), 0o022) {
        return Err(refuse(why));
    }
    for folder in real.ancestors().skip(1) {
        let metadata = fs::metadata(folder).map_err(failed)?;
        // In a folder with the sticky bit, such as /tmp, users cannot remove or rename other users' files.
        let others = if metadata.mode() & 0o1000 == 0 { 0o002 } else { 0 };
        if let Some(why) = changeable(metadata.uid(), metadata.mode(), others) {
            return Err(refuse(&format!("its folder {} is {why}", folder.display())));
        }
    }
    Ok(real)
}

fn changeable(owner: u32, mode: u32, writers: u32) -> Option<&'static str> {
    match (owner, mode & writers) {
        (0, 0) => None,
        (0, _) => Some("writable by others than root"),
        _ => Some("not owned by root"),
    }
}

/// The output of the `features` command. Source: the OCI runtime specification 1.1, `features.md`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Features {
    mount_options: Vec<String>,
}

impl Features {
    fn makes_recursively_read_only(&self) -> bool {
        self.mount_options.iter().any(|option| option == "rro")
    }
}

/// Runs the `features` command; `None` for older runtimes that lack it.
fn features(program: &Path) -> Option<Features> {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", DEFAULT_PATH).arg("features").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let stdout = child.stdout.take()?;
    let ended = wait_within(child, FEATURES_TIMEOUT).ok()?;
    let mut text = Vec::new();
    stdout.take(MOST_FEATURES).read_to_end(&mut text).ok()?;
    if ended.success() { serde_json::from_slice(&text).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn only_roots_own_programs_run() {
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::geteuid() }, 0, "this test needs root");
        let folder = std::env::temp_dir().join(format!("knarr-oci-program-{}", std::process::id()));
        let (program, link) = (folder.join("runtime"), folder.join("link"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(&program, "#!/bin/sh\nexit 1\n").unwrap();
        symlink("runtime", &link).unwrap();
        let set =
            |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let why = |path: &Path| checked(path).map_err(|why| why.split_once(": ").unwrap().1.to_owned());
        set(&folder, 0o755);
        for (mode, want) in [
            (0o755, Ok(fs::canonicalize(&program).unwrap())),
            (0o644, Err("not executable".to_owned())),
            (0o775, Err("writable by others than root".to_owned())),
            (0o757, Err("writable by others than root".to_owned())),
        ] {
            set(&program, mode);
            assert_eq!((why(&program), why(&link)), (want.clone(), want));
        }
        set(&program, 0o755);
        chown(&program, Some(1), None).unwrap();
        assert_eq!(why(&program), Err("not owned by root".to_owned()));
        chown(&program, Some(0), None).unwrap();
        set(&folder, 0o777);
        assert!(why(&program).unwrap_err().ends_with("is writable by others than root"));
        set(&folder, 0o1777);
        assert!(why(&program).is_ok());
        assert_eq!(why(&folder), Err("not a file".to_owned()));
        assert_eq!(why(&folder.join("none")), Err("no such file or directory".to_owned()));
        assert_eq!(why(Path::new("runtime")), Err("the path of an OCI runtime is absolute".to_owned()));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_runtime_says_what_it_can_do() {
        let rro = |text: &str| serde_json::from_str::<Features>(text).unwrap().makes_recursively_read_only();
        assert!(rro(r#"{"ociVersionMin": "1.0.0", "mountOptions": ["ro", "rro"], "linux": {}}"#));
        assert!(!rro(r#"{"mountOptions": ["ro"]}"#) && !rro("{}"));
        assert!(features(Path::new("/bin/false")).is_none());
        assert!(features(Path::new("/bin/true")).is_none(), "it prints nothing");
    }
}
