//! Decides whether one object's operations, each taking effect between its call and its end, have an order
//! that explains all answers.
//!
//! The search is that of Wing and Gong with the cache of Lowe: operations are taken out of a list one after
//! the other, and a combination of the set of taken operations and the resulting state is not tried twice.

use std::collections::{HashMap, HashSet};

use super::history::{Answer, Nanos, Op, Request, Revision, State};

/// The most steps of a search; a history of unique values needs a few for each operation.
const STEPS: usize = 5_000_000;

/// The result of a search in the history of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Linearizable,
    /// The longest explanation leaves these operations open; the first of them cannot be explained.
    Violated {
        explained: usize,
        state: Object,
        open: Vec<Op>,
    },
    /// The search was too long.
    Undecided,
}

/// What is known of values besides the answers: at which revision each was seen.
pub struct Evidence<'a> {
    pub seen: &'a HashMap<u64, Revision>,
    /// Whether `seen` holds every value that was ever written, so that one that is missing was not written.
    pub complete: bool,
}

/// The object between two operations. A value that was never seen has no known revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Object {
    Absent,
    Present { value: u64, revision: Option<Revision> },
}

/// Checks the operations of one object, which may be in any order.
pub fn check(ops: &[Op], evidence: &Evidence<'_>) -> Verdict {
    let mut steps: Vec<Step> = ops.iter().filter_map(|op| Step::of(op, evidence)).collect();
    steps.sort_by_key(|s| (s.op.call, s.op.end));
    Search::new(&steps).run()
}

/// An operation in the search.
struct Step<'a> {
    op: &'a Op,
    /// The end; `Nanos::MAX` if it may take effect at any time after its call.
    end: Nanos,
    /// Whether it may also never take effect.
    optional: bool,
    revision: Option<Revision>,
}

impl<'a> Step<'a> {
    /// Builds the step of an operation; `None` if the operation proves nothing.
    fn of(op: &'a Op, evidence: &Evidence<'_>) -> Option<Self> {
        let seen = op.request.value().and_then(|value| evidence.seen.get(&value).copied());
        match (op.answer, op.request) {
            (Answer::Refused, _) | (Answer::Unknown, Request::Get) => None,
            (Answer::Unknown, request) => {
                if request.value().is_some() && seen.is_none() && evidence.complete {
                    return None;
                }
                Some(Self { op, end: Nanos::MAX, optional: seen.is_none(), revision: seen })
            }
            (Answer::Wrote(revision), _) => {
                Some(Self { op, end: op.end, optional: false, revision: Some(revision) })
            }
            _ => Some(Self { op, end: op.end, optional: false, revision: None }),
        }
    }

    /// Returns the object after this operation; `None` if the operation does not fit the object before.
    fn apply(&self, before: Object) -> Option<Object> {
        let (present, at) = match before {
            Object::Absent => (None, None),
            Object::Present { value, revision } => (Some(value), revision),
        };
        let absent = present.is_none();
        // An answer before a write cannot have a later revision.
        let write = |value| {
            let later = self.revision.is_none() || at.is_none() || self.revision > at;
            later.then_some(Object::Present { value, revision: self.revision })
        };
        match (self.op.request, self.op.answer) {
            (Request::Create { value }, Answer::Wrote(_) | Answer::Unknown) if absent => write(value),
            (Request::Create { .. }, Answer::Exists) if !absent => Some(before),
            (Request::Update { value, at: wanted }, Answer::Wrote(_) | Answer::Unknown)
                if !absent && at == Some(wanted) =>
            {
                write(value)
            }
            (Request::Patch { value }, Answer::Wrote(_) | Answer::Unknown) if !absent => write(value),
            (Request::Delete { at: wanted }, Answer::Deleted | Answer::Unknown)
                if !absent && (wanted.is_none() || wanted == at) =>
            {
                Some(Object::Absent)
            }
            (Request::Update { at: wanted, .. } | Request::Delete { at: Some(wanted) }, Answer::Conflict)
                if !absent && at != Some(wanted) =>
            {
                Some(before)
            }
            // A patch without a resourceVersion may also get conflicts with other writers.
            (Request::Patch { .. } | Request::Delete { at: None }, Answer::Conflict) if !absent => {
                Some(before)
            }
            (_, Answer::Absent) if absent => Some(before),
            (Request::Get, Answer::Saw(state)) => (present == Some(state.value)
                && at.is_none_or(|revision| revision == state.revision))
            .then_some(before),
            _ => None,
        }
    }
}

/// A step that was taken, and the object before it.
struct Taken {
    index: usize,
    before: Object,
}

struct Search<'a> {
    steps: &'a [Step<'a>],
    /// A linked list of the steps that are not taken, in the order of their calls; its head is `steps.len()`.
    next: Vec<usize>,
    previous: Vec<usize>,
    /// The number of required steps that are not taken.
    required: usize,
    /// A random number for each step: the exclusive or over the taken ones identifies their set.
    names: Vec<u128>,
}

impl<'a> Search<'a> {
    fn new(steps: &'a [Step<'a>]) -> Self {
        let n = steps.len();
        let mut rng = fastrand::Rng::with_seed(0x6b6e_6172_7221);
        Self {
            steps,
            next: (0..=n).map(|i| if i == n { 0 } else { i + 1 }).collect(),
            previous: (0..=n).map(|i| if i == 0 { n } else { i - 1 }).collect(),
            required: steps.iter().filter(|s| !s.optional).count(),
            names: (0..n).map(|_| rng.u128(..)).collect(),
        }
    }

    fn run(mut self) -> Verdict {
        let head = self.steps.len();
        let mut object = Object::Absent;
        let (mut taken, mut set) = (Vec::<Taken>::new(), 0u128);
        let mut tried = HashSet::from([(set, object)]);
        let (mut deepest, mut open, mut state) = (0, self.open(), object);
        let mut from = self.next[head];
        for _ in 0..STEPS {
            if self.required == 0 {
                return Verdict::Linearizable;
            }
            if let Some((index, after)) = self.candidate(from, object, set, &tried) {
                set ^= self.names[index];
                tried.insert((set, after));
                self.take(index);
                taken.push(Taken { index, before: object });
                object = after;
                from = self.next[head];
                if taken.len() > deepest {
                    (deepest, state) = (taken.len(), object);
                    open = self.open();
                }
                continue;
            }
            let Some(last) = taken.pop() else {
                let open = open.into_iter().map(|i| self.steps[i].op.clone()).collect();
                return Verdict::Violated { explained: deepest, state, open };
            };
            self.put_back(last.index);
            set ^= self.names[last.index];
            object = last.before;
            from = self.next[last.index];
        }
        Verdict::Undecided
    }

    /// Returns the next possible step from `from` on, and the object after it.
    fn candidate(
        &self,
        from: usize,
        object: Object,
        set: u128,
        tried: &HashSet<(u128, Object)>,
    ) -> Option<(usize, Object)> {
        let head = self.steps.len();
        let mut first_end = Nanos::MAX;
        let mut plain_delete = false;
        let mut index = self.next[head];
        while index != head && self.steps[index].op.call <= first_end {
            let step = &self.steps[index];
            first_end = first_end.min(step.end);
            // Deletes without an answer are equivalent: the first stands for all.
            let same = step.optional && step.op.request == Request::Delete { at: None };
            if index >= from
                && !(same && plain_delete)
                && let Some(after) = step.apply(object)
                && !tried.contains(&(set ^ self.names[index], after))
            {
                return Some((index, after));
            }
            plain_delete |= same;
            index = self.next[index];
        }
        None
    }

    fn take(&mut self, index: usize) {
        let (next, previous) = (self.next[index], self.previous[index]);
        self.next[previous] = next;
        self.previous[next] = previous;
        self.required -= usize::from(!self.steps[index].optional);
    }

    fn put_back(&mut self, index: usize) {
        let (next, previous) = (self.next[index], self.previous[index]);
        self.next[previous] = index;
        self.previous[next] = index;
        self.required += usize::from(!self.steps[index].optional);
    }

    /// Returns a few of the steps that could be next.
    fn open(&self) -> Vec<usize> {
        let head = self.steps.len();
        let mut found = Vec::new();
        let mut index = self.next[head];
        while index != head && found.len() < 8 {
            if !self.steps[index].optional {
                found.push(index);
            }
            index = self.next[index];
        }
        found
    }
}

/// Returns a get of `key` that is equivalent to what a list showed of it.
pub fn as_get(client: u32, key: &str, found: Option<State>, call: Nanos, end: Nanos) -> Op {
    let answer = found.map_or(Answer::Absent, Answer::Saw);
    Op { client, key: key.to_owned(), request: Request::Get, answer, call, end }
}
