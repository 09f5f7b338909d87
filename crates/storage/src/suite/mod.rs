//! The behavior that every engine must have, as one suite for all engines. It panics where an engine differs.

mod compaction;
pub mod etcd_server;
mod leases;
mod model;
mod reads;
mod watches;
mod writes;

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Precondition, PutResponse, Result, Store};

/// An empty store with a clock that the test advances.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    /// Advances the clock of the store's leases.
    pub advance: Box<dyn Fn(Duration) + Send + Sync>,
    /// Values that must outlive the store, for example its folder.
    pub keep: Box<dyn Any + Send + Sync>,
}

type Case = fn(Arc<Fixture>) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>;

macro_rules! cases {
    ($($module:ident: $($case:ident),+;)+) => {
        &[$($((stringify!($case), |fixture| Box::pin($module::$case(fixture))),)+)+]
    };
}

const CASES: &[(&str, Case)] = cases! {
    writes: put_counts_revisions_and_versions, preconditions, transactions_are_atomic, bad_requests,
        create_race_has_one_winner, compare_and_swap_loses_no_update;
    reads: ranges, limits_and_counts, old_revisions, pages_of_one_revision_while_writing;
    compaction: compaction_forgets_the_past_only, history_is_served_after_compaction;
    watches: history_then_live, ranges_and_progress, refused_starts, exactly_once_under_writers,
        a_slow_reader_holds_up_nobody;
    leases: expiry, keep_alive, revocation, attachment;
    model: random_operations_match_the_model;
};

/// Longer than any case takes on a slow machine.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs every case, each with a new store.
pub async fn run<F, Fut>(new_fixture: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Fixture>,
{
    for (name, case) in CASES {
        let fixture = Arc::new(new_fixture().await);
        match tokio::time::timeout(CASE_TIMEOUT, case(fixture)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("{name}: {error}"),
            Err(_) => panic!("{name}: not done after {CASE_TIMEOUT:?}"),
        }
    }
}

async fn put(store: &dyn Store, key: &str, value: &str) -> Result<PutResponse> {
    store
        .put(
            Bytes::copy_from_slice(key.as_bytes()),
            Bytes::copy_from_slice(value.as_bytes()),
            Precondition::Any,
            None,
        )
        .await
}

fn bytes(text: impl Into<String>) -> Bytes {
    Bytes::from(text.into())
}
