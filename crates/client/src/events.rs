//! Records events: a bounded queue, counts instead of repeated events, and limits for sources that emit too many.
//!
//! Source: the behavior and the constants of `k8s.io/client-go/tools/record`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use knarr_api::kind::Kind;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Patch};

/// The number of events that may wait to be written; further ones are dropped.
const QUEUE: usize = 1000;
/// The number of events and sources that are remembered.
const CACHE: usize = 4096;
/// Similar events that only differ in their message are combined from this many within [`COMBINE_WINDOW`] on.
const COMBINE_AFTER: usize = 10;
const COMBINE_WINDOW: Duration = Duration::from_secs(600);
/// A source may emit this many events about one object in a burst, and one more per [`REFILL`].
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);
/// How long the writer goes on when it is stopped, and how long [`EventRecorder::written`] waits. Together with the end
/// of a leader's work, which comes first, this is shorter than the time that is waited for that work.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// The API's limit on the length of a message, in bytes.
const MAX_MESSAGE: usize = 1024;

/// The type of an event: `Normal` or `Warning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Note {
    source: Arc<EventSource>,
    about: ObjectReference,
    type_: EventType,
    reason: String,
    message: String,
    at: Timestamp,
}

/// An item of the writer's queue.
enum Queued {
    Note(Box<Note>),
    /// Answered when everything before it has been processed.
    Mark(oneshot::Sender<()>),
}

/// Writes events about objects for one component. Cheap to clone; never blocks its caller.
#[derive(Clone)]
pub struct EventRecorder {
    source: Arc<EventSource>,
    notes: mpsc::Sender<Queued>,
    client: Client,
}

impl EventRecorder {
    /// Starts the writer, a task of the client's supervisor. `component` and `host` (empty for cluster components) form
    /// the event's source. The writer ends with the last recorder, or some time after `stop`: events recorded until
    /// then are still written, within bounds. Work whose last events matter uses a `stop` of its own for the recorder,
    /// and waits for [`EventRecorder::written`] at its end.
    pub fn new(client: Client, component: &str, host: &str, stop: CancellationToken) -> Self {
        let (notes, queue) = mpsc::channel(QUEUE);
        let source = EventSource {
            component: Some(component.to_owned()),
            host: (!host.is_empty()).then(|| host.to_owned()),
        };
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        // The events describe what was done while the lease was held.
        let writer = client.clone().under_no_lease();
        let writing =
            client.supervisor().run_until_done("event-recorder", CancellationToken::new(), move |_| {
                let (client, queue, stop) = (writer.clone(), Arc::clone(&queue), stop.clone());
                async move {
                    let clock = Arc::clone(client.clock());
                    let mut queue = queue.lock().await;
                    tokio::select! {
                        () = write_all(client, &mut queue) => {}
                        () = async {
                            stop.cancelled().await;
                            clock.sleep(LAST_WRITES).await;
                        } => {}
                    }
                }
            });
        tokio::spawn(writing);
        Self { source: Arc::new(source), notes, client }
    }

    /// Returns a recorder with the same queue for another component.
    pub fn as_component(&self, component: &str) -> Self {
        let mut other = self.clone();
        if other.source.component.as_deref() != Some(component) {
            let component = Some(component.to_owned());
            other.source = Arc::new(EventSource { component, ..EventSource::clone(&self.source) });
        }
        other
    }

    /// Returns a recorder with the same queue for another host.
    pub fn on_host(&self, host: &str) -> Self {
        let mut other = self.clone();
        other.source =
            Arc::new(EventSource { host: Some(host.to_owned()), ..EventSource::clone(&self.source) });
        other
    }

    /// Waits until all events recorded before have been written or dropped, for a few seconds at most.
    pub async fn written(&self) {
        let (answer, answered) = oneshot::channel();
        let all = async {
            if self.notes.send(Queued::Mark(answer)).await.is_ok() {
                // If the writer has ended, nothing more is written.
                let _ = answered.await;
            }
        };
        tokio::select! {
            biased;
            () = all => {}
            () = self.client.clock().sleep(LAST_WRITES) => {
                tracing::warn!(component = self.source.component, "the last events could not be written in time");
            }
        }
    }

    /// Records an event about a typed object.
    pub fn event<K: Kind>(&self, object: &K, type_: EventType, reason: &str, message: impl Into<String>) {
        self.event_about(reference(object), type_, reason, message);
    }

    /// Records an event about the object of the reference.
    pub fn event_about(
        &self,
        about: ObjectReference,
        type_: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let mut message: String = message.into();
        truncate(&mut message, MAX_MESSAGE);
        let (source, at) = (Arc::clone(&self.source), self.client.clock().now());
        let note = Note { source, about, type_, reason: reason.to_owned(), message, at };
        if self.notes.try_send(Queued::Note(Box::new(note))).is_err() {
            tracing::debug!(reason, "event dropped: the queue is full");
        }
    }
}

/// The reference to a typed object for events.
pub fn reference<K: Kind>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::RESOURCE.api_version()),
        kind: Some(K::RESOURCE.kind.to_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

fn truncate(text: &mut String, max: usize) {
    if text.len() > max {
        let mut at = max - 3;
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.truncate(at);
        text.push_str("...");
    }
}

async fn write_all(client: Client, queue: &mut mpsc::Receiver<Queued>) {
    let mut correlator = Correlator::default();
    let mut last = 0;
    while let Some(queued) = queue.recv().await {
        let note = match queued {
            Queued::Note(note) => *note,
            Queued::Mark(answer) => {
                // The caller may have been dropped.
                let _ = answer.send(());
                continue;
            }
        };
        let Some(decision) = correlator.decide(note) else { continue };
        let (key, result) = match decision {
            Decision::Create { note, key } => {
                let event = new_event(&note, &mut last);
                (key, client.create(&event).await.map(|e| (e.namespace().to_owned(), e.name().to_owned())))
            }
            Decision::Bump { key, namespace, name, count, note } => {
                let patch = json!({"count": count, "lastTimestamp": Time(note.at), "message": note.message});
                let sent = client.patch::<Event>(&namespace, &name, None, &Patch::Strategic(patch)).await;
                match sent {
                    Err(e) if e.is_not_found() => {
                        let event = new_event(&note, &mut last);
                        let made = client.create(&event).await;
                        (key, made.map(|e| (e.namespace().to_owned(), e.name().to_owned())))
                    }
                    other => (key, other.map(|_| (namespace, name))),
                }
            }
        };
        match result {
            Ok((namespace, name)) => correlator.written(&key, namespace, name),
            Err(error) => tracing::debug!(%error, "failed to write an event"),
        }
    }
}

/// Builds a new event. `last` makes the names of events of the same moment unique.
fn new_event(note: &Note, last: &mut u64) -> Event {
    let namespace = note.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let name = note.about.name.as_deref().unwrap_or("unknown");
    *last = (note.at.as_nanosecond() as u64).max(*last + 1);
    let nanos = *last;
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{nanos:x}")),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: note.about.clone(),
        reason: Some(note.reason.clone()),
        message: Some(note.message.clone()),
        type_: Some(note.type_.name().to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(note.at)),
        last_timestamp: Some(Time(note.at)),
        source: Some(EventSource::clone(&note.source)),
        reporting_component: Some(note.source.component.clone().unwrap_or_default()),
        reporting_instance: Some(note.source.host.clone().unwrap_or_default()),
        ..Event::default()
    }
}

type Key = String;

enum Decision {
    Create { note: Note, key: Key },
    Bump { key: Key, namespace: String, name: String, count: i32, note: Note },
}

struct Known {
    namespace: String,
    name: String,
    count: i32,
}

/// Decides for each event whether to create it, to count it up or to drop it, based on the events before.
#[derive(Default)]
struct Correlator {
    known: Cache<Known>,
    similar: Cache<(Timestamp, BTreeSet<String>)>,
    budgets: Cache<(f64, Timestamp)>,
}

impl Correlator {
    fn decide(&mut self, mut note: Note) -> Option<Decision> {
        let object = format!(
            "{}/{}/{}/{}/{}",
            note.about.api_version.as_deref().unwrap_or(""),
            note.about.kind.as_deref().unwrap_or(""),
            note.about.namespace.as_deref().unwrap_or(""),
            note.about.name.as_deref().unwrap_or(""),
            note.about.uid.as_deref().unwrap_or(""),
        );
        let group = format!(
            "{object}/{}/{}/{}",
            note.type_.name(),
            note.reason,
            note.about.field_path.as_deref().unwrap_or("")
        );
        let mut key = format!("{group}/{}", note.message);
        if self.is_one_of_many(&group, &note) {
            note.message = format!("(combined from similar events): {}", note.message);
            truncate(&mut note.message, MAX_MESSAGE);
            key = group;
        }
        if !self.within_budget(&object, note.at) {
            return None;
        }
        Some(match self.known.get(&key) {
            Some(known) => {
                known.count = known.count.saturating_add(1);
                let (namespace, name, count) = (known.namespace.clone(), known.name.clone(), known.count);
                Decision::Bump { key, namespace, name, count, note }
            }
            None => Decision::Create { note, key },
        })
    }

    fn written(&mut self, key: &str, namespace: String, name: String) {
        match self.known.get(key) {
            Some(known) if known.name == name => {}
            _ => self.known.put(key.to_owned(), Known { namespace, name, count: 1 }),
        }
    }

    fn is_one_of_many(&mut self, group: &str, note: &Note) -> bool {
        match self.similar.get(group) {
            Some((last, messages)) if age(note.at, *last) <= COMBINE_WINDOW => {
                *last = note.at;
                messages.insert(note.message.clone());
                if messages.len() < COMBINE_AFTER {
                    return false;
                }
                messages.pop_first();
                true
            }
            _ => {
                self.similar.put(group.to_owned(), (note.at, BTreeSet::from([note.message.clone()])));
                false
            }
        }
    }

    fn within_budget(&mut self, object: &str, now: Timestamp) -> bool {
        let Some((tokens, since)) = self.budgets.get(object) else {
            self.budgets.put(object.to_owned(), (BURST - 1.0, now));
            return true;
        };
        *tokens = (*tokens + age(now, *since).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *since = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

fn age(now: Timestamp, then: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or_default()
}

/// A map that drops its oldest entries.
struct Cache<V> {
    map: HashMap<Key, V>,
    order: VecDeque<Key>,
}

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self { map: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> Cache<V> {
    fn get(&mut self, key: &str) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    fn put(&mut self, key: Key, value: V) {
        if self.map.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > CACHE
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }
}

/// A shared recorder, for components that pass recorders around.
pub type SharedRecorder = Arc<EventRecorder>;

#[cfg(test)]
mod tests {
    use super::*;

    fn note(message: &str, second: i64) -> Note {
        Note {
            source: Arc::default(),
            about: ObjectReference { name: Some("p".into()), ..ObjectReference::default() },
            type_: EventType::Normal,
            reason: "R".into(),
            message: message.into(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn a_repeated_event_is_counted() {
        let mut c = Correlator::default();
        let Some(Decision::Create { key, .. }) = c.decide(note("m", 1)) else { panic!("first is created") };
        c.written(&key, "default".into(), "p.1".into());
        for expected in 2..5 {
            let Some(Decision::Bump { count, name, .. }) = c.decide(note("m", 2)) else { panic!("counted") };
            assert_eq!((count, name.as_str()), (expected, "p.1"));
        }
    }

    #[test]
    fn many_similar_events_are_combined() {
        let mut c = Correlator::default();
        let combined = (0..12).filter(|i| match c.decide(note(&format!("m{i:02}"), 1)) {
            Some(Decision::Create { note, .. }) => note.message.starts_with("(combined"),
            _ => false,
        });
        assert_eq!(combined.count(), 3);
    }

    #[test]
    fn a_chatty_source_is_curbed_and_recovers() {
        let mut c = Correlator::default();
        assert_eq!((0..40).filter(|_| c.decide(note("m", 1)).is_some()).count(), 25);
        assert!(c.decide(note("m", 400)).is_some());
        assert!(c.decide(note("m", 401)).is_none());
    }
}
