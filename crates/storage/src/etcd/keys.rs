//! Maps the store's keys to etcd's keys below a prefix, and etcd's values to the store's.

use bytes::{BufMut, Bytes, BytesMut};

use super::proto;
use crate::Error;
use crate::types::{KeyRange, KeyValue, LeaseId};

/// The place of the store's keys in etcd.
#[derive(Debug, Clone)]
pub struct Keyspace {
    prefix: Bytes,
    /// The prefix of all keys, with a final slash: `/knarr` must not cover the keys of a cluster in `/knarr-2`.
    below: Bytes,
}

impl Keyspace {
    /// Creates a keyspace below this prefix.
    pub fn new(prefix: &str) -> Self {
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        Self { prefix: Bytes::copy_from_slice(prefix.as_bytes()), below: format!("{prefix}{slash}").into() }
    }

    /// Returns the key in etcd.
    pub fn key(&self, key: &[u8]) -> Bytes {
        let mut whole = BytesMut::with_capacity(self.prefix.len() + key.len());
        whole.put_slice(&self.prefix);
        whole.put_slice(key);
        whole.freeze()
    }

    /// Returns `key` and `range_end` in etcd's form.
    pub fn range(&self, range: &KeyRange) -> (Bytes, Bytes) {
        let start = if range.start.is_empty() { self.below.clone() } else { self.key(&range.start) };
        let end = match &range.end {
            Some(end) => Some(self.key(end)),
            None => KeyRange::prefix(self.below.clone()).end,
        };
        // In etcd, a zero byte stands for the first key, and as the end for no upper end.
        let zero = Bytes::from_static(b"\0");
        (if start.is_empty() { zero.clone() } else { start }, end.unwrap_or(zero))
    }

    /// Returns the store's own key; `None` if it is not below the prefix.
    fn strip(&self, key: &Bytes) -> Option<Bytes> {
        key.starts_with(&self.prefix).then(|| key.slice(self.prefix.len()..))
    }

    /// Converts a key and its value from etcd.
    pub fn key_value(&self, kv: proto::KeyValue) -> Result<KeyValue, Error> {
        let key =
            self.strip(&kv.key).ok_or(Error::Invalid("etcd answered with a key that was not asked for"))?;
        Ok(KeyValue {
            key,
            value: kv.value,
            create_revision: revision(kv.create_revision),
            mod_revision: revision(kv.mod_revision),
            version: revision(kv.version),
            lease: LeaseId::new(revision(kv.lease)),
        })
    }
}

/// Converts a revision: etcd uses signed numbers that are never negative.
pub fn revision(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Converts a revision to etcd's signed number.
pub fn number(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// The revision in the header of a response; 0 without one.
pub fn header_revision(header: Option<&proto::ResponseHeader>) -> u64 {
    header.map_or(0, |h| revision(h.revision))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_below_the_prefix() {
        let ours = Keyspace::new("/k");
        assert_eq!(
            ours.range(&KeyRange::all()),
            (Bytes::from("/k/"), Bytes::from("/k0")),
            "not those in /k-2"
        );
        let whole = Keyspace::new("/k/").range(&KeyRange::all());
        assert_eq!(whole, (Bytes::from("/k/"), Bytes::from("/k0")));
        assert_eq!(ours.range(&KeyRange::prefix("/a")), (Bytes::from("/k/a"), Bytes::from("/k/b")));
        assert_eq!(ours.range(&KeyRange::key("x")), (Bytes::from("/kx"), Bytes::from("/kx\0")));
        let whole = Keyspace::new("");
        assert_eq!(whole.range(&KeyRange::all()), (Bytes::from("\0"), Bytes::from("\0")));
        assert_eq!(ours.strip(&Bytes::from("/ka")), Some(Bytes::from("a")));
        assert_eq!(ours.strip(&Bytes::from("/x")), None);
    }
}
