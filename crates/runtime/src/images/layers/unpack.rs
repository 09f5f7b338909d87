//! Unpacks one layer's tar into a directory, and translates its whiteouts to those of overlayfs.
//!
//! The archive is not trusted. Every parent directory is resolved here, component by component, inside the
//! layer that is being unpacked; links are followed as if its root were `/`. No other process uses the
//! directory while this runs, so no component can be swapped between the check and its use.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::SFlag;
use tar::EntryType;

use super::LayerError;
use super::attributes::{
    Attributes, is_allowed_xattr, is_whiteout, make_node, make_whiteout, set_opaque, set_xattr,
};
use super::stack::Stack;
use crate::images::content::COPY_BUFFER_BYTES;

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
/// The same number of links as the kernel follows in one path.
const MAX_LINKS: usize = 40;
/// The largest file that is copied up from a lower layer for a hard link to it.
const MAX_COPY_UP_BYTES: u64 = 8 << 30;

/// The size of an unpacked layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    pub bytes: u64,
    pub inodes: u64,
}

/// Unpacks `reader` into `target`, which is created. `lowers` are the layers below, topmost first.
pub fn unpack(
    reader: impl Read,
    target: &Path,
    lowers: Vec<PathBuf>,
    max_entries: u64,
) -> Result<Unpacked, LayerError> {
    fs::create_dir(target).map_err(LayerError::io("create", target))?;
    let mut unpacker = Unpacker {
        root: target.to_owned(),
        lowers: Stack::new(lowers),
        parents: HashMap::new(),
        opaque: HashSet::new(),
        dir_times: Vec::new(),
        done: Unpacked { bytes: 0, inodes: 1 },
        buffer: vec![0; COPY_BUFFER_BYTES],
    };
    unpacker.take_over_root()?;
    let mut archive = tar::Archive::new(reader);
    let mut entries = 0;
    for entry in archive.entries().map_err(LayerError::Archive)? {
        entries += 1;
        if entries > max_entries {
            return Err(LayerError::TooManyEntries(max_entries));
        }
        unpacker.entry(&mut entry.map_err(LayerError::Archive)?)?;
    }
    unpacker.finish()
}

struct Unpacker {
    root: PathBuf,
    lowers: Stack,
    /// Parent directories by their spelling in entries, and their resolved paths.
    parents: HashMap<PathBuf, PathBuf>,
    /// Relative paths of directories that hide everything below them in lower layers.
    opaque: HashSet<PathBuf>,
    /// Times of directories are set last, because creating files in a directory changes its times.
    dir_times: Vec<(PathBuf, Attributes)>,
    done: Unpacked,
    buffer: Vec<u8>,
}

impl Unpacker {
    /// Sets the attributes of the root directory to those of the layer below, because archives rarely contain
    /// the root.
    fn take_over_root(&mut self) -> Result<(), LayerError> {
        let attributes = match self.lowers.find(Path::new("")) {
            Some((_, metadata)) => Attributes::of(&metadata),
            None => Attributes::IMPLIED_DIR,
        };
        let root = self.root.clone();
        self.set_dir_attributes(root, attributes)
    }

    fn entry<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> Result<(), LayerError> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let raw = entry.path_bytes().into_owned();
        let path = relative(&raw)?;
        let extras = Extras::read(entry)?;
        let attributes = attributes(entry, &extras)?;
        let Some(name) = path.file_name() else {
            // The entry `./` is the root itself.
            let root = self.root.clone();
            extras.apply(&root)?;
            return self.set_dir_attributes(root, attributes);
        };
        let parent = self.parent(path.parent().unwrap_or(Path::new("")))?;
        if name.as_bytes().starts_with(WHITEOUT_PREFIX) {
            return self.whiteout(&raw, &parent, name.as_bytes());
        }
        let place = self.root.join(&parent).join(name);
        let relative_place = parent.join(name);
        let replaced_whiteout = self.make_room(&place, kind == EntryType::Directory)?;
        match kind {
            EntryType::Directory => {
                self.make_dir(&place, &relative_place, replaced_whiteout)?;
                extras.apply(&place)?;
                return self.set_dir_attributes(place, attributes);
            }
            EntryType::Link => return self.hard_link(entry, &raw, &place),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.regular_file(entry, &place)?;
            }
            EntryType::Symlink => {
                let target = link_name(entry, &raw)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), &place)
                    .map_err(LayerError::io("create symlink", &place))?;
                self.parents.clear();
            }
            EntryType::Char => self.node(entry, &place, SFlag::S_IFCHR)?,
            EntryType::Block => self.node(entry, &place, SFlag::S_IFBLK)?,
            EntryType::Fifo => self.node(entry, &place, SFlag::S_IFIFO)?,
            _ => return Err(refuse(&raw, "unhandled tar header type")),
        }
        self.done.inodes += 1;
        attributes
            .apply_owner_and_mode(&place, kind == EntryType::Symlink)
            .map_err(LayerError::io("set the owner of", &place))?;
        extras.apply(&place)?;
        attributes.apply_time(&place).map_err(LayerError::io("set the time of", &place))
    }

    /// Removes what exists at `place` for a new entry; returns whether it was a whiteout of this layer.
    fn make_room(&mut self, place: &Path, directory: bool) -> Result<bool, LayerError> {
        let Ok(metadata) = fs::symlink_metadata(place) else { return Ok(false) };
        if metadata.is_dir() {
            if directory {
                return Ok(false);
            }
            crate::remove_folder(place).map_err(LayerError::io("replace", place))?;
            self.parents.clear();
            self.dir_times.retain(|(dir, _)| !dir.starts_with(place));
            let root = &self.root;
            self.opaque.retain(|dir| !root.join(dir).starts_with(place));
        } else {
            fs::remove_file(place).map_err(LayerError::io("replace", place))?;
            if metadata.is_symlink() {
                self.parents.clear();
            }
        }
        Ok(is_whiteout(&metadata))
    }

    fn make_dir(&mut self, place: &Path, relative: &Path, opaque: bool) -> Result<(), LayerError> {
        match fs::create_dir(place) {
            Ok(()) => self.done.inodes += 1,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(LayerError::io("create directory", place)(e)),
        }
        if opaque {
            self.make_opaque(place, relative)?;
        }
        Ok(())
    }

    fn make_opaque(&mut self, place: &Path, relative: &Path) -> Result<(), LayerError> {
        set_opaque(place).map_err(LayerError::io("mark as opaque", place))?;
        self.opaque.insert(relative.to_owned());
        Ok(())
    }

    fn set_dir_attributes(&mut self, place: PathBuf, attributes: Attributes) -> Result<(), LayerError> {
        attributes.apply_owner_and_mode(&place, false).map_err(LayerError::io("set the owner of", &place))?;
        self.dir_times.push((place, attributes));
        Ok(())
    }

    fn regular_file<R: Read>(
        &mut self,
        entry: &mut tar::Entry<'_, R>,
        place: &Path,
    ) -> Result<(), LayerError> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(place)
            .map_err(LayerError::io("create", place))?;
        // The reader bounds the total, so a false size cannot make the unpacker write more than the limit.
        self.done.bytes += copy(entry, &mut file, &mut self.buffer).map_err(|e| match e {
            CopyError::Read(e) => LayerError::Archive(e),
            CopyError::Write(e) => LayerError::io("write", place)(e),
        })?;
        Ok(())
    }

    fn node<R: Read>(
        &mut self,
        entry: &tar::Entry<'_, R>,
        place: &Path,
        kind: SFlag,
    ) -> Result<(), LayerError> {
        let number = |n: io::Result<Option<u32>>| n.map(|n| n.unwrap_or(0)).map_err(LayerError::Archive);
        let device = match kind {
            SFlag::S_IFIFO => 0,
            _ => {
                libc::makedev(number(entry.header().device_major())?, number(entry.header().device_minor())?)
            }
        };
        make_node(place, kind, 0o600, device).map_err(LayerError::io("create node", place))
    }

    fn hard_link<R: Read>(
        &mut self,
        entry: &tar::Entry<'_, R>,
        raw: &[u8],
        place: &Path,
    ) -> Result<(), LayerError> {
        let target = relative(&link_name(entry, raw)?)?;
        let Some(name) = target.file_name() else { return Err(refuse(raw, "hard link to the root")) };
        let parent = self.parent(target.parent().unwrap_or(Path::new("")))?;
        let source = self.root.join(&parent).join(name);
        match fs::symlink_metadata(&source) {
            Ok(metadata) if metadata.is_dir() || is_whiteout(&metadata) => {
                return Err(refuse(raw, "hard link to something that is no file"));
            }
            Ok(_) => {}
            Err(_) => self.copy_up(raw, &parent, name)?,
        }
        fs::hard_link(&source, place).map_err(LayerError::io("create hard link", place))
    }

    /// Copies a file up from a layer below, because a hard link may refer to it.
    fn copy_up(&mut self, raw: &[u8], parent: &Path, name: &OsStr) -> Result<(), LayerError> {
        let path = parent.join(name);
        let found = if self.is_hidden(&path) { None } else { self.lowers.find(&path) };
        let Some((lower, metadata)) = found else {
            return Err(refuse(raw, "hard link to a file that does not exist"));
        };
        if !metadata.is_file() || metadata.len() > MAX_COPY_UP_BYTES {
            return Err(refuse(raw, "hard link to something that is no file"));
        }
        let place = self.root.join(&path);
        fs::copy(&lower, &place).map_err(LayerError::io("copy up", &place))?;
        let attributes = Attributes::of(&metadata);
        attributes
            .apply_owner_and_mode(&place, false)
            .and_then(|()| attributes.apply_time(&place))
            .map_err(LayerError::io("set the owner of", &place))?;
        self.done.bytes += metadata.len();
        self.done.inodes += 1;
        Ok(())
    }

    fn whiteout(&mut self, raw: &[u8], parent: &Path, name: &[u8]) -> Result<(), LayerError> {
        let dir = self.root.join(parent);
        if name == OPAQUE_MARKER {
            return self.make_opaque(&dir, parent);
        }
        let hidden = &name[WHITEOUT_PREFIX.len()..];
        if hidden.starts_with(WHITEOUT_PREFIX) {
            // aufs stored bookkeeping under such names, which has no meaning here.
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(refuse(raw, "whiteout without a name"));
        }
        let place = dir.join(OsStr::from_bytes(hidden));
        match fs::symlink_metadata(&place) {
            // This layer also has the path, so only its content in lower layers is hidden.
            Ok(metadata) if metadata.is_dir() => {
                let relative = parent.join(OsStr::from_bytes(hidden));
                self.make_opaque(&place, &relative)
            }
            Ok(_) => Ok(()),
            Err(_) => {
                self.done.inodes += 1;
                make_whiteout(&place).map_err(LayerError::io("create whiteout", &place))
            }
        }
    }

    /// Returns the directory for entries below `path`: a real directory of this layer, relative to its root. It
    /// is created, or copied from the layers below, if necessary.
    fn parent(&mut self, path: &Path) -> Result<PathBuf, LayerError> {
        if let Some(known) = self.parents.get(path) {
            return Ok(known.clone());
        }
        let mut at = PathBuf::new();
        let mut todo: VecDeque<OsString> = path.components().map(|c| c.as_os_str().to_owned()).collect();
        let mut links = 0;
        while let Some(component) = todo.pop_front() {
            match component.as_bytes() {
                b"/" => at = PathBuf::new(),
                b"." => {}
                b".." => {
                    at.pop();
                }
                _ => {
                    let next = at.join(&component);
                    if let Some(target) = self.step(&next)? {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(refuse(path.as_os_str().as_bytes(), "too many links"));
                        }
                        for part in target.components().rev() {
                            todo.push_front(part.as_os_str().to_owned());
                        }
                    } else {
                        at = next;
                    }
                }
            }
        }
        self.parents.insert(path.to_owned(), at.clone());
        Ok(at)
    }

    /// Makes `path` a directory of this layer; if it is a link, returns the link's target instead.
    fn step(&mut self, path: &Path) -> Result<Option<PathBuf>, LayerError> {
        let place = self.root.join(path);
        let mut opaque = false;
        match fs::symlink_metadata(&place) {
            Ok(metadata) if metadata.is_dir() => return Ok(None),
            Ok(metadata) if metadata.is_symlink() => {
                return fs::read_link(&place).map(Some).map_err(LayerError::io("read link", &place));
            }
            Ok(metadata) => {
                // A file exists where a directory is needed: the later entry wins.
                opaque = is_whiteout(&metadata);
                fs::remove_file(&place).map_err(LayerError::io("replace", &place))?;
            }
            Err(_) => {}
        }
        let lower = if opaque || self.is_hidden(path) { None } else { self.lowers.find(path) };
        let attributes = match lower {
            Some((link, metadata)) if metadata.is_symlink() => {
                return fs::read_link(&link).map(Some).map_err(LayerError::io("read link", &link));
            }
            Some((_, metadata)) if metadata.is_dir() => Attributes::of(&metadata),
            _ => Attributes::IMPLIED_DIR,
        };
        self.make_dir(&place, path, opaque)?;
        self.set_dir_attributes(place, attributes)?;
        Ok(None)
    }

    /// Returns whether an opaque directory of this layer hides what lower layers have at `path`.
    fn is_hidden(&self, path: &Path) -> bool {
        !self.opaque.is_empty() && path.ancestors().skip(1).any(|dir| self.opaque.contains(dir))
    }

    fn finish(mut self) -> Result<Unpacked, LayerError> {
        for (dir, attributes) in std::mem::take(&mut self.dir_times) {
            attributes.apply_time(&dir).map_err(LayerError::io("set the time of", &dir))?;
        }
        Ok(self.done)
    }
}

/// Attributes of an entry from its extended headers.
#[derive(Default)]
struct Extras {
    xattrs: Vec<(String, Vec<u8>)>,
    mtime: Option<(i64, i64)>,
}

impl Extras {
    fn read<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<Extras, LayerError> {
        let mut extras = Extras::default();
        let Some(records) = entry.pax_extensions().map_err(LayerError::Archive)? else { return Ok(extras) };
        for record in records {
            let record = record.map_err(LayerError::Archive)?;
            let Ok(key) = record.key() else { continue };
            if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                if is_allowed_xattr(name) {
                    extras.xattrs.push((name.to_owned(), record.value_bytes().to_owned()));
                }
            } else if key == "mtime" {
                extras.mtime = record.value().ok().and_then(pax_time);
            }
        }
        Ok(extras)
    }

    fn apply(&self, place: &Path) -> Result<(), LayerError> {
        for (name, value) in &self.xattrs {
            match set_xattr(place, name.as_bytes(), value) {
                Ok(()) => {}
                // Some file systems and kinds of files do not support some attributes.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTSUP | libc::EPERM)) => {
                    tracing::debug!(path = %place.display(), name, "extended attribute not supported");
                }
                Err(e) => return Err(LayerError::io("set an extended attribute of", place)(e)),
            }
        }
        Ok(())
    }
}

/// Parses a time in the form `seconds[.fraction]`.
fn pax_time(text: &str) -> Option<(i64, i64)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let nanos: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let (seconds, nanos) = (seconds.parse::<i64>().ok()?, nanos.parse::<i64>().ok()?);
    // Before 1970 the fraction counts backwards; whole seconds are exact enough.
    Some(if seconds < 0 { (seconds, 0) } else { (seconds, nanos) })
}

fn attributes<R: Read>(entry: &tar::Entry<'_, R>, extras: &Extras) -> Result<Attributes, LayerError> {
    let header = entry.header();
    let id = |id: u64| {
        u32::try_from(id).map_err(|_| {
            LayerError::Archive(io::Error::new(io::ErrorKind::InvalidData, "user id above 32 bits"))
        })
    };
    let (mtime_seconds, mtime_nanos) = match extras.mtime {
        Some(time) => time,
        // Binary numbers may be negative, and are returned as their two's complement.
        None => (header.mtime().map_err(LayerError::Archive)? as i64, 0),
    };
    Ok(Attributes {
        uid: id(header.uid().map_err(LayerError::Archive)?)?,
        gid: id(header.gid().map_err(LayerError::Archive)?)?,
        mode: header.mode().map_err(LayerError::Archive)? & 0o7777,
        mtime_seconds,
        mtime_nanos,
    })
}

/// Returns an entry's path without its leading `/` and `./`; refuses a path that leaves the layer.
fn relative(raw: &[u8]) -> Result<PathBuf, LayerError> {
    let mut out = PathBuf::new();
    for part in raw.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(LayerError::Escape { path: printable(raw) }),
            _ if part.contains(&0) => return Err(refuse(raw, "path holds a NUL byte")),
            _ => out.push(OsString::from_vec(part.to_vec())),
        }
    }
    Ok(out)
}

fn link_name<R: Read>(entry: &tar::Entry<'_, R>, raw: &[u8]) -> Result<Vec<u8>, LayerError> {
    match entry.link_name_bytes() {
        Some(name) if !name.is_empty() => Ok(name.into_owned()),
        _ => Err(refuse(raw, "link without a target")),
    }
}

fn refuse(raw: &[u8], reason: &'static str) -> LayerError {
    LayerError::Entry { path: printable(raw), reason }
}

fn printable(raw: &[u8]) -> String {
    String::from_utf8_lossy(&raw[..raw.len().min(512)]).into_owned()
}

enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

fn copy(from: &mut impl Read, to: &mut fs::File, buffer: &mut [u8]) -> Result<u64, CopyError> {
    use io::Write;
    let mut total = 0;
    loop {
        match from.read(buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => {
                to.write_all(&buffer[..n]).map_err(CopyError::Write)?;
                total += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(CopyError::Read(e)),
        }
    }
}
