//! Correlates parts of a new object with those of the old one, so that errors in unchanged parts can be tolerated.

use std::collections::HashMap;

use serde_json::Value;

use super::Schema;

/// A value, its old value, and their schema.
#[derive(Clone, Copy)]
pub struct Correlation<'a> {
    new: &'a Value,
    old: &'a Value,
    schema: &'a Schema,
}

impl<'a> Correlation<'a> {
    pub fn new(new: &'a Value, old: &'a Value, schema: &'a Schema) -> Self {
        Self { new, old, schema }
    }

    pub fn old(&self) -> &'a Value {
        self.old
    }

    /// Returns the member of this name, if it has an old value and its map is not atomic.
    pub fn key(&self, name: &str) -> Option<Self> {
        if self.schema.map_type.as_deref() == Some("atomic") {
            return None;
        }
        let (new, old) = (self.new.get(name)?, self.old.get(name)?);
        Some(Self { new, old, schema: self.schema.member(name)? })
    }

    /// Returns the elements of a list; only elements with keys can be correlated.
    pub fn items(&self) -> Items<'a> {
        let schema = self.schema.items.as_deref().filter(|_| self.schema.list_type.as_deref() == Some("map"));
        let (new, old) = (self.new.as_array(), self.old.as_array());
        Items {
            new: new.map_or(&[], Vec::as_slice),
            old: Keyed::new(old.map_or(&[], Vec::as_slice), &self.schema.list_map_keys),
            schema,
        }
    }

    /// Returns whether nothing changed; elements with keys may have been reordered.
    pub fn is_unchanged(&self) -> bool {
        if self.new == self.old {
            return true;
        }
        let (Some(new), Some(old)) = (self.new.as_array(), self.old.as_array()) else { return false };
        if self.schema.list_type.as_deref() != Some("map") || new.len() != old.len() {
            return false;
        }
        let items = self.items();
        (0..new.len()).all(|i| items.get(i).is_some_and(|c| c.is_unchanged()))
    }
}

/// The elements of a list with their old values.
pub struct Items<'a> {
    new: &'a [Value],
    old: Keyed<'a>,
    schema: Option<&'a Schema>,
}

impl<'a> Items<'a> {
    /// Returns the element at this index, if the old list has one with its keys.
    pub fn get(&self, index: usize) -> Option<Correlation<'a>> {
        let (schema, new) = (self.schema?, self.new.get(index)?);
        Some(Correlation { new, old: self.old.find(new)?, schema })
    }
}

/// An index of a list's elements by their keys: lists may be long, and every element is looked up.
pub struct Keyed<'a> {
    keys: &'a [String],
    by_keys: HashMap<Vec<Option<&'a Value>>, &'a Value>,
}

impl<'a> Keyed<'a> {
    /// Creates the index. Without keys it is empty. Of several elements with the same keys, it has the first.
    pub fn new(items: &'a [Value], keys: &'a [String]) -> Self {
        let mut by_keys = HashMap::with_capacity(if keys.is_empty() { 0 } else { items.len() });
        for item in items.iter().filter(|_| !keys.is_empty()) {
            by_keys.entry(Self::of(item, keys)).or_insert(item);
        }
        Self { keys, by_keys }
    }

    fn of<'v>(item: &'v Value, keys: &[String]) -> Vec<Option<&'v Value>> {
        keys.iter().map(|key| item.get(key)).collect()
    }

    /// Returns the element with the same keys as `item`.
    pub fn find(&self, item: &Value) -> Option<&'a Value> {
        // Shortens the lifetime of the index's keys to that of `item`.
        let by_keys: &HashMap<Vec<Option<&Value>>, &'a Value> = &self.by_keys;
        by_keys.get(&Self::of(item, self.keys)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn elements_are_found_by_all_their_keys() {
        let items = [
            json!({"a": 1, "b": "x", "at": 0}),
            json!({"a": 1, "at": 1}),
            json!({"a": 1, "b": "x", "at": 2}),
            json!("no object"),
        ];
        let keys = ["a".to_owned(), "b".to_owned()];
        let keyed = Keyed::new(&items, &keys);
        for (item, at) in [
            (json!({"a": 1, "b": "x"}), Some(json!(0))),
            (json!({"a": 1, "c": 3}), Some(json!(1))),
            (json!({"a": 2, "b": "x"}), None),
        ] {
            assert_eq!(keyed.find(&item).map(|found| found["at"].clone()), at, "{item}");
        }
        assert_eq!(keyed.find(&json!({})), Some(&items[3]), "neither has keys");
        assert_eq!(Keyed::new(&items, &[]).find(&items[0]), None);
    }

    #[test]
    fn long_lists_are_compared_in_one_pass() {
        let schema = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "integer"}}}});
        let schema = Schema::parse(&schema);
        const MANY: i64 = 100_000;
        let list = |order: &dyn Fn(i64) -> i64| Value::from_iter((0..MANY).map(|i| json!({"k": order(i)})));
        let (new, old) = (list(&|i| i), list(&|i| MANY - 1 - i));
        let correlation = Correlation::new(&new, &old, &schema);
        let items = correlation.items();
        assert!((0..100_000).all(|i| items.get(i).is_some_and(|c| c.old() == &new[i])));
        assert!(correlation.is_unchanged());
        let other = list(&|i| i + 1);
        assert!(!Correlation::new(&new, &other, &schema).is_unchanged());
    }
}
