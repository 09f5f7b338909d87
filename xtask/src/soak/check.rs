//! All checks of a round's history.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::history::{History, Op, Revision, State};
use super::linearizability::{self, Evidence, Verdict, as_get};
use super::{revisions, watches};

/// Returns what is wrong with a history, a sentence each; empty if nothing is.
pub fn check(history: &History) -> Vec<String> {
    let mut wrong = revisions::check(history);
    wrong.extend(watches::check(history));
    let seen = watches::seen(history);
    for (key, ops) in by_key(history) {
        let last = last_revision(history, History::resource_of(key));
        let covered = watches::covered(history, History::resource_of(key));
        let evidence = Evidence { seen: &seen, complete: covered.is_some_and(|to| to >= last) };
        match linearizability::check(&ops, &evidence) {
            Verdict::Linearizable => {}
            Verdict::Undecided => wrong.push(format!("{key}: the search for an order was too long")),
            Verdict::Violated { explained, state, open } => {
                let open: Vec<String> = open.iter().map(|op| format!("\n    {op:?}")).collect();
                wrong.push(format!(
                    "{key}: no order explains the answers; after {explained} operations it is {state:?}, and then:{}",
                    open.concat()
                ));
            }
        }
    }
    wrong
}

/// Returns the last revision in the answers about a resource.
fn last_revision(history: &History, resource: &str) -> Revision {
    let lists = history.lists.iter().filter(|l| l.resource == resource).map(|l| l.revision);
    lists.max().unwrap_or(Revision::MAX)
}

/// Returns each object's operations, including what lists show of it.
fn by_key(history: &History) -> BTreeMap<&str, Vec<Op>> {
    let keys: BTreeSet<&str> = history.ops.iter().map(|op| op.key.as_str()).collect();
    let mut all: BTreeMap<&str, Vec<Op>> = keys.iter().map(|key| (*key, Vec::new())).collect();
    for op in &history.ops {
        all.entry(&op.key).or_default().push(op.clone());
    }
    for list in &history.lists {
        let found: HashMap<&str, State> = list.found.iter().map(|(k, s)| (k.as_str(), *s)).collect();
        for key in keys.iter().filter(|key| History::resource_of(key) == list.resource) {
            let get = as_get(list.client, key, found.get(key).copied(), list.call, list.end);
            all.entry(key).or_default().push(get);
        }
    }
    all
}
