//! Knarr's revisioned key-value store: what stands under the API server, knowing nothing of objects.
//!
//! One counter, the revision, goes up by one with every transaction that changes something. Reads
//! can be made at any revision that has not been compacted, watches start after any such revision
//! and deliver everything that follows exactly once and in order.
//!
//! [`Store`] is the interface, [`Embedded`] the engine: all state in memory, every write durable in
//! one file before it is answered, concurrent writers sharing one fsync. [`Embedded::memory`] is the
//! same engine without the file. [`Etcd`] keeps the same promises on an etcd cluster, which several
//! servers may share.

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
