//! Random operations on a store and on a simple model of one: all answers must be equal.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;

use super::watches::collect;
use super::{Fixture, bytes};
use crate::{
    Compare, Error, Event, EventKind, KeyRange, KeyValue, Op, Precondition, RangeRequest, Result,
    WatchRequest,
};

const OPERATIONS: usize = 400;
const SEEDS: [u64; 3] = [1, 7, 20_260_101];

type Keys = BTreeMap<Bytes, KeyValue>;

/// The whole store at every revision.
struct Model {
    first: u64,
    compacted: u64,
    revisions: Vec<Keys>,
}

impl Model {
    fn current(&self) -> u64 {
        self.first + self.revisions.len() as u64 - 1
    }

    fn at(&self, revision: u64) -> &Keys {
        &self.revisions[(revision - self.first) as usize]
    }

    fn latest(&self) -> &Keys {
        self.at(self.current())
    }

    /// Executes the transaction, or returns the first key whose condition fails.
    fn txn(&mut self, compares: &[Compare], ops: &[Op]) -> std::result::Result<u64, Bytes> {
        for compare in compares {
            if !compare.condition.holds(self.latest().get(&compare.key)) {
                return Err(compare.key.clone());
            }
        }
        let revision = self.current() + 1;
        let mut keys = self.latest().clone();
        let mut changed = false;
        for op in ops {
            match op {
                Op::Put { key, value, lease } => {
                    let prev = keys.get(key);
                    let kv = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: prev.map_or(revision, |prev| prev.create_revision),
                        mod_revision: revision,
                        version: prev.map_or(0, |prev| prev.version) + 1,
                        lease: *lease,
                    };
                    keys.insert(key.clone(), kv);
                    changed = true;
                }
                Op::Delete { key } => changed |= keys.remove(key).is_some(),
            }
        }
        if changed {
            self.revisions.push(keys);
        }
        Ok(self.current())
    }

    /// The changes between two neighbouring revisions.
    fn events(&self, revision: u64, range: &KeyRange) -> Vec<Event> {
        let (before, after) = (self.at(revision - 1), self.at(revision));
        let mut events = Vec::new();
        let keys: std::collections::BTreeSet<&Bytes> = before.keys().chain(after.keys()).collect();
        for key in keys.into_iter().filter(|key| range.contains(key)) {
            let prev = before.get(key).cloned();
            match after.get(key) {
                Some(kv) if prev.as_ref() != Some(kv) => {
                    events.push(Event { kind: EventKind::Put, kv: kv.clone(), prev });
                }
                None => events.push(Event { kind: EventKind::Delete, kv: deleted(key, revision), prev }),
                Some(_) => {}
            }
        }
        events
    }
}

fn deleted(key: &Bytes, revision: u64) -> KeyValue {
    let (key, value) = (key.clone(), Bytes::new());
    KeyValue { key, value, create_revision: 0, mod_revision: revision, version: 0, lease: None }
}

pub(super) async fn random_operations_match_the_model(fixture: Arc<Fixture>) -> Result<()> {
    for seed in SEEDS {
        run(&fixture, seed).await?;
    }
    Ok(())
}

async fn run(fixture: &Fixture, seed: u64) -> Result<()> {
    let store = &*fixture.store;
    let mut rng = Rng::with_seed(seed);
    let first = store.current_revision().await?;
    let present = store.range(RangeRequest::new(KeyRange::all())).await?.kvs;
    let keys = present.into_iter().map(|kv| (kv.key.clone(), kv)).collect();
    let mut model = Model { first, compacted: first, revisions: vec![keys] };
    store.compact(first).await?;
    for step in 0..OPERATIONS {
        let context = format!("seed {seed}, step {step}");
        match rng.u32(..100) {
            0..65 => check_txn(fixture, &mut model, &mut rng, &context).await?,
            65..85 => check_range(fixture, &model, &mut rng, &context).await?,
            85..95 => check_watch(fixture, &model, &mut rng, &context).await?,
            95..98 => {
                let revision = rng.u64(model.first..=model.current());
                store.compact(revision).await?;
                model.compacted = model.compacted.max(revision);
            }
            _ => {
                let key = random_key(&mut rng);
                assert_eq!(store.get(&key).await?.as_ref(), model.latest().get(&key), "{context}");
            }
        }
        assert_eq!(store.current_revision().await?, model.current(), "{context}");
    }
    Ok(())
}

fn random_key(rng: &mut Rng) -> Bytes {
    bytes(format!("{}/{}", ["a", "b", "c"][rng.usize(..3)], rng.u32(..6)))
}

fn random_range(rng: &mut Rng) -> KeyRange {
    match rng.u32(..4) {
        0 => KeyRange::all(),
        1 => KeyRange::key(random_key(rng)),
        2 => KeyRange::new(random_key(rng), random_key(rng)),
        _ => KeyRange::prefix(["a/", "b/", "c/"][rng.usize(..3)]),
    }
}

async fn check_txn(fixture: &Fixture, model: &mut Model, rng: &mut Rng, context: &str) -> Result<()> {
    let mut compares = Vec::new();
    for _ in 0..rng.usize(..3) {
        let key = random_key(rng);
        let revision = model.latest().get(&key).map_or(1, |kv| kv.mod_revision);
        let condition = match rng.u32(..8) {
            0 => Precondition::Exists,
            1 => Precondition::NotExists,
            2 => Precondition::ModRevision(revision.saturating_sub(1)),
            3 => Precondition::Any,
            _ => Precondition::ModRevision(revision),
        };
        compares.push(Compare { key, condition });
    }
    let mut ops: Vec<Op> = Vec::new();
    for _ in 0..rng.usize(1..4) {
        let key = random_key(rng);
        if ops.iter().all(|op| op.key() != &key) {
            ops.push(match rng.u32(..3) {
                0 => Op::Delete { key },
                _ => Op::Put { key, value: bytes(rng.u32(..1000).to_string()), lease: None },
            });
        }
    }
    let expected = model.txn(&compares, &ops);
    let actual = match fixture.store.txn(compares, ops).await {
        Ok(response) => Ok(response.revision),
        Err(Error::Conflict(conflict)) => {
            assert_eq!(conflict.current.as_ref(), model.latest().get(&conflict.key), "{context}");
            Err(conflict.key)
        }
        Err(error) => return Err(error),
    };
    assert_eq!(actual, expected, "{context}");
    Ok(())
}

async fn check_range(fixture: &Fixture, model: &Model, rng: &mut Rng, context: &str) -> Result<()> {
    let revision = rng.u64(model.first..=model.current());
    let mut request = RangeRequest::new(random_range(rng)).at(revision);
    request.limit = rng.bool().then(|| rng.usize(..8));
    let answer = fixture.store.range(request.clone()).await;
    if revision < model.compacted {
        let compacted = Error::Compacted { requested: revision, compacted: model.compacted };
        assert_eq!(answer, Err(compacted), "{context}");
        return Ok(());
    }
    let all: Vec<KeyValue> =
        model.at(revision).values().filter(|kv| request.range.contains(&kv.key)).cloned().collect();
    let taken = request.limit.unwrap_or(usize::MAX).min(all.len());
    let answer = answer?;
    assert_eq!(answer.kvs, all[..taken], "{context}");
    assert_eq!((answer.remaining as usize, answer.more), (all.len() - taken, all.len() > taken), "{context}");
    Ok(())
}

async fn check_watch(fixture: &Fixture, model: &Model, rng: &mut Rng, context: &str) -> Result<()> {
    let after = rng.u64(model.compacted..=model.current());
    let range = random_range(rng);
    let request = WatchRequest { range: range.clone(), after: Some(after) };
    let mut watch = fixture.store.watch(request).await?;
    watch.progress_requester().request();
    // The events of one revision are in the order of its operations, which the model does not record.
    let mut seen = collect(&mut watch, model.current()).await?;
    seen.sort_by(|a, b| (a.kv.mod_revision, &a.kv.key).cmp(&(b.kv.mod_revision, &b.kv.key)));
    let expected: Vec<Event> =
        (after + 1..=model.current()).flat_map(|revision| model.events(revision, &range)).collect();
    assert_eq!(seen, expected, "{context}");
    Ok(())
}
