//! Values of expressions. Objects of the API are borrowed, not copied.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value as Json;

use crate::error::EvalError;
use crate::opaque::Opaque;
use crate::schema::{DeclType, from_json};
use crate::types::Type;

/// A value. `'a` is the lifetime of the objects that it borrows from.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Str<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Timestamp),
    /// In nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Object(Object<'a>),
    Type(Type),
    Optional(Option<Arc<Held<'a>>>),
    Opaque(Opaque),
}

/// The value of an optional.
#[derive(Debug, Clone)]
pub struct Held<'a> {
    pub value: Value<'a>,
    depth: u16,
}

/// A string, borrowed or shared.
#[derive(Debug, Clone)]
pub enum Str<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(s) => s,
            Self::Shared(s) => s,
        }
    }
}

impl PartialEq for Str<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Str<'_> {}

impl PartialOrd for Str<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Str<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

/// A list; with a declared type it may be a set or a map by keys.
#[derive(Debug, Clone)]
pub struct List<'a> {
    pub(crate) items: Items<'a>,
    pub(crate) decl: Option<&'a DeclType>,
    depth: u16,
}

#[derive(Debug, Clone)]
pub(crate) enum Items<'a> {
    Owned(Arc<Vec<Value<'a>>>),
    Json(&'a [Json]),
}

impl<'a> List<'a> {
    pub fn new(items: Vec<Value<'a>>) -> Self {
        let depth = deepest(items.iter());
        Self { items: Items::Owned(Arc::new(items)), decl: None, depth }
    }

    /// Returns the same list with a declared type.
    pub(crate) fn declared(self, decl: Option<&'a DeclType>) -> Self {
        Self { decl, ..self }
    }

    pub(crate) fn of_json(items: &'a [Json], decl: Option<&'a DeclType>) -> Self {
        Self { items: Items::Json(items), decl, depth: 0 }
    }

    /// Appends a value: in place if the list is not shared.
    pub(crate) fn push(&mut self, value: Value<'a>) -> Result<(), EvalError> {
        self.depth = self.depth.max(value.depth().saturating_add(1));
        if let Items::Json(_) = &self.items {
            self.items = Items::Owned(Arc::new(self.to_vec()?));
        }
        if let Items::Owned(items) = &mut self.items {
            Arc::make_mut(items).push(value);
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        match &self.items {
            Items::Owned(items) => items.len(),
            Items::Json(items) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element; `None` past the end.
    pub fn get(&self, index: usize) -> Option<Result<Value<'a>, EvalError>> {
        match &self.items {
            Items::Owned(items) => items.get(index).cloned().map(Ok),
            Items::Json(items) => {
                items.get(index).map(|j| from_json(j, self.decl.and_then(DeclType::element)))
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).map_while(|i| self.get(i))
    }

    pub fn to_vec(&self) -> Result<Vec<Value<'a>>, EvalError> {
        self.iter().collect()
    }
}

/// A key of a map. Equal numbers are equal keys, whatever their type.
#[derive(Debug, Clone)]
pub enum Key<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    String(Str<'a>),
}

impl<'a> Key<'a> {
    fn rank(&self) -> u8 {
        match self {
            Self::Bool(_) => 0,
            Self::Int(_) | Self::Uint(_) => 1,
            Self::String(_) => 2,
        }
    }

    fn number(&self) -> i128 {
        match self {
            Self::Bool(b) => i128::from(*b),
            Self::Int(i) => i128::from(*i),
            Self::Uint(u) => i128::from(*u),
            Self::String(_) => 0,
        }
    }

    /// Returns the key for looking up a value: whole doubles are equal to integers.
    pub fn lookup(value: &Value<'a>) -> Option<Self> {
        match value {
            Value::Double(d) if d.fract() == 0.0 && d.abs() < 9.2e18 => Some(Self::Int(*d as i64)),
            other => Self::of(other),
        }
    }

    /// Returns the value as a key.
    pub fn of(value: &Value<'a>) -> Option<Self> {
        Some(match value {
            Value::Bool(b) => Self::Bool(*b),
            Value::Int(i) => Self::Int(*i),
            Value::Uint(u) => Self::Uint(*u),
            Value::String(s) => Self::String(s.clone()),
            _ => return None,
        })
    }

    pub fn value(&self) -> Value<'a> {
        match self {
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(i) => Value::Int(*i),
            Self::Uint(u) => Value::Uint(*u),
            Self::String(s) => Value::String(s.clone()),
        }
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let ranks = self.rank().cmp(&other.rank());
        ranks.then_with(|| match (self, other) {
            (Self::String(a), Self::String(b)) => a.cmp(b),
            _ => self.number().cmp(&other.number()),
        })
    }
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key<'_> {}

/// A map, sorted by key.
#[derive(Debug, Clone)]
pub enum Map<'a> {
    Owned {
        entries: Arc<BTreeMap<Key<'a>, Value<'a>>>,
        depth: u16,
    },
    /// Missing keys have an empty map as value, such as the domains of a device's attributes.
    Open {
        entries: Arc<BTreeMap<Key<'a>, Value<'a>>>,
        depth: u16,
    },
    Json {
        entries: &'a serde_json::Map<String, Json>,
        /// The type of the map itself.
        decl: Option<&'a DeclType>,
    },
}

impl<'a> Map<'a> {
    pub fn new(entries: BTreeMap<Key<'a>, Value<'a>>) -> Self {
        let depth = deepest(entries.values());
        Self::Owned { entries: Arc::new(entries), depth }
    }

    /// Creates a map in which missing keys have an empty map as value.
    pub fn open(entries: BTreeMap<Key<'a>, Value<'a>>) -> Self {
        let depth = deepest(entries.values());
        Self::Open { entries: Arc::new(entries), depth }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Owned { entries, .. } | Self::Open { entries, .. } => entries.len(),
            Self::Json { entries, .. } => entries.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, key: &Value<'a>) -> Option<Result<Value<'a>, EvalError>> {
        match (self, key) {
            (Self::Owned { entries, .. }, _) => entries.get(&Key::lookup(key)?).cloned().map(Ok),
            (Self::Open { entries, .. }, _) => {
                let found = Key::lookup(key).and_then(|key| entries.get(&key)).cloned();
                Some(Ok(found.unwrap_or_else(|| Value::map(BTreeMap::new()))))
            }
            (Self::Json { .. }, Value::String(key)) => self.field(key),
            _ => None,
        }
    }

    pub fn field(&self, name: &str) -> Option<Result<Value<'a>, EvalError>> {
        match self {
            Self::Owned { entries, .. } => {
                entries.get(&Key::String(Str::Shared(name.into()))).cloned().map(Ok)
            }
            Self::Open { entries, .. } => {
                let found = entries.get(&Key::String(Str::Shared(name.into()))).cloned();
                Some(Ok(found.unwrap_or_else(|| Value::map(BTreeMap::new()))))
            }
            Self::Json { entries, decl } => {
                entries.get(name).map(|j| from_json(j, decl.and_then(DeclType::element)))
            }
        }
    }

    /// Returns the map as one that can grow: in place if it is not shared.
    pub(crate) fn into_owned(self) -> Result<Growing<'a>, EvalError> {
        match self {
            Self::Owned { entries, depth } | Self::Open { entries, depth } => Ok(Growing { entries, depth }),
            Self::Json { .. } => {
                let entries = crate::ops::to_entries(&self)?;
                let depth = deepest(entries.values());
                Ok(Growing { entries: Arc::new(entries), depth })
            }
        }
    }

    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Owned { entries, .. } | Self::Open { entries, .. } => {
                entries.keys().map(Key::value).collect()
            }
            Self::Json { entries, .. } => entries.keys().map(|k| Value::String(Str::Borrowed(k))).collect(),
        }
    }
}

/// A map that entries are added to.
pub(crate) struct Growing<'a> {
    entries: Arc<BTreeMap<Key<'a>, Value<'a>>>,
    depth: u16,
}

impl<'a> Growing<'a> {
    /// Inserts an entry; returns `false` if the key already exists.
    pub fn insert_new(&mut self, key: Key<'a>, value: Value<'a>) -> bool {
        if self.entries.contains_key(&key) {
            return false;
        }
        self.depth = self.depth.max(value.depth().saturating_add(1));
        Arc::make_mut(&mut self.entries).insert(key, value);
        true
    }
}

impl<'a> From<Growing<'a>> for Map<'a> {
    fn from(growing: Growing<'a>) -> Self {
        Self::Owned { entries: growing.entries, depth: growing.depth }
    }
}

/// An object with declared fields.
#[derive(Debug, Clone)]
pub enum Object<'a> {
    Json {
        fields: &'a serde_json::Map<String, Json>,
        decl: &'a DeclType,
    },
    /// Constructed by the expression: `Object.spec{replicas: 3}`.
    Owned {
        name: Arc<str>,
        fields: Arc<BTreeMap<Box<str>, Value<'a>>>,
        depth: u16,
    },
}

/// Returns one more than the depth of the deepest value.
fn deepest<'v, 'a: 'v>(values: impl Iterator<Item = &'v Value<'a>>) -> u16 {
    values.map(Value::depth).max().unwrap_or(0).saturating_add(1)
}

impl<'a> Object<'a> {
    pub fn new(name: &str, fields: BTreeMap<Box<str>, Value<'a>>) -> Self {
        let depth = deepest(fields.values());
        Self::Owned { name: name.into(), fields: Arc::new(fields), depth }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Json { decl, .. } => decl.name(),
            Self::Owned { name, .. } => name,
        }
    }

    /// Returns the value of a field by its name in expressions; null counts as missing.
    pub fn field(&self, name: &str) -> Result<Option<Value<'a>>, EvalError> {
        match self {
            Self::Owned { fields, .. } => Ok(fields.get(name).cloned()),
            Self::Json { fields, decl } => {
                let Some(field) = decl.field(name) else { return Ok(None) };
                let found = fields.get(&*field.json_name).filter(|j| !j.is_null());
                found.map(|j| from_json(j, Some(&field.decl))).transpose()
            }
        }
    }

    /// Returns the names of the fields that are set, as in expressions.
    pub fn names(&self) -> Vec<Str<'a>> {
        match self {
            Self::Owned { fields, .. } => fields.keys().map(|k| Str::Shared((**k).into())).collect(),
            Self::Json { fields, decl } => {
                let set =
                    decl.fields().filter(|(_, f)| fields.get(&*f.json_name).is_some_and(|j| !j.is_null()));
                set.map(|(name, _)| Str::Borrowed(name)).collect()
            }
        }
    }
}

impl<'a> Value<'a> {
    pub fn string(s: impl Into<Arc<str>>) -> Self {
        Self::String(Str::Shared(s.into()))
    }

    pub fn str(s: &'a str) -> Self {
        Self::String(Str::Borrowed(s))
    }

    pub fn list(items: Vec<Value<'a>>) -> Self {
        Self::List(List::new(items))
    }

    pub fn strings(items: impl IntoIterator<Item = String>) -> Self {
        Self::list(items.into_iter().map(Self::string).collect())
    }

    pub fn map(entries: BTreeMap<Key<'a>, Value<'a>>) -> Self {
        Self::Map(Map::new(entries))
    }

    pub fn some(value: Value<'a>) -> Self {
        let depth = value.depth().saturating_add(1);
        Self::Optional(Some(Arc::new(Held { value, depth })))
    }

    pub fn none() -> Self {
        Self::Optional(None)
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(b) = self { Some(*b) } else { None }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(s) = self { Some(s) } else { None }
    }

    /// Returns the nesting depth of the containers that expressions have created.
    pub(crate) fn depth(&self) -> u16 {
        match self {
            Self::List(list) => list.depth,
            Self::Map(Map::Owned { depth, .. } | Map::Open { depth, .. })
            | Self::Object(Object::Owned { depth, .. }) => *depth,
            Self::Optional(Some(held)) => held.depth,
            _ => 0,
        }
    }

    /// Returns the type as far as the value itself knows it.
    pub fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Timestamp(_) => Type::Timestamp,
            Self::Duration(_) => Type::Duration,
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Object(Object::Json { .. }) => Type::map(Type::Dyn, Type::Dyn),
            Self::Object(object) => Type::object(object.name()),
            Self::Type(_) => Type::Type(None),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Opaque(opaque) => opaque.type_of(),
        }
    }

    /// Returns the result of `size()`, if it applies: characters, bytes, elements, entries.
    pub fn size(&self) -> Option<u64> {
        Some(match self {
            Self::String(s) => s.chars().count() as u64,
            Self::Bytes(b) => b.len() as u64,
            Self::List(l) => l.len() as u64,
            Self::Map(m) => m.len() as u64,
            Self::Object(Object::Json { fields, .. }) => fields.len() as u64,
            Self::Opaque(o) => return o.size(),
            _ => return None,
        })
    }

    /// Returns the size from which costs are calculated; 1 for values without a size.
    pub fn cost_size(&self) -> u64 {
        match self {
            Self::Optional(Some(inner)) => inner.value.cost_size(),
            other => other.size().unwrap_or(1),
        }
    }

    /// Returns the value as JSON, if JSON can represent it.
    pub fn to_json(&self) -> Result<Json, EvalError> {
        crate::json::to_json(self)
    }
}

/// Formats the value as error messages show it.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Int(i) => write!(f, "{i}"),
            Self::Uint(u) => write!(f, "{u}"),
            Self::Double(d) => write!(f, "{d}"),
            Self::String(s) => f.write_str(s),
            Self::Timestamp(t) => write!(f, "{t}"),
            Self::Duration(n) => f.write_str(&crate::time::duration_string(*n)),
            Self::Type(t) => f.write_str(t.name()),
            other => write!(f, "{}", other.type_of()),
        }
    }
}
