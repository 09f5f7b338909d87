//! Estimates how many seats a request takes: lists by the objects they load, writes by the number of watchers.

use std::time::Duration;

use super::queue_set::Work;
use knarr_wire::query::Query;
use knarr_wire::request_info::RequestInfo;

const LIST_SEATS: u64 = 100;
const WRITE_SEATS: u64 = 10;
const BYTES_PER_SEAT: u64 = 100_000;
/// The number of bytes that a list holds in memory at most if it is streamed from the cache.
const STREAMED: u64 = 1_000_000;
const WATCHES_PER_SEAT: u64 = 10;
/// The time that an event takes per seat's worth of watchers.
const PER_EVENT: Duration = Duration::from_millis(5);

/// The facts about the resource.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    pub objects: u64,
    pub average_bytes: u64,
    pub watchers: u64,
}

/// Estimates the cost of a request. `most` is the maximum for one request of its priority level; 0 means no limit.
pub fn estimate(info: &RequestInfo, query: &Query, known: Option<Known>, most: u64) -> Work {
    match info.verb.as_str() {
        "get" => Work::seats(1),
        "list" => list(info, query, known, most),
        // Only a watch that starts with the current state does the work of a list.
        "watch"
            if query.flag("sendInitialEvents")
                || matches!(query.get("resourceVersion"), None | Some("" | "0")) =>
        {
            list(info, query, known, most)
        }
        "create" | "update" | "patch" | "delete" if info.is_resource => write(info, known, most),
        _ => Work::seats(1),
    }
}

fn cap(most: u64, limit: u64) -> u64 {
    if most == 0 { limit } else { most.min(limit) }
}

fn list(info: &RequestInfo, query: &Query, known: Option<Known>, most: u64) -> Work {
    let Some(known) = known else { return Work::seats(1) };
    let limit = query.number("limit").ok().flatten().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
    let limited = limit.map_or(known.objects, |l| l.min(known.objects));
    let version = query.get("resourceVersion").unwrap_or("");
    let exact =
        query.get("resourceVersionMatch") == Some("Exact") || limit.is_some() && !matches!(version, "" | "0");
    let from_cache = info.verb == "watch" || !exact && query.non_empty("continue").is_none();
    let selects = query.non_empty("fieldSelector").is_some() || query.non_empty("labelSelector").is_some();
    let objects = if !info.name.is_empty() {
        1
    } else if !from_cache && selects {
        // The list reads until the page is full, in the worst case all objects.
        known.objects
    } else {
        limited
    };
    let mut bytes = objects.saturating_mul(known.average_bytes);
    if from_cache {
        bytes = bytes.min(STREAMED);
    }
    Work::seats(bytes.div_ceil(BYTES_PER_SEAT).clamp(1, cap(most, LIST_SEATS).max(1)))
}

fn write(info: &RequestInfo, known: Option<Known>, most: u64) -> Work {
    let token = info.resource == "serviceaccounts" && info.subresource == "token";
    let watchers = known.map_or(0, |k| k.watchers);
    if token || watchers < WATCHES_PER_SEAT {
        return Work::seats(1);
    }
    let wanted = watchers.div_ceil(WATCHES_PER_SEAT);
    let seats = wanted.min(cap(most, WRITE_SEATS)).max(1);
    // A request that gets fewer seats holds them longer in proportion.
    let additional_latency = PER_EVENT.mul_f64(wanted as f64 / seats as f64);
    Work { initial_seats: 1, final_seats: seats, additional_latency }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn lists_and_writes_cost_what_they_move() {
        let known = Known { objects: 1000, average_bytes: 5000, watchers: 100 };
        for (method, uri, most, seats, lingering) in [
            (Method::GET, "/api/v1/namespaces/a/pods/p", 0, 1, 0),
            (Method::GET, "/api/v1/pods", 0, 10, 0),
            (Method::GET, "/api/v1/pods", 4, 4, 0),
            (Method::GET, "/api/v1/pods?limit=20", 0, 1, 0),
            (Method::GET, "/api/v1/pods?limit=500&resourceVersion=7&resourceVersionMatch=Exact", 0, 25, 0),
            (Method::GET, "/api/v1/pods?resourceVersion=7&resourceVersionMatch=Exact", 0, 50, 0),
            (Method::GET, "/api/v1/pods?limit=5&continue=x", 0, 1, 0),
            (Method::GET, "/api/v1/pods?limit=5&continue=x&labelSelector=a", 0, 50, 0),
            (Method::GET, "/api/v1/pods?watch=1&resourceVersion=7", 0, 1, 0),
            (Method::GET, "/api/v1/pods?watch=1", 0, 10, 0),
            (Method::POST, "/api/v1/namespaces/a/pods", 0, 10, 5),
            (Method::POST, "/api/v1/namespaces/a/pods", 5, 5, 10),
            (Method::POST, "/api/v1/namespaces/a/serviceaccounts/x/token", 0, 1, 0),
            (Method::GET, "/version", 0, 1, 0),
        ] {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let query = Query::parse(query);
            let info = RequestInfo::parse(&method, path, &query);
            let work = estimate(&info, &query, Some(known), most);
            assert_eq!(work.max_seats(), seats, "{uri}");
            assert_eq!(work.additional_latency, Duration::from_millis(lingering), "{uri}");
        }
    }
}
