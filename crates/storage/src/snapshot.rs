//! All keys of a store at one revision, with their leases.

use std::collections::BTreeMap;

use crate::types::{KeyRange, KeyValue, LeaseId, RangeRequest};
use crate::{Error, Result, Store};

/// The contents of a store at one revision. With the embedded engine it shares the memory of the values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: u64,
    /// In key order.
    pub kvs: Vec<KeyValue>,
    /// The leases that have keys, with their time to live in seconds.
    pub leases: BTreeMap<LeaseId, u64>,
}

/// Reads all keys at the latest revision. Writers are not blocked.
///
/// Keys whose lease ends before its time to live is read are left out, because they are about to be deleted.
pub async fn snapshot(store: &dyn Store) -> Result<Snapshot> {
    let response = store.range(RangeRequest::new(KeyRange::all()).without_count()).await?;
    let mut leases: BTreeMap<LeaseId, Option<u64>> = BTreeMap::new();
    for lease in response.kvs.iter().filter_map(|kv| kv.lease) {
        if let std::collections::btree_map::Entry::Vacant(entry) = leases.entry(lease) {
            entry.insert(match store.lease_ttl(lease).await {
                Ok(ttl_seconds) => Some(ttl_seconds),
                Err(Error::LeaseNotFound(_)) => None,
                Err(error) => return Err(error),
            });
        }
    }
    let lives = |kv: &KeyValue| kv.lease.is_none_or(|lease| leases.get(&lease).is_some_and(Option::is_some));
    let kvs = response.kvs.into_iter().filter(lives).collect();
    let leases = leases.into_iter().filter_map(|(id, ttl)| Some((id, ttl?))).collect();
    Ok(Snapshot { revision: response.revision, kvs, leases })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::embedded::tests::manual_time;
    use crate::{Embedded, Options, Precondition};

    #[tokio::test]
    async fn a_snapshot_has_keys_and_their_leases_at_one_revision() {
        let (time, _advance) = manual_time();
        let store = Embedded::memory(Options { time, ..Options::default() });
        let lease = store.grant_lease(Duration::from_secs(60).as_secs()).await.unwrap();
        store.grant_lease(7).await.unwrap();
        for (key, lease) in [("b", Some(lease)), ("a", None), ("c", None)] {
            store.put(key.into(), key.into(), Precondition::Any, lease).await.unwrap();
        }
        store.delete("c".into(), Precondition::Any).await.unwrap();
        let taken = snapshot(&store).await.unwrap();
        store.put("d".into(), "d".into(), Precondition::Any, None).await.unwrap();
        let keys: Vec<_> = taken.kvs.iter().map(|kv| (&kv.key[..], kv.lease)).collect();
        assert_eq!(keys, [(&b"a"[..], None), (b"b", Some(lease))]);
        assert_eq!((taken.revision, taken.leases), (5, BTreeMap::from([(lease, 60)])));
    }
}
