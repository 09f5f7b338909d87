//! Checks that watches show each change once, in order, and nothing else; bookmarks and lists included.

use std::collections::{BTreeMap, HashMap};

use super::history::{Answer, Change, Event, History, Key, List, Request, Revision, State, Stream};

/// A change as all streams must show it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    change: Change,
    key: Key,
    value: u64,
}

/// By resource, every change that any stream showed.
type Truth<'a> = HashMap<&'a str, BTreeMap<Revision, Shown>>;

/// Returns the violations, a sentence each.
pub fn check(history: &History) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut truth = Truth::new();
    for stream in &history.streams {
        in_order(stream, &mut wrong);
        collect(stream, &mut truth, &mut wrong);
    }
    for stream in &history.streams {
        let all = truth.get(stream.resource.as_str());
        all.iter().for_each(|all| without_gaps(stream, all, &mut wrong));
    }
    acknowledged(history, &truth, &mut wrong);
    for (resource, all) in &truth {
        if covered(history, resource).is_some_and(|to| all.keys().next_back().is_none_or(|last| *last <= to))
        {
            folds(history, resource, all, &mut wrong);
        }
    }
    wrong
}

/// Returns the revision up to which the streams together showed everything since the round began; `None`
/// without streams.
pub fn covered(history: &History, resource: &str) -> Option<Revision> {
    let mut spans: Vec<(Revision, Revision)> =
        history.streams.iter().filter(|s| s.resource == resource).map(|s| (s.from, s.reached())).collect();
    spans.sort_unstable();
    let mut reached = history.from;
    for (from, to) in &spans {
        if *from > reached {
            return Some(reached);
        }
        reached = reached.max(*to);
    }
    (!spans.is_empty()).then_some(reached)
}

fn in_order(stream: &Stream, wrong: &mut Vec<String>) {
    let mut last = stream.from;
    for event in &stream.events {
        let revision = event.revision();
        let goes_on = match event {
            Event::Changed { .. } => revision > last,
            Event::Bookmark(_) => revision >= last,
        };
        if !goes_on {
            wrong.push(format!(
                "watcher {} of {} from {}: {event:?} after revision {last}",
                stream.watcher, stream.resource, stream.from
            ));
        }
        last = last.max(revision);
    }
}

fn collect<'a>(stream: &'a Stream, truth: &mut Truth<'a>, wrong: &mut Vec<String>) {
    let all = truth.entry(&stream.resource).or_default();
    for event in &stream.events {
        let Event::Changed { change, key, state } = event else { continue };
        let shown = Shown { change: *change, key: key.clone(), value: state.value };
        match all.get(&state.revision) {
            Some(other) if *other != shown => wrong.push(format!(
                "revision {} is {other:?} to one watch and {shown:?} to another (watcher {})",
                state.revision, stream.watcher
            )),
            Some(_) => {}
            None => drop(all.insert(state.revision, shown)),
        }
    }
}

/// Checks that a stream has every change that others saw between its begin and its last event.
fn without_gaps(stream: &Stream, all: &BTreeMap<Revision, Shown>, wrong: &mut Vec<String>) {
    let reached = stream.reached();
    if reached <= stream.from {
        return;
    }
    let own: std::collections::HashSet<Revision> =
        stream.events.iter().filter(|e| matches!(e, Event::Changed { .. })).map(Event::revision).collect();
    for (revision, shown) in all.range(stream.from + 1..=reached) {
        if !own.contains(revision) {
            wrong.push(format!(
                "watcher {} of {} from {} to {reached} was not shown {shown:?} at revision {revision}",
                stream.watcher, stream.resource, stream.from
            ));
        }
    }
}

/// Checks that acknowledged writes are shown with the revision and value of their answer, and refused ones
/// are not shown.
fn acknowledged(history: &History, truth: &Truth<'_>, wrong: &mut Vec<String>) {
    let mut values: HashMap<u64, Revision> = HashMap::new();
    for all in truth.values() {
        let written = all.iter().filter(|(_, s)| s.change != Change::Deleted);
        for (revision, shown) in written {
            if let Some(other) = values.insert(shown.value, *revision) {
                wrong
                    .push(format!("{} was written at revision {other} and again at {revision}", shown.value));
            }
        }
    }
    let mut reached: HashMap<&str, Option<Revision>> = HashMap::new();
    for op in &history.ops {
        let Some(value) = op.request.value() else { continue };
        let resource = History::resource_of(&op.key);
        let reached = *reached.entry(resource).or_insert_with(|| covered(history, resource));
        match (op.answer, values.get(&value)) {
            (Answer::Wrote(revision), Some(seen)) if *seen != revision => wrong.push(format!(
                "{value} was written to {} at revision {revision}, and watches show it at {seen}",
                op.key
            )),
            (Answer::Wrote(revision), None) if reached.is_some_and(|to| revision <= to) => wrong.push(
                format!("{value} was written to {} at revision {revision}, and no watch shows it", op.key),
            ),
            (Answer::Wrote(_) | Answer::Unknown, _) | (_, None) => {}
            (answer, Some(seen)) => wrong.push(format!(
                "{value} was not written to {} ({answer:?}), and watches show it at {seen}",
                op.key
            )),
        }
    }
}

/// Checks that the changes follow from each other, and that every list matches them.
fn folds(history: &History, resource: &str, all: &BTreeMap<Revision, Shown>, wrong: &mut Vec<String>) {
    let mut lists: Vec<&List> = history.lists.iter().filter(|l| l.resource == resource).collect();
    lists.sort_by_key(|l| l.revision);
    let mut lists = lists.into_iter().peekable();
    let mut objects: BTreeMap<&str, State> = BTreeMap::new();
    for (revision, shown) in all {
        while let Some(list) = lists.next_if(|l| l.revision < *revision) {
            compare(list, &objects, wrong);
        }
        let before = objects.get(shown.key.as_str()).map(|s| s.value);
        let fits = match shown.change {
            Change::Added => before.is_none(),
            Change::Modified => before.is_some(),
            Change::Deleted => before == Some(shown.value),
        };
        if !fits {
            wrong.push(format!("revision {revision} is {shown:?}, and before it the value was {before:?}"));
        }
        if shown.change == Change::Deleted {
            objects.remove(shown.key.as_str());
        } else {
            objects.insert(&shown.key, State { value: shown.value, revision: *revision });
        }
    }
    // A later revision than the last change that a watch showed may be of a change that no watch showed.
    let to = covered(history, resource).unwrap_or_default();
    lists.filter(|l| l.revision <= to).for_each(|list| compare(list, &objects, wrong));
}

fn compare(list: &List, objects: &BTreeMap<&str, State>, wrong: &mut Vec<String>) {
    let mut found: Vec<(&str, State)> = list.found.iter().map(|(k, s)| (k.as_str(), *s)).collect();
    found.sort_by_key(|(key, _)| *key);
    let expected: Vec<(&str, State)> = objects.iter().map(|(k, s)| (*k, *s)).collect();
    if found != expected {
        wrong.push(format!(
            "a list of {} at revision {} shows {found:?}, and watches up to there {expected:?}",
            list.resource, list.revision
        ));
    }
}

/// Returns the values and their revisions, from answers and watches.
pub fn seen(history: &History) -> HashMap<u64, Revision> {
    let mut seen = HashMap::new();
    let mut add = |value: u64, revision: Revision| {
        seen.insert(value, revision);
    };
    for op in &history.ops {
        match (op.request, op.answer) {
            (Request::Get, Answer::Saw(state)) => add(state.value, state.revision),
            (request, Answer::Wrote(revision)) => request.value().into_iter().for_each(|v| add(v, revision)),
            _ => {}
        }
    }
    history.lists.iter().flat_map(|l| &l.found).for_each(|(_, state)| add(state.value, state.revision));
    for event in history.streams.iter().flat_map(|s| &s.events) {
        if let Event::Changed { change: Change::Added | Change::Modified, state, .. } = event {
            add(state.value, state.revision);
        }
    }
    seen
}
