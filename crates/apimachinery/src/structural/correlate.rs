//! Which part of an old object a part of the new one was, so that errors in what stays as it is can be passed over.

use serde_json::Value;

use super::Schema;

/// A value, what it was before, and their schema.
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

    /// The member of this name, if it was there before and its map is not replaced as a whole.
    pub fn key(&self, name: &str) -> Option<Self> {
        if self.schema.map_type.as_deref() == Some("atomic") {
            return None;
        }
        let (new, old) = (self.new.get(name)?, self.old.get(name)?);
        Some(Self { new, old, schema: self.schema.member(name)? })
    }

    /// The element at this place, in a list whose elements have keys.
    pub fn index(&self, index: usize) -> Option<Self> {
        let schema = self.schema.items.as_deref()?;
        let new = self.new.get(index)?;
        Some(Self { new, old: self.counterpart(new)?, schema })
    }

    fn counterpart(&self, item: &Value) -> Option<&'a Value> {
        if self.schema.list_type.as_deref() != Some("map") || self.schema.list_map_keys.is_empty() {
            return None;
        }
        let keys = &self.schema.list_map_keys;
        let same_keys = |other: &&Value| keys.iter().all(|k| item.get(k) == other.get(k));
        self.old.as_array()?.iter().find(same_keys)
    }

    /// Whether nothing changed; elements with keys may have changed places.
    pub fn is_unchanged(&self) -> bool {
        if self.new == self.old {
            return true;
        }
        let (Some(new), Some(old)) = (self.new.as_array(), self.old.as_array()) else { return false };
        let keyed = self.schema.list_type.as_deref() == Some("map");
        keyed
            && new.len() == old.len()
            && (0..new.len()).all(|i| self.index(i).is_some_and(|c| c.is_unchanged()))
    }
}
