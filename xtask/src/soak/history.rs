//! The requests of clients, their answers, and the events of watches: all data that the checks use.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// Nanoseconds since the run began, on one monotonic clock.
pub type Nanos = u64;
/// An object, by its resource and name: `configmaps/k3`.
pub type Key = String;
/// A resourceVersion.
pub type Revision = u64;

/// An object as it was seen. Every write of a run has a unique value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    pub value: u64,
    pub revision: Revision,
}

/// A client's request for one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    Create {
        value: u64,
    },
    /// PUT with the resourceVersion `at`.
    Update {
        value: u64,
        at: Revision,
    },
    /// Merge patch without a resourceVersion.
    Patch {
        value: u64,
    },
    /// DELETE, with the precondition `at` if there is one.
    Delete {
        at: Option<Revision>,
    },
    Get,
}

impl Request {
    /// Returns the value that the request writes.
    pub fn value(&self) -> Option<u64> {
        match self {
            Self::Create { value } | Self::Update { value, .. } | Self::Patch { value } => Some(*value),
            Self::Delete { .. } | Self::Get => None,
        }
    }
}

/// The answer that the client got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A create, update or patch succeeded, at this revision.
    Wrote(Revision),
    Deleted,
    /// A get returned this state.
    Saw(State),
    /// 404: the object does not exist. For gets and writes.
    Absent,
    /// 409 AlreadyExists.
    Exists,
    /// 409 Conflict: the object exists at another revision than `at`.
    Conflict,
    /// Refused for a reason unrelated to the object, such as 429 or a full store. Without effect.
    Refused,
    /// No answer, or one that does not show whether the write succeeded.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    pub client: u32,
    pub key: Key,
    pub request: Request,
    pub answer: Answer,
    pub call: Nanos,
    pub end: Nanos,
}

/// A LIST of one resource without a resourceVersion: as linearizable as a get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    pub client: u32,
    pub resource: String,
    pub revision: Revision,
    pub found: Vec<(Key, State)>,
    pub call: Nanos,
    pub end: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// One line of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// For a deletion, `state` has the last value and the revision of the deletion.
    Changed {
        change: Change,
        key: Key,
        state: State,
    },
    Bookmark(Revision),
}

impl Event {
    pub fn revision(&self) -> Revision {
        match self {
            Self::Changed { state, .. } => state.revision,
            Self::Bookmark(revision) => *revision,
        }
    }
}

/// One watch request of one resource, from `from` until the connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    pub watcher: u32,
    pub resource: String,
    pub from: Revision,
    /// Whether the server that serves it started after `from` was current.
    pub older_than_server: bool,
    pub events: Vec<Event>,
}

impl Stream {
    /// Returns the revision up to which everything after `from` has been shown.
    pub fn reached(&self) -> Revision {
        self.events.last().map_or(self.from, Event::revision)
    }
}

/// A round: its objects did not exist at revision `from`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub from: Revision,
    pub ops: Vec<Op>,
    pub lists: Vec<List>,
    pub streams: Vec<Stream>,
}

impl History {
    /// Returns the number of objects with requests.
    pub fn keys(&self) -> usize {
        self.ops.iter().map(|op| &op.key).collect::<HashSet<_>>().len()
    }

    /// Returns the number of revisions at which watches showed a change.
    pub fn revisions(&self) -> usize {
        let events = self.streams.iter().flat_map(|stream| &stream.events);
        let changes = events.filter(|event| matches!(event, Event::Changed { .. }));
        changes.map(Event::revision).collect::<HashSet<_>>().len()
    }

    /// Returns the resource of a key.
    pub fn resource_of(key: &str) -> &str {
        key.split('/').next().unwrap_or(key)
    }
}
