//! Range reads: in pages, so that no response is large, all at one revision.

use knarr_grpc::CallError;

use super::Etcd;
use super::endpoints::Repeat;
use super::error::Meaning;
use super::keys::{header_revision, number, revision};
use super::proto;
use crate::types::{KeyRange, KeyValue, RangeRequest, RangeResponse};
use crate::{Error, Result};

pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";

/// The number of keys in the first page; later ones are sized for [`PAGE_BYTES`].
const FIRST_PAGE: usize = 500;
const MOST_KEYS: usize = 10_000;
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// How often a read of the latest revision is retried because that revision was compacted during the read.
const ATTEMPTS: usize = 4;

/// The response to one request.
struct Page {
    kvs: Vec<KeyValue>,
    more: bool,
    /// The number of all keys from the page's start on.
    count: u64,
    revision: u64,
}

impl Etcd {
    pub(super) async fn read_range(&self, request: &RangeRequest) -> Result<RangeResponse> {
        let mut attempts = 1;
        loop {
            match self.try_range(request).await {
                Err(Error::Compacted { .. }) if request.revision.is_none() && attempts < ATTEMPTS => {
                    attempts += 1
                }
                result => return result,
            }
        }
    }

    async fn try_range(&self, request: &RangeRequest) -> Result<RangeResponse> {
        if request.range.end.as_ref().is_some_and(|end| *end <= request.range.start) {
            let revision = match request.revision {
                Some(revision) => self.check_readable(revision).await.map(|_| revision)?,
                None => self.latest_revision().await?,
            };
            return Ok(RangeResponse { kvs: Vec::new(), more: false, remaining: 0, revision });
        }
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut kvs: Vec<KeyValue> = Vec::new();
        let (mut range, mut at, mut page_keys) = (request.range.clone(), request.revision, FIRST_PAGE);
        loop {
            let wanted = page_keys.min(limit - kvs.len());
            let page = self.page(&range, at, wanted).await?;
            let bytes: usize = page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
            page_keys = next_page(page.kvs.len(), bytes);
            let taken = page.kvs.len();
            kvs.extend(page.kvs);
            let revision = *at.get_or_insert(page.revision);
            let full = kvs.len() >= limit;
            match kvs.last().filter(|_| page.more && !full) {
                Some(last) => range = request.range.after(&last.key),
                None => {
                    let remaining = page.count.saturating_sub(taken as u64);
                    return Ok(RangeResponse {
                        kvs,
                        more: remaining > 0,
                        remaining: if request.count { remaining } else { 0 },
                        revision,
                    });
                }
            }
        }
    }

    async fn page(&self, range: &KeyRange, at: Option<u64>, limit: usize) -> Result<Page> {
        let (key, range_end) = self.keys.range(range);
        let request = proto::RangeRequest {
            key,
            range_end,
            limit: number(limit as u64),
            revision: at.map_or(0, |at| number(at.max(1))),
            keys_only: false,
            count_only: limit == 0,
        };
        let answer: Result<proto::RangeResponse, CallError> =
            self.call(RANGE, &request, Repeat::Safely).await?;
        let answer = match (answer, at) {
            (Ok(answer), _) => answer,
            (Err(error), Some(at)) => return Err(self.refused_revision(error, at).await),
            (Err(error), None) => return Err(error.into()),
        };
        Ok(Page {
            kvs: answer.kvs.into_iter().map(|kv| self.keys.key_value(kv)).collect::<Result<_>>()?,
            more: answer.more,
            count: revision(answer.count),
            revision: header_revision(answer.header.as_ref()),
        })
    }

    /// Returns the current revision, if `at` can be read.
    pub(super) async fn check_readable(&self, at: u64) -> Result<u64> {
        let (key, range_end) = self.keys.range(&KeyRange::all());
        let request = proto::RangeRequest {
            key,
            range_end,
            limit: 1,
            revision: number(at.max(1)),
            keys_only: true,
            count_only: false,
        };
        match self.call::<proto::RangeResponse>(RANGE, &request, Repeat::Safely).await? {
            Ok(answer) => Ok(header_revision(answer.header.as_ref())),
            Err(error) => Err(self.refused_revision(error, at).await),
        }
    }

    /// Returns the revision of the last write that any member has acknowledged.
    pub(super) async fn latest_revision(&self) -> Result<u64> {
        // The key does not exist: the request only returns the revision, but as a linearizable read.
        let request =
            proto::RangeRequest { key: self.keys.key(b"\0"), count_only: true, ..Default::default() };
        let answer: proto::RangeResponse = self.call(RANGE, &request, Repeat::Safely).await??;
        Ok(header_revision(answer.header.as_ref()))
    }

    /// Returns the error for a refused revision. etcd names neither the current nor the compacted revision.
    async fn refused_revision(&self, error: CallError, requested: u64) -> Error {
        if error.is_future_revision() {
            return match self.latest_revision().await {
                Ok(current) => Error::FutureRevision { requested, current },
                Err(error) => error,
            };
        }
        if error.is_compacted() {
            return match self.compacted_revision(requested).await {
                Ok(compacted) => Error::Compacted { requested, compacted },
                Err(error) => error,
            };
        }
        error.into()
    }
}

/// Returns the number of keys to request, based on the size of those received.
fn next_page(keys: usize, bytes: usize) -> usize {
    let average = bytes.checked_div(keys).unwrap_or(1).max(1);
    (PAGE_BYTES / average).clamp(1, MOST_KEYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_sized_by_what_came() {
        assert_eq!(next_page(500, 500 * 1024), 4096);
        assert_eq!(next_page(1, 64 * 1024 * 1024), 1);
        assert_eq!(next_page(0, 0), MOST_KEYS);
        assert_eq!(next_page(500, 0), MOST_KEYS);
    }
}
