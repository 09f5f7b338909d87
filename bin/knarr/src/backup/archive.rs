//! The format of backup files: a line with format and version, a line with the encryption of the rest, then
//! records.
//!
//! A record is its kind (one byte), the length of its body (u32, little-endian) and the body. The first
//! record is the manifest, the last one the SHA-256 of all records before it. Records are written and read as
//! a stream; their contents can be trusted once the last record has been read.

use std::io::{self, Read, Write};

use bytes::Bytes;
use knarr_storage::LeaseId;
use ring::digest::{Context as Digest, SHA256, SHA256_OUTPUT_LEN};
use serde::{Deserialize, Serialize};

use super::seal::{Passphrase, Sealing, SealingReader, SealingWriter};

/// Raised when the meaning of records changes.
pub const VERSION: u32 = 1;
const MAGIC: &str = "knarr-backup ";
/// The longest line at the start of a file.
const LINE_BYTES: usize = 256;
/// The largest body of a record: well above the largest value of a store.
const BODY_BYTES: u32 = 64 * 1024 * 1024;

const MANIFEST: u8 = b'M';
const LEASE: u8 = b'L';
const KEY: u8 = b'K';
const FILE: u8 = b'F';
const END: u8 = b'E';

/// What a backup contains, and where it is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub knarr_version: String,
    /// Digest of the cluster's authority and token key.
    pub cluster_identity: String,
    pub node: String,
    /// `embedded` or `etcd`.
    pub store: String,
    pub revision: u64,
    /// RFC 3339, in UTC.
    pub time: String,
    pub keys: u64,
    /// Keys whose value was damaged when the backup was taken: the key is kept, with the reason as its value.
    #[serde(default)]
    pub damaged: u64,
    pub leases: u64,
    pub files: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A lease and its time to live in seconds.
    Lease { id: LeaseId, ttl_seconds: u64 },
    /// A key and its value as stored: an encrypted value stays encrypted.
    Key { key: Bytes, value: Bytes, lease: Option<LeaseId> },
    /// A file, by its path below the data folder.
    File { path: String, content: Vec<u8> },
}

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("it is not a backup of knarr")]
    Foreign,
    #[error("it has version {found} of the format, this knarr reads version {VERSION}")]
    Version { found: String },
    #[error("it is encrypted: give its passphrase with --passphrase-file")]
    Encrypted,
    #[error("it is not encrypted, but a passphrase was given")]
    NotEncrypted,
    #[error("the passphrase is wrong, or the start of the file is damaged")]
    Passphrase,
    #[error("it ends too early: it was cut off")]
    Truncated,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("it cannot be read")]
    Io(#[source] io::Error),
}

pub type Result<T, E = ArchiveError> = std::result::Result<T, E>;

/// Writes an archive; it is complete after [`Writer::finish`].
pub struct Writer<W: Write> {
    output: SealingWriter<W>,
    digest: Digest,
}

impl<W: Write> Writer<W> {
    pub fn new(mut output: W, passphrase: Option<&Passphrase>, manifest: &Manifest) -> io::Result<Self> {
        let sealing = passphrase.map_or(Ok(Sealing::Plain), Sealing::random)?;
        let preamble = format!("{MAGIC}{VERSION}\n{sealing}\n");
        output.write_all(preamble.as_bytes())?;
        let output = SealingWriter::new(output, &sealing, passphrase, preamble.as_bytes())?;
        let mut writer = Self { output, digest: Digest::new(&SHA256) };
        writer.put(MANIFEST, &[&serde_json::to_vec(manifest)?])?;
        Ok(writer)
    }

    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Lease { id, ttl_seconds } => self.lease(*id, *ttl_seconds),
            Record::Key { key, value, lease } => self.key(key, value, *lease),
            Record::File { path, content } => self.file(path, content),
        }
    }

    pub fn lease(&mut self, id: LeaseId, ttl_seconds: u64) -> io::Result<()> {
        self.put(LEASE, &[&id.get().to_le_bytes(), &ttl_seconds.to_le_bytes()])
    }

    pub fn key(&mut self, key: &[u8], value: &[u8], lease: Option<LeaseId>) -> io::Result<()> {
        let lease = lease.map_or(0, LeaseId::get).to_le_bytes();
        self.put(KEY, &[&lease, &length(key.len())?, key, value])
    }

    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.put(FILE, &[&length(path.len())?, path.as_bytes(), content])
    }

    /// Writes the checksum; returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        let sum = self.digest.clone().finish();
        self.put(END, &[sum.as_ref()])?;
        self.output.finish()
    }

    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
        let size = parts.iter().map(|part| part.len()).sum::<usize>();
        if size > BODY_BYTES as usize {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a record is too large for a backup"));
        }
        self.chunk(&[kind])?;
        self.chunk(&length(size)?)?;
        parts.iter().try_for_each(|part| self.chunk(part))
    }

    fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.output.write_all(bytes)
    }
}

fn length(len: usize) -> io::Result<[u8; 4]> {
    let len = u32::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(len.to_le_bytes())
}

/// Reads an archive. Any damage ends it with an error, at the latest where [`Reader::next`] would return
/// `None`.
pub struct Reader<R: Read> {
    input: SealingReader<R>,
    digest: Digest,
    manifest: Manifest,
    seen: Seen,
    done: bool,
}

/// How many of the items that the manifest counts have been read.
#[derive(Default)]
struct Seen {
    keys: u64,
    leases: u64,
    files: u64,
    last_key: Bytes,
}

impl<R: Read> Reader<R> {
    pub fn new(mut input: R, passphrase: Option<&Passphrase>) -> Result<Self> {
        let magic = line(&mut input)?.ok_or(ArchiveError::Foreign)?;
        let found = magic.strip_prefix(MAGIC).ok_or(ArchiveError::Foreign)?;
        if found != VERSION.to_string() {
            return Err(ArchiveError::Version { found: found.chars().take(20).collect() });
        }
        let sealing = line(&mut input)?.ok_or(ArchiveError::Damaged("its second line is too long"))?;
        let preamble = format!("{magic}\n{sealing}\n");
        let sealing: Sealing = sealing.parse()?;
        let input = SealingReader::new(input, &sealing, passphrase, preamble.as_bytes())?;
        let mut digest = Digest::new(&SHA256);
        let mut input = input;
        let (kind, body) = record(&mut input, &mut digest)?;
        if kind != MANIFEST {
            return Err(ArchiveError::Damaged("it does not begin with a manifest"));
        }
        let manifest = serde_json::from_slice(&body)
            .map_err(|_| ArchiveError::Damaged("its manifest cannot be read"))?;
        Ok(Self { input, digest, manifest, seen: Seen::default(), done: false })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the next record; `None` after the last one, once all checksums are verified.
    pub fn next(&mut self) -> Result<Option<Record>> {
        if self.done {
            return Ok(None);
        }
        let before = self.digest.clone();
        let (kind, body) = record(&mut self.input, &mut self.digest)?;
        if kind == END {
            self.check_end(&before.finish().as_ref()[..SHA256_OUTPUT_LEN], &body)?;
            self.done = true;
            return Ok(None);
        }
        let record = decode(kind, body).ok_or(ArchiveError::Damaged("a record cannot be read"))?;
        self.seen.count(&record)?;
        Ok(Some(record))
    }

    fn check_end(&mut self, sum: &[u8], body: &[u8]) -> Result<()> {
        if sum != body {
            return Err(ArchiveError::Damaged("its checksum does not match"));
        }
        let (seen, manifest) = (&self.seen, &self.manifest);
        if (seen.keys, seen.leases, seen.files) != (manifest.keys, manifest.leases, manifest.files) {
            return Err(ArchiveError::Damaged("it does not hold as much as its manifest says"));
        }
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(ArchiveError::Damaged("it continues after its end")),
            Err(error) => Err(ended(error)),
        }
    }
}

impl Seen {
    /// Keys are in order, so no key occurs twice.
    fn count(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::Lease { .. } => self.leases += 1,
            Record::File { .. } => self.files += 1,
            Record::Key { key, .. } => {
                if self.keys > 0 && *key <= self.last_key {
                    return Err(ArchiveError::Damaged("its keys are not in order"));
                }
                self.keys += 1;
                self.last_key = key.clone();
            }
        }
        Ok(())
    }
}

/// Reads a line without its newline; `None` if it is longer than any line that is written, or not text.
fn line(input: &mut impl Read) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while bytes.len() < LINE_BYTES {
        match input.read_exact(&mut byte) {
            Ok(()) if byte[0] == b'\n' => return Ok(String::from_utf8(bytes).ok()),
            Ok(()) => bytes.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !begins_like_ours(&bytes) => {
                return Ok(None);
            }
            Err(error) => return Err(ended(error)),
        }
    }
    Ok(None)
}

fn begins_like_ours(bytes: &[u8]) -> bool {
    !bytes.is_empty() && (MAGIC.as_bytes().starts_with(bytes) || bytes.starts_with(MAGIC.as_bytes()))
}

fn record(input: &mut impl Read, digest: &mut Digest) -> Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    input.read_exact(&mut head).map_err(ended)?;
    let size = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    if size > BODY_BYTES {
        return Err(ArchiveError::Damaged("a record is too long"));
    }
    // No buffer of the claimed length is allocated: it grows with the bytes that are read.
    let mut body = Vec::new();
    input.take(size.into()).read_to_end(&mut body).map_err(ended)?;
    if body.len() != size as usize {
        return Err(ArchiveError::Truncated);
    }
    digest.update(&head);
    digest.update(&body);
    Ok((head[0], body))
}

/// Extracts the archive error that the decryption passes as the inner error of an I/O error.
fn ended(error: io::Error) -> ArchiveError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ArchiveError::Truncated,
        _ => match error.downcast::<ArchiveError>() {
            Ok(own) => own,
            Err(error) => ArchiveError::Io(error),
        },
    }
}

fn decode(kind: u8, body: Vec<u8>) -> Option<Record> {
    let body = Bytes::from(body);
    match kind {
        LEASE if body.len() == 16 => {
            Some(Record::Lease { id: LeaseId::new(number(&body)?)?, ttl_seconds: number(&body[8..])? })
        }
        KEY => {
            let (key, value) = split(&body.slice_ref(body.get(8..)?))?;
            Some(Record::Key { key, value, lease: LeaseId::new(number(&body)?) })
        }
        FILE => {
            let (path, content) = split(&body)?;
            Some(Record::File { path: String::from_utf8(path.to_vec()).ok()?, content: content.to_vec() })
        }
        _ => None,
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

/// Splits off a part that is preceded by its length; returns it and the rest.
fn split(body: &Bytes) -> Option<(Bytes, Bytes)> {
    let (len, rest) = body.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let (first, rest) = (rest.get(..len)?, rest.get(len..)?);
    Some((body.slice_ref(first), body.slice_ref(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            knarr_version: "0.1.0".to_owned(),
            cluster_identity: "ab".to_owned(),
            node: "n".to_owned(),
            store: "embedded".to_owned(),
            revision: 7,
            time: "2026-01-01T00:00:00Z".to_owned(),
            keys: 2,
            damaged: 0,
            leases: 1,
            files: 1,
        }
    }

    fn records() -> Vec<Record> {
        let id = LeaseId::new(3);
        vec![
            Record::Lease { id: id.unwrap(), ttl_seconds: 60 },
            Record::Key { key: "/a".into(), value: vec![7; 200_000].into(), lease: None },
            Record::Key { key: "/b".into(), value: Bytes::new(), lease: id },
            Record::File { path: "pki/ca.key".to_owned(), content: b"key".to_vec() },
        ]
    }

    fn archive(passphrase: Option<&Passphrase>) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), passphrase, &manifest()).unwrap();
        records().iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap()
    }

    fn read(archive: &[u8], passphrase: Option<&Passphrase>) -> Result<Vec<Record>> {
        let mut reader = Reader::new(archive, passphrase)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        assert_eq!(*reader.manifest(), manifest());
        Ok(records)
    }

    #[test]
    fn what_was_written_is_read() {
        let secret = Passphrase::cheap("secret");
        for passphrase in [None, Some(&secret)] {
            let archive = archive(passphrase);
            assert_eq!(read(&archive, passphrase).unwrap(), records());
            let visible = archive.windows(10).any(|window| window == b"pki/ca.key");
            assert_eq!(visible, passphrase.is_none());
        }
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let secret = Passphrase::cheap("secret");
        for passphrase in [None, Some(&secret)] {
            let whole = archive(passphrase);
            let ends = (0..400).chain(whole.len() - 400..whole.len());
            for at in ends.chain((400..whole.len() - 400).step_by(9_973)) {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x10;
                assert!(read(&damaged, passphrase).is_err(), "byte {at} of {}", whole.len());
                assert!(read(&whole[..at], passphrase).is_err(), "cut at {at} of {}", whole.len());
            }
            let longer = [&whole[..], b"x"].concat();
            assert!(read(&longer, passphrase).is_err());
        }
    }

    #[test]
    fn refusals_say_why() {
        let (secret, other) = (Passphrase::cheap("secret"), Passphrase::cheap("other"));
        let (plain, sealed) = (archive(None), archive(Some(&secret)));
        let reason = |archive: &[u8], passphrase| read(archive, passphrase).unwrap_err().to_string();
        assert_eq!(reason(b"PK\x03\x04", None), "it is not a backup of knarr");
        assert_eq!(reason(b"", None), "it is not a backup of knarr");
        let newer = [b"knarr-backup 2\n", &plain[15..]].concat();
        let version = "it has version 2 of the format, this knarr reads version 1";
        assert_eq!(reason(&newer, None), version);
        assert_eq!(reason(&sealed, None), "it is encrypted: give its passphrase with --passphrase-file");
        assert_eq!(reason(&plain, Some(&secret)), "it is not encrypted, but a passphrase was given");
        let wrong = "the passphrase is wrong, or the start of the file is damaged";
        assert_eq!(reason(&sealed, Some(&other)), wrong);
        assert_eq!(reason(&plain[..plain.len() - 9], None), "it ends too early: it was cut off");
        assert_eq!(reason(&sealed[..sealed.len() - 9], Some(&secret)), "it ends too early: it was cut off");
    }
}
