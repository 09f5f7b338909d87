//! What clients asked, what they were answered, and what watches showed: all that the checks look at.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// Nanoseconds since the run began, on one monotonic clock.
pub type Nanos = u64;
/// An object, by its resource and name: `configmaps/k3`.
pub type Key = String;
/// A resourceVersion.
pub type Revision = u64;

/// An object as it was seen. Every write of a run has a value of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    pub value: u64,
    pub revision: Revision,
}

/// What a client asked of one object.
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
    /// The value that the request writes.
    pub fn value(&self) -> Option<u64> {
        match self {
            Self::Create { value } | Self::Update { value, .. } | Self::Patch { value } => Some(*value),
            Self::Delete { .. } | Self::Get => None,
        }
    }
}

/// What the client was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A create, update or patch was done, at this revision.
    Wrote(Revision),
    Deleted,
    /// A get found this.
    Saw(State),
    /// 404: the object is not there. Of a get as of a write.
    Absent,
    /// 409 AlreadyExists.
    Exists,
    /// 409 Conflict: the object is there, at another revision than `at`.
    Conflict,
    /// Refused for a reason that tells nothing about the object, such as 429 or a full store. Without effect.
    Refused,
    /// No answer, or one that leaves open whether the write was done.
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
    /// `state` of a deletion: the last value, and the revision of the deletion.
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
    /// The server that serves it started after `from` was current.
    pub older_than_server: bool,
    pub events: Vec<Event>,
}

impl Stream {
    /// Everything after `from` and up to this has been shown.
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
    /// The objects that anything was asked of.
    pub fn keys(&self) -> usize {
        self.ops.iter().map(|op| &op.key).collect::<HashSet<_>>().len()
    }

    /// The revisions that watches showed a change at.
    pub fn revisions(&self) -> usize {
        let events = self.streams.iter().flat_map(|stream| &stream.events);
        let changes = events.filter(|event| matches!(event, Event::Changed { .. }));
        changes.map(Event::revision).collect::<HashSet<_>>().len()
    }

    /// The resource of a key.
    pub fn resource_of(key: &str) -> &str {
        key.split('/').next().unwrap_or(key)
    }
}
