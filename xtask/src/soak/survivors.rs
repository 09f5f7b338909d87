//! Checks that objects at the end of a run are as their round left them, many kills earlier.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::history::{Answer, History, Key, Request, State};
use super::objects::{self, RESOURCES};
use super::round::eventually;
use crate::http::Access;

/// The states by namespace and key; `None` if deleted.
#[derive(Default)]
pub struct Survivors(BTreeMap<(String, Key), Option<State>>);

impl Survivors {
    /// Adds what the last lists of a round show, of objects that no unanswered write can still change.
    pub fn add(&mut self, namespace: &str, history: &History) {
        let open = |op: &&super::history::Op| op.answer == Answer::Unknown && op.request != Request::Get;
        let uncertain: BTreeSet<&str> = history.ops.iter().filter(open).map(|op| op.key.as_str()).collect();
        let keys: BTreeSet<&str> = history.ops.iter().map(|op| op.key.as_str()).collect();
        for resource in RESOURCES {
            let lists = history.lists.iter().filter(|l| l.resource == resource.plural);
            let Some(last) = lists.max_by_key(|l| l.revision) else { continue };
            let found: BTreeMap<&str, State> = last.found.iter().map(|(k, s)| (k.as_str(), *s)).collect();
            let of_resource = keys.iter().filter(|k| History::resource_of(k) == resource.plural);
            // The fence is written after the list.
            for key in of_resource.filter(|k| !uncertain.contains(*k) && !k.contains(super::watcher::FENCE)) {
                self.0.insert((namespace.to_owned(), (*key).to_owned()), found.get(key).copied());
            }
        }
    }

    /// Returns the objects that have changed, a sentence each.
    pub fn check(&self, access: &Access) -> Result<Vec<String>> {
        let mut now: BTreeMap<(String, Key), State> = BTreeMap::new();
        for resource in RESOURCES {
            let list =
                eventually("list everything", || access.connect()?.json("GET", &resource.path(None), None))?;
            let items = list["items"].as_array().context("a list without items")?;
            let named = |o: &Value| {
                Some(((objects::namespace(o).to_owned(), resource.key(objects::name(o))), objects::state(o)?))
            };
            now.extend(items.iter().filter_map(named));
        }
        Ok(self.compare(&now))
    }

    fn compare(&self, now: &BTreeMap<(String, Key), State>) -> Vec<String> {
        let changed = self.0.iter().filter(|(key, before)| now.get(*key) != before.as_ref());
        changed
            .map(|(key, before)| {
                format!(
                    "{}/{} was {before:?} at the end of its round and is {:?}",
                    key.0,
                    key.1,
                    now.get(key)
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{List, Op};
    use super::*;

    #[test]
    fn what_changed_without_a_write_is_found() {
        let state = |value| State { value, revision: value };
        let op = |key: &str, answer| Op {
            client: 0,
            key: key.into(),
            request: Request::Delete { at: None },
            answer,
            call: 0,
            end: 1,
        };
        let found = vec![("secrets/a".to_owned(), state(1)), ("secrets/open".to_owned(), state(2))];
        let history = History {
            ops: vec![
                op("secrets/a", Answer::Conflict),
                op("secrets/gone", Answer::Deleted),
                op("secrets/open", Answer::Unknown),
            ],
            lists: vec![List { client: 0, resource: "secrets".into(), revision: 9, found, call: 2, end: 3 }],
            ..History::default()
        };
        let mut survivors = Survivors::default();
        survivors.add("n", &history);
        let at = |key: &str| ("n".to_owned(), key.to_owned());
        let mut now = BTreeMap::from([(at("secrets/a"), state(1))]);
        assert_eq!(survivors.compare(&now), Vec::<String>::new());
        now.insert(at("secrets/gone"), state(3));
        assert_eq!(survivors.compare(&now).len(), 1, "a deleted object is back");
        now.clear();
        assert_eq!(survivors.compare(&now).len(), 1, "an object is lost");
    }
}
