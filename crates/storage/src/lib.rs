//! Knarr's revisioned key-value store, on which the API server is built. It knows nothing of API objects.
//!
//! A counter, the revision, increases by one with every transaction that changes something. Any revision that has not
//! been compacted can be read. Watches start after any such revision and deliver everything that follows exactly once
//! and in order.
//!
//! [`Store`] is the interface, [`Embedded`] the engine: all state is in memory, every write is durable in one file
//! before it is answered, and concurrent writers share one fsync. [`Embedded::memory`] is the same engine without the
//! file. [`Etcd`] has the same guarantees on an etcd cluster, which several servers may share.

mod disk;
mod embedded;
mod engine;
mod error;
mod etcd;
mod options;
mod shifted;
mod snapshot;
mod store;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
mod types;
mod watch;
mod window;

pub use disk::{Checked, Entry, Fault, FaultKind, OpenError, RepairError, WriteError, is_damaged_disk};
pub use embedded::Embedded;
pub use error::{Conflict, Error, Result};
pub use etcd::{Etcd, EtcdConfigError, EtcdOptions, EtcdTls};
pub use options::{Options, ShareOf, TimeSource};
pub use shifted::Shifted;
pub use snapshot::{Snapshot, snapshot};
pub use store::Store;
pub use types::{
    Compare, DeleteResponse, Event, EventKind, KeyRange, KeyValue, LeaseId, NoSpace, Op, OpResult,
    Precondition, PutResponse, RangeRequest, RangeResponse, ScrubFault, ScrubFrom, ScrubStep, Status,
    TxnResponse, damage, damaged_value,
};
pub use watch::{ProgressRequester, Watch, WatchEvents, WatchItem, WatchRequest};
pub use window::RevisionWindow;
