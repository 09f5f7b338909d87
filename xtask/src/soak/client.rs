//! A client that writes and reads a few objects without pause, and records everything.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;
use serde_json::Value;

use super::history::{Answer, Key, List, Nanos, Op, Request, State};
use super::objects::{self, RESOURCES, Resource};
use crate::http::{Access, Connection};

/// The number of names of each resource: few, so that clients write the same objects.
const NAMES: usize = 4;
/// The pause between two attempts to reach a server.
pub const BACK_OFF: Duration = Duration::from_millis(5);

/// The state that all threads of a round share.
pub struct Shared {
    pub access: Access,
    pub namespace: String,
    pub began: Instant,
    /// The next value to write, unique in the whole run.
    pub values: AtomicU64,
    /// Set to make clients stop.
    pub stop: AtomicBool,
    /// Set to make watchers stop even if they have not seen the last write.
    pub give_up: AtomicBool,
    /// The number of requests that were answered, whatever the answer.
    pub answered: AtomicU64,
    /// The number of writes that were acknowledged.
    pub acknowledged: AtomicU64,
    /// How many times the server was started.
    pub generation: AtomicU64,
}

impl Shared {
    pub fn now(&self) -> Nanos {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    pub fn value(&self) -> u64 {
        self.values.fetch_add(1, Ordering::Relaxed)
    }
}

/// The operations of a client.
#[derive(Default)]
pub struct Record {
    pub ops: Vec<Op>,
    pub lists: Vec<List>,
}

pub struct Client<'a> {
    id: u32,
    shared: &'a Shared,
    connection: Option<Connection>,
    /// The state in which this client last saw each object.
    known: HashMap<Key, State>,
    record: Record,
}

impl<'a> Client<'a> {
    pub fn new(id: u32, shared: &'a Shared) -> Self {
        Self { id, shared, connection: None, known: HashMap::new(), record: Record::default() }
    }

    /// Sends random requests until the round stops.
    pub fn run(mut self, mut rng: Rng) -> Record {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let resource = &RESOURCES[rng.usize(..RESOURCES.len())];
            let done = if rng.u8(..10) == 0 {
                self.list(resource).map(drop)
            } else {
                self.random(resource, &mut rng)
            };
            if done.is_err() {
                std::thread::sleep(BACK_OFF);
            }
        }
        self.record
    }

    pub fn record(self) -> Record {
        self.record
    }

    fn random(&mut self, resource: &Resource, rng: &mut Rng) -> Result<()> {
        let name = format!("k{}", rng.usize(..NAMES));
        let known = self.known.get(&resource.key(&name)).map(|s| s.revision);
        let value = self.shared.value();
        let request = match (rng.u8(..10), known) {
            (0..=1, _) => Request::Create { value },
            (2..=4, Some(at)) => Request::Update { value, at },
            (5..=6, _) => Request::Patch { value },
            (7, Some(at)) => Request::Delete { at: Some(at) },
            (8, _) if rng.bool() => Request::Delete { at: None },
            _ => Request::Get,
        };
        let padding = if rng.u8(..8) == 0 { rng.usize(..4096) } else { 0 };
        self.one(resource, &name, request, padding).map(drop)
    }

    /// Sends one request for one object. Fails without a record if no server was reached.
    pub fn one(
        &mut self,
        resource: &Resource,
        name: &str,
        request: Request,
        padding: usize,
    ) -> Result<Answer> {
        let sent = resource.request(&self.shared.namespace, name, &request, padding);
        let mut connection = self.connected()?;
        let call = self.shared.now();
        let body = sent.body.as_deref().map(str::as_bytes);
        let received = connection.request(sent.method, &sent.path, sent.content_type, body);
        let end = self.shared.now();
        let answer = match &received {
            Ok(received) => {
                self.connection = Some(connection);
                self.shared.answered.fetch_add(1, Ordering::Relaxed);
                objects::answer(&request, name, received)
            }
            Err(_) => Answer::Unknown,
        };
        let key = resource.key(name);
        match (answer, request.value()) {
            (Answer::Wrote(revision), Some(value)) => {
                self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
                self.known.insert(key.clone(), State { value, revision });
            }
            (Answer::Saw(state), _) => drop(self.known.insert(key.clone(), state)),
            _ => drop(self.known.remove(&key)),
        }
        self.record.ops.push(Op { client: self.id, key, request, answer, call, end });
        received.map(|_| answer)
    }

    pub fn list(&mut self, resource: &Resource) -> Result<List> {
        let mut connection = self.connected()?;
        let call = self.shared.now();
        let body = connection.send("GET", &resource.path(Some(&self.shared.namespace)), None)?;
        let end = self.shared.now();
        self.connection = Some(connection);
        self.shared.answered.fetch_add(1, Ordering::Relaxed);
        let list: Value = serde_json::from_slice(&body)?;
        let items = list["items"].as_array().context("a list without items")?;
        let found =
            items.iter().filter_map(|o| Some((resource.key(objects::name(o)), objects::state(o)?))).collect();
        let revision = objects::revision(&list).context("a list without a resourceVersion")?;
        let list = List { client: self.id, resource: resource.plural.into(), revision, found, call, end };
        self.record.lists.push(list.clone());
        Ok(list)
    }

    /// Takes the connection, which is put back only after a complete answer.
    fn connected(&mut self) -> Result<Connection> {
        self.connection.take().map_or_else(|| self.shared.access.connect(), Ok)
    }
}
