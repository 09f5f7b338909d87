//! Get and list: single objects from the store, collections from the watch cache, pages at one revision.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD as BASE64};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;
use knarr_storage::{KeyRange, RangeRequest};
use serde_json::{Value, json};

use super::options::{ListParams, Version, VersionMatch};
use super::served::Served;
use super::store;
use super::store_errors::status_of;
use crate::Registry;
use knarr_wire::metrics::Metric;
use knarr_wire::output::ListAnswer;

/// A decoder as lenient as Go's: it ignores surplus bits in the last symbol.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_encode_padding(false)
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::RequireNone),
);

/// How many keys are read at once for a page if a selector filters the objects.
const SELECTED_AT_ONCE: usize = 500;

/// How long a read waits for the cache to reach a revision.
const FRESH_WITHIN: Duration = Duration::from_secs(3);

/// Handles GET of one object.
pub async fn get(
    registry: &Registry,
    served: &Served,
    namespace: &str,
    name: &str,
    version: Version,
) -> Result<Arc<Object>, StatusError> {
    match version {
        Version::Unset => {
            let current = store::read(registry, served, namespace, name).await?;
            current.map(|c| c.object).ok_or_else(|| served.not_found(name))
        }
        Version::Any | Version::At(_) => {
            if let Version::At(revision) = version {
                wait_fresh(registry, revision).await?;
            }
            let held = served.cache()?.get(&served.cache_key(namespace, name));
            served.show(&held.ok_or_else(|| served.not_found(name))?).await
        }
    }
}

/// Waits until the caches have reached `revision`, for at most `FRESH_WITHIN`.
pub async fn wait_fresh(registry: &Registry, revision: u64) -> Result<(), StatusError> {
    if registry.caches.applied() >= revision {
        return Ok(());
    }
    tokio::select! {
        () = registry.caches.wait_for(revision) => Ok(()),
        () = registry.clock.sleep(FRESH_WITHIN) => {
            let current = registry.caches.applied();
            Err(too_large(revision, current))
        }
    }
}

fn too_large(revision: u64, current: u64) -> StatusError {
    let message = format!("Too large resource version: {revision}, current: {current}");
    let mut error = StatusError::timeout(format!("Timeout: {message}"));
    let details = error.0.details.get_or_insert_with(Default::default);
    details.retry_after_seconds = Some(1);
    details.causes = Some(vec![StatusCause {
        reason: Some("ResourceVersionTooLarge".into()),
        message: Some("Too large resource version".into()),
        field: None,
    }]);
    error
}

/// Waits until the caches contain every write that was answered before this call.
pub async fn wait_current(registry: &Registry) -> Result<(), StatusError> {
    let revision = registry.store.current_revision().await.map_err(|e| status_of(&e))?;
    wait_fresh(registry, revision).await
}

/// The position at which a list continues: after the key `start`, at `revision` (or at the current revision if the
/// original one has been compacted).
struct Continue {
    revision: Option<u64>,
    start: String,
}

fn encode_continue(revision: i64, start: &str) -> String {
    BASE64.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
}

fn invalid_continue(why: &str) -> StatusError {
    StatusError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
}

/// Formats a base64 error as Go's decoder does.
fn undecodable(error: &base64::DecodeError) -> String {
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        base64::DecodeError::InvalidLength(length) => length.saturating_sub(1),
        base64::DecodeError::InvalidPadding => 0,
    };
    format!("illegal base64 data at input byte {at}")
}

fn decode_continue(token: &str) -> Result<Continue, StatusError> {
    let bytes =
        LENIENT.decode(token.trim_end_matches('=')).map_err(|e| invalid_continue(&undecodable(&e)))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| {
        let first = bytes.first().map_or('\0', |b| char::from(*b));
        invalid_continue(&match bytes.is_empty() {
            true => "unexpected end of JSON input".to_owned(),
            false => format!("invalid character '{first}' looking for beginning of value"),
        })
    })?;
    if value["v"] != "meta.k8s.io/v1" {
        let version = value["v"].as_str().unwrap_or("");
        return Err(invalid_continue(&format!("server does not recognize this encoded version {version}")));
    }
    let Some(revision) = value["rv"].as_i64().filter(|r| *r != 0) else {
        return Err(invalid_continue("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
    };
    let Some(start) = value["start"].as_str().filter(|s| !s.is_empty()) else {
        return Err(invalid_continue("encoded start key empty (version meta.k8s.io/v1)"));
    };
    Ok(Continue { revision: u64::try_from(revision).ok(), start: start.to_owned() })
}

/// One list, or one page of a list, in the stored form.
struct Page {
    items: Vec<Arc<Object>>,
    revision: u64,
    /// The cache key of the last item, if more items follow.
    last: Option<String>,
    remaining: u64,
}

/// Handles GET of a collection.
pub async fn list(
    registry: &Registry,
    served: &Served,
    namespace: Option<&str>,
    params: &ListParams,
) -> Result<ListAnswer, StatusError> {
    // A selector on the converted form can only be applied after conversion, and only then is the end of a page
    // known.
    let limit = if params.shown.is_some() { 0 } else { params.limit };
    let mut page = page(registry, served, namespace, params, limit).await?;
    let mut items = served.show_all(page.items).await?;
    if let Some(shown) = &params.shown {
        items.retain(|item| shown.matches(item));
        page = cut(served, items, page.revision, params.limit);
        items = std::mem::take(&mut page.items);
    }
    let selection = &params.selection;
    let everything =
        selection.labels.is_everything() && selection.fields.is_everything() && params.shown.is_none();
    let continue_token = page.last.map(|last| encode_continue(page.revision.cast_signed(), &last));
    let remaining = (continue_token.is_some() && everything).then_some(page.remaining);
    Ok(ListAnswer {
        resource: served.resource.clone(),
        items,
        resource_version: page.revision,
        continue_token,
        remaining,
    })
}

async fn page(
    registry: &Registry,
    served: &Served,
    namespace: Option<&str>,
    params: &ListParams,
    limit: usize,
) -> Result<Page, StatusError> {
    if let Some(token) = &params.continue_token {
        if matches!(params.version, Version::At(_)) {
            return Err(StatusError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = decode_continue(token)?;
        if !token.start.starts_with(namespace.filter(|_| served.resource.types.namespaced).unwrap_or("")) {
            return Err(invalid_continue(&token.start));
        }
        return match token.revision {
            None => from_cache(registry, served, namespace, params, Some(&token.start), limit).await,
            Some(revision) => {
                at_revision(registry, served, namespace, params, (revision, limit), Some(&token.start)).await
            }
        };
    }
    match (params.version, params.version_match) {
        (Version::At(revision), Some(VersionMatch::Exact)) => {
            at_revision(registry, served, namespace, params, (revision, limit), None).await
        }
        (Version::At(revision), _) if params.limit > 0 && params.version_match.is_none() => {
            // Upstream's legacy rule: with a limit and no resourceVersionMatch, the version is matched exactly.
            at_revision(registry, served, namespace, params, (revision, limit), None).await
        }
        (Version::At(revision), _) => {
            wait_fresh(registry, revision).await?;
            from_cache(registry, served, namespace, params, None, limit).await
        }
        // Answers the cache's current state at once and unpaged: pagination is for clients that want consistency.
        (Version::Any, _) => from_cache(registry, served, namespace, params, None, 0).await,
        (Version::Unset, _) => {
            wait_current(registry).await?;
            from_cache(registry, served, namespace, params, None, limit).await
        }
    }
}

/// Records the metrics of a list that read `read` objects and answers `objects`; `storage` is where it read them.
fn count(registry: &Registry, served: &Served, storage: &str, (read, objects): (u64, usize)) {
    let types = &served.resource.types;
    let of = [types.group, "", types.plural, storage];
    registry.metrics.increment(Metric::Lists, &of);
    registry.metrics.add(Metric::FetchedObjects, &of, read as f64);
    registry.metrics.add(Metric::EvaluatedObjects, &[types.group, types.plural, storage], read as f64);
    registry.metrics.add(Metric::ListedObjects, &[types.group, types.plural, storage], objects as f64);
}

async fn from_cache(
    registry: &Registry,
    served: &Served,
    namespace: Option<&str>,
    params: &ListParams,
    after: Option<&str>,
    limit: usize,
) -> Result<Page, StatusError> {
    let snapshot = served.cache()?.snapshot(namespace, &params.selection, after);
    let page = cut(served, snapshot.items, snapshot.revision, limit);
    count(registry, served, "watchcache", (snapshot.looked_at, page.items.len()));
    Ok(page)
}

fn cut(served: &Served, mut items: Vec<Arc<Object>>, revision: u64, limit: usize) -> Page {
    if limit == 0 || items.len() <= limit {
        return Page { items, revision, last: None, remaining: 0 };
    }
    let remaining = (items.len() - limit) as u64;
    items.truncate(limit);
    let last = items.last().map(|o| served.cache_key(o.namespace(), o.name()));
    Page { items, revision, last, remaining }
}

/// Returns a list at this revision: from the cache if nothing has changed since, otherwise from the store's history.
/// A compacted revision is not served from the cache either: clients rely on old pages to expire.
async fn at_revision(
    registry: &Registry,
    served: &Served,
    namespace: Option<&str>,
    params: &ListParams,
    (revision, limit): (u64, usize),
    after: Option<&str>,
) -> Result<Page, StatusError> {
    wait_fresh(registry, revision).await?;
    let is_held = revision >= registry.compacted.load(Ordering::Acquire);
    if is_held && served.cache()?.unchanged_since(revision) {
        let mut page = from_cache(registry, served, namespace, params, after, limit).await?;
        if page.revision >= revision && served.cache()?.unchanged_since(revision) {
            page.revision = revision;
            return Ok(page);
        }
    }
    let prefix = served.prefix(namespace);
    let mut range = KeyRange::prefix(prefix);
    if let Some(after) = after {
        range = range.after(format!("{}{after}", served.prefix(None)).as_bytes());
    }
    let selects = !params.selection.labels.is_everything() || !params.selection.fields.is_everything();
    let (mut items, mut read, mut left) = (Vec::new(), 0, 0);
    loop {
        let wanted = at_once(limit, items.len(), selects);
        let mut request = RangeRequest::new(range.clone()).at(revision);
        request.limit = wanted;
        // The number of remaining items is only answered if no selector filters the list.
        request.count = wanted.is_some() && !selects;
        let response = registry.store.range(request).await.map_err(|e| match (&e, after) {
            (knarr_storage::Error::Compacted { .. }, Some(after)) => expired(after),
            (knarr_storage::Error::Compacted { .. }, None) => {
                StatusError::expired("The resourceVersion for the provided list is too old.")
            }
            _ => status_of(&e),
        })?;
        read += response.kvs.len() as u64;
        for kv in &response.kvs {
            let object = served.held(&kv.value, kv.mod_revision)?;
            if params.selection.matches(&object) {
                items.push(object);
            }
        }
        left = response.remaining.max(left);
        match response.kvs.last() {
            Some(last) if response.more && (limit == 0 || items.len() <= limit) => {
                range = range.after(&last.key);
            }
            _ => break,
        }
    }
    let mut page = cut(served, items, revision, limit);
    page.remaining += left;
    count(registry, served, "etcd", (read, page.items.len()));
    Ok(page)
}

/// Returns how many keys to read next for a page of `limit` items, `found` of which have been found; `None` for all.
/// One additional key shows whether another page exists. With a selector, an unknown number of keys is needed, so at
/// least [`SELECTED_AT_ONCE`] are read.
fn at_once(limit: usize, found: usize, selects: bool) -> Option<usize> {
    let missing = (limit > 0).then(|| limit.saturating_sub(found).saturating_add(1))?;
    Some(if selects { missing.max(SELECTED_AT_ONCE) } else { missing })
}

/// Returns 410 with a continue token that resumes the list at the current revision.
fn expired(after: &str) -> StatusError {
    let mut error = StatusError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    error.0.metadata.continue_ = Some(encode_continue(-1, after));
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_read_little_more_than_they_show() {
        for (limit, found, selects, expected) in [
            (0, 0, false, None),
            (0, 0, true, None),
            (3, 0, false, Some(4)),
            (3, 2, false, Some(2)),
            (3, 0, true, Some(500)),
            (700, 0, true, Some(701)),
            (700, 600, true, Some(500)),
            (usize::MAX, 0, false, Some(usize::MAX)),
        ] {
            assert_eq!(at_once(limit, found, selects), expected, "{limit} {found} {selects}");
        }
    }

    #[test]
    fn continue_tokens_round_trip() {
        let token = decode_continue(&encode_continue(7, "ns/a")).unwrap();
        assert_eq!((token.revision, token.start.as_str()), (Some(7), "ns/a"));
        assert_eq!(decode_continue(&encode_continue(-1, "a")).unwrap().revision, None);
        for bad in ["%%%", "e30", "bnVsbA"] {
            assert_eq!(decode_continue(bad).err().map(|e| e.code()), Some(400), "{bad}");
        }
    }
}
