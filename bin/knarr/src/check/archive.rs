//! Reads the contents of a backup, from a file or from a running server.

use std::collections::BTreeSet;
use std::io::Read;

use bytes::Bytes;

use super::certificates::Files;
use super::finding::Finding;
use crate::backup::archive::{ArchiveError, Reader, Record};
use crate::backup::contents::{ENCRYPTION_CONFIG, is_allowed, is_mark};

/// The most bytes of all files of a backup together.
const FILES_BYTES: usize = 64 * 1024 * 1024;

/// The contents of a backup, as far as they could be read.
#[derive(Debug, Default)]
pub struct Contents {
    pub revision: u64,
    pub kvs: Vec<(Bytes, Bytes)>,
    pub files: Files,
    pub findings: Vec<Finding>,
}

impl Contents {
    pub fn encryption(&self) -> Option<&[u8]> {
        self.files.get(ENCRYPTION_CONFIG).map(Vec::as_slice)
    }
}

/// Reads to the end. `name` is the name of the backup in findings.
pub fn read<R: Read>(name: &str, reader: Result<Reader<R>, ArchiveError>) -> Contents {
    let mut contents = Contents::default();
    let broken = |error: ArchiveError| Finding::error("backup", name, error.to_string());
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(error) => {
            contents.findings.push(broken(error));
            return contents;
        }
    };
    contents.revision = reader.manifest().revision;
    let mut leases = BTreeSet::new();
    let mut lost = Vec::new();
    let mut bytes = 0;
    loop {
        match reader.next() {
            Ok(None) => break,
            Err(error) => {
                contents.findings.push(broken(error));
                break;
            }
            Ok(Some(Record::Lease { id, .. })) => drop(leases.insert(id)),
            Ok(Some(Record::File { path, content })) => {
                bytes += content.len();
                let problem = match (is_allowed(&path), bytes > FILES_BYTES) {
                    (true, false) => {
                        contents.files.insert(path, content);
                        continue;
                    }
                    (false, _) => "no data folder has such a file: it would not be restored",
                    (_, true) => "the files are too large to be restored",
                };
                contents.findings.push(Finding::error("backup", path, problem));
            }
            Ok(Some(Record::Key { key, value, lease })) => {
                if let Some(lease) = lease.filter(|lease| !leases.contains(lease)) {
                    lost.push((key.clone(), lease));
                }
                if is_mark(&key) {
                    let key = String::from_utf8_lossy(&key);
                    let problem = "no backup holds such a key: it would not be restored";
                    contents.findings.push(Finding::error("backup", key, problem));
                }
                contents.kvs.push((key, value));
            }
        }
    }
    contents.findings.extend(lost.into_iter().map(|(key, lease)| {
        let problem = format!("it is under lease {lease}, which the backup does not hold");
        Finding::error("backup", String::from_utf8_lossy(&key), problem)
    }));
    contents
}

#[cfg(test)]
mod tests {
    use knarr_storage::LeaseId;

    use super::*;
    use crate::backup::archive::{Manifest, Writer};

    fn archive(records: &[Record]) -> Vec<u8> {
        let count = |is: fn(&Record) -> bool| records.iter().filter(|r| is(r)).count() as u64;
        let manifest = Manifest {
            knarr_version: String::new(),
            cluster_identity: String::new(),
            node: String::new(),
            store: String::new(),
            revision: 7,
            time: String::new(),
            keys: count(|r| matches!(r, Record::Key { .. })),
            damaged: 0,
            leases: count(|r| matches!(r, Record::Lease { .. })),
            files: count(|r| matches!(r, Record::File { .. })),
        };
        let mut writer = Writer::new(Vec::new(), None, &manifest).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        writer.finish().unwrap()
    }

    fn read_bytes(bytes: &[u8]) -> Contents {
        read("b", Reader::new(bytes, None))
    }

    #[test]
    fn a_backup_is_read_as_far_as_it_goes() {
        let lease = LeaseId::new(3);
        let key = |key: &'static str, lease| Record::Key { key: key.into(), value: "v".into(), lease };
        let file = |path: &str| Record::File { path: path.to_owned(), content: b"x".to_vec() };
        let sound = [
            file("pki/ca.crt"),
            Record::Lease { id: lease.unwrap(), ttl_seconds: 5 },
            key("/a", None),
            key("/b", lease),
        ];
        let whole = archive(&sound);
        let contents = read_bytes(&whole);
        assert_eq!(contents.findings, []);
        assert_eq!((contents.kvs.len(), contents.files.len(), contents.revision), (2, 1, 7));
        for (bytes, problem) in [
            (&whole[..whole.len() - 3], "cut off"),
            (&whole[..3], "cut off"),
            (b"nonsense", "not a backup of knarr"),
        ] {
            let found = read_bytes(bytes).findings;
            assert!(found.len() == 1 && found[0].problem.contains(problem), "{found:?}");
        }
        let odd = archive(&[file("../x"), key("/a", lease), key("/cluster/identity", None)]);
        let found = read_bytes(&odd).findings;
        let names: Vec<&str> = found.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["../x", "/cluster/identity", "/a"]);
    }
}
