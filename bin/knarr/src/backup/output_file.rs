//! An output file that gets its name only when it is complete and durable.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::fcntl::{AT_FDCWD, AtFlags};

/// A file that only its owner may read. Without [`OutputFile::commit`] nothing remains of it, even after
/// `kill -9`, if the file system supports unnamed files (O_TMPFILE); otherwise a hidden file
/// `.NAME.PID.partial` remains.
pub struct OutputFile {
    file: File,
    path: PathBuf,
    folder: PathBuf,
    temporary: PathBuf,
    /// Whether the file has its temporary name already.
    named: bool,
}

impl OutputFile {
    pub fn create(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name().filter(|_| !path.is_dir()) else {
            bail!("{} is a folder: name a file", path.display());
        };
        // An existing file is replaced by renaming, so its name must not be that of a device, a pipe or a
        // link.
        if fs::symlink_metadata(path).is_ok_and(|of| !of.is_file()) {
            bail!("{} is not a regular file: name another", path.display());
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let temporary = folder.join(hidden);
        let unnamed =
            OpenOptions::new().write(true).mode(0o600).custom_flags(nix::libc::O_TMPFILE).open(&folder);
        let (file, named) = match unnamed {
            Ok(file) => (file, false),
            Err(error) if has_no_unnamed_files(&error) => (named(&temporary, path)?, true),
            Err(error) => return Err(error).with_context(|| cannot_write(path)),
        };
        Ok(Self { file, path: path.to_owned(), folder, temporary, named })
    }

    /// Gives the file its name, replacing an existing file.
    pub fn commit(mut self) -> Result<()> {
        self.publish().with_context(|| cannot_write(&self.path))
    }

    fn publish(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if !self.named {
            remove(&self.temporary)?;
            let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let follow = AtFlags::AT_SYMLINK_FOLLOW;
            nix::unistd::linkat(AT_FDCWD, Path::new(&unnamed), AT_FDCWD, &self.temporary, follow)?;
            self.named = true;
        }
        fs::rename(&self.temporary, &self.path)?;
        self.named = false;
        File::open(&self.folder)?.sync_all()
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.named {
            // A failure to remove the file cannot be handled here.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

pub fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Returns whether the error means that the file system (or an old kernel) does not support O_TMPFILE.
fn has_no_unnamed_files(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::IsADirectory)
}

fn named(temporary: &Path, path: &Path) -> Result<File> {
    remove(temporary).with_context(|| cannot_write(path))?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary);
    file.with_context(|| cannot_write(path))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        fs::read_dir(folder).unwrap().map(name).collect()
    }

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("knarr-output-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("b");
        for keep in [false, true] {
            let mut output = OutputFile::create(&path).unwrap();
            if keep {
                // The file gets a temporary name, as on a file system without O_TMPFILE.
                output.file = named(&output.temporary, &path).unwrap();
                output.named = true;
            }
            output.write_all(b"half").unwrap();
            drop(output);
            assert_eq!(names(&folder), Vec::<String>::new());
        }
        for content in ["one", "two"] {
            let mut output = OutputFile::create(&path).unwrap();
            output.write_all(content.as_bytes()).unwrap();
            output.commit().unwrap();
            assert_eq!(names(&folder), ["b"]);
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        }
        assert!(OutputFile::create(&folder).is_err());
        for not_a_file in ["/dev/null", "/proc/self/fd/1"] {
            assert!(OutputFile::create(Path::new(not_a_file)).is_err(), "{not_a_file}");
        }
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(OutputFile::create(&link).is_err());
        assert!(OutputFile::create(&folder.join("missing/b")).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
