//! Refuses tar streams with extension headers so large that reading them would exhaust the memory.

use std::io::{self, Read};

const BLOCK: usize = 512;
/// The largest extended header or long name: real ones have a few kilobytes.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// The largest map of an old GNU sparse file, in blocks of 21 runs each.
const MAX_SPARSE_BLOCKS: u32 = 1 << 14;

/// Passes a tar stream through unchanged and inspects its headers. It does not check whether they are
/// well-formed; the reader does.
pub struct TarGuard<R> {
    inner: R,
    state: State,
    header: Vec<u8>,
    /// The bytes of the current extended header, if it may contain a size for the next entry.
    extension: Option<Vec<u8>>,
    next_size: Option<u64>,
}

#[derive(Clone, Copy)]
enum State {
    Header,
    /// The number of bytes of content and padding to skip.
    Skip(u64),
    /// Further blocks of an old GNU sparse map, then this many bytes of content.
    SparseMap {
        content: u64,
        left: u32,
    },
    /// After the end of the archive, nothing is inspected.
    End,
}

impl<R> TarGuard<R> {
    pub fn new(inner: R) -> TarGuard<R> {
        TarGuard {
            inner,
            state: State::Header,
            header: Vec::with_capacity(BLOCK),
            extension: None,
            next_size: None,
        }
    }

    pub fn into_inner(self) -> R {
        self.inner
    }

    fn observe(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let wanted = match self.state {
                State::End => return Ok(()),
                State::Header | State::SparseMap { .. } => (BLOCK - self.header.len()) as u64,
                State::Skip(left) => left,
            };
            let n = usize::try_from(wanted).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(n);
            bytes = later;
            match self.state {
                State::Skip(left) => {
                    if let Some(extension) = &mut self.extension {
                        extension.extend_from_slice(now);
                    }
                    self.state = State::Skip(left - n as u64);
                    if left == n as u64 {
                        self.end_of_content();
                    }
                }
                State::Header | State::SparseMap { .. } => {
                    self.header.extend_from_slice(now);
                    if self.header.len() == BLOCK {
                        self.end_of_block()?;
                    }
                }
                State::End => {}
            }
        }
        Ok(())
    }

    fn end_of_content(&mut self) {
        self.state = State::Header;
        if let Some(extension) = self.extension.take() {
            self.next_size = pax_size(&extension);
        }
    }

    fn end_of_block(&mut self) -> io::Result<()> {
        let block = std::mem::take(&mut self.header);
        if let State::SparseMap { content, left } = self.state {
            if block[504] != 1 {
                self.skip(content);
            } else if left == 0 {
                return Err(invalid(format!("sparse map of more than {MAX_SPARSE_BLOCKS} blocks")));
            } else {
                self.state = State::SparseMap { content, left: left - 1 };
            }
            return Ok(());
        }
        if block.iter().all(|b| *b == 0) {
            self.state = State::End;
            return Ok(());
        }
        let header = tar::Header::from_byte_slice(&block);
        let kind = header.entry_type();
        let local = kind.is_pax_local_extensions();
        let long = kind.is_gnu_longname() || kind.is_gnu_longlink();
        let extension = local || long || kind.is_pax_global_extensions();
        let size = match self.next_size {
            Some(size) if !extension => size,
            _ => header.entry_size()?,
        };
        if extension && size > MAX_EXTENSION_BYTES {
            return Err(invalid(format!(
                "tar extension header of {size} bytes, the limit is {MAX_EXTENSION_BYTES}"
            )));
        }
        let recognised = header.as_gnu().is_some() || header.as_ustar().is_some();
        if recognised && local {
            self.extension = Some(Vec::new());
        } else if !(recognised && long) {
            // The size applied to this entry only.
            self.next_size = None;
        }
        if kind.is_gnu_sparse() && block[482] == 1 {
            self.state = State::SparseMap { content: size, left: MAX_SPARSE_BLOCKS };
        } else {
            self.skip(size);
        }
        Ok(())
    }

    fn skip(&mut self, size: u64) {
        let padded = size.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX);
        self.state = State::Skip(padded);
        if padded == 0 {
            self.end_of_content();
        }
    }
}

impl<R: Read> Read for TarGuard<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.observe(&buf[..n])?;
        Ok(n)
    }
}

/// Returns the `size` record of an extended header. It is parsed exactly as by the tar reader behind this one:
/// if the two disagreed, a header could be hidden from one of them.
fn pax_size(extension: &[u8]) -> Option<u64> {
    for record in tar::PaxExtensions::new(extension) {
        let record = record.ok()?;
        if record.key() == Ok("size") {
            return record.value().ok()?.parse().ok();
        }
    }
    None
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: tar::EntryType, size: u64) -> tar::Header {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        header
    }

    fn names<R: Read>(stream: R) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let mut archive = tar::Archive::new(stream);
        for entry in archive.entries()? {
            names.push(String::from_utf8_lossy(&entry?.path_bytes()).into_owned());
        }
        Ok(names)
    }

    #[test]
    fn ordinary_archives_pass() {
        let mut builder = tar::Builder::new(Vec::new());
        let long = "d/".repeat(200) + "file";
        for name in ["a", &long, "b"] {
            let mut h = header(tar::EntryType::Regular, 700);
            builder.append_pax_extensions([("SCHILY.xattr.user.x", &b"y"[..]), ("size", b"700")]).unwrap();
            builder.append_data(&mut h, name, &[1u8; 700][..]).unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        assert_eq!(names(TarGuard::new(&bytes[..])).unwrap(), ["a", &long, "b"]);
    }

    #[test]
    fn a_huge_extension_is_refused_before_it_is_read() {
        for kind in [tar::EntryType::XHeader, tar::EntryType::GNULongName, tar::EntryType::GNULongLink] {
            let head = header(kind, 8 << 30);
            let stream = (&head.as_bytes()[..]).chain(io::repeat(b'a').take(8 << 30));
            assert!(names(TarGuard::new(stream)).unwrap_err().to_string().contains("extension"), "{kind:?}");
        }
        // A header hidden behind an entry whose real length is only in the extended header.
        let mut bytes = Vec::new();
        bytes.extend_from_slice(header(tar::EntryType::XHeader, 12).as_bytes());
        bytes.extend_from_slice(b"12 size=512\n");
        bytes.resize(1024, 0);
        bytes.extend_from_slice(header(tar::EntryType::Regular, 0).as_bytes());
        bytes.resize(bytes.len() + 512, 0);
        bytes.extend_from_slice(header(tar::EntryType::GNULongName, 8 << 30).as_bytes());
        let stream = (&bytes[..]).chain(io::repeat(b'a').take(8 << 30));
        assert!(names(TarGuard::new(stream)).unwrap_err().to_string().contains("extension"));
    }
}
