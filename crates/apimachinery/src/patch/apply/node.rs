//! A place in an object as the schema sees it: scalar, map or list, merged or atomic.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::schema::{self, ListKind, Struct, Type};

/// The schema of one value.
#[derive(Clone, Copy)]
pub(super) enum Node {
    Typed(Type),
    /// No schema: maps are merged, lists are atomic.
    Deduced,
    /// An object of a kind without schema; its metadata has one.
    CustomObject,
}

/// What a value is to a merge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Owned as a whole: scalars, atomic maps and lists.
    Leaf,
    /// Each member has owners of its own.
    Map,
    /// Elements are identified by their keys or their value.
    List(ListKind),
}

impl Node {
    /// The schema of a whole object.
    pub(super) fn root(schema: Option<&'static Struct>) -> Self {
        schema.map_or(Self::CustomObject, |s| Self::Typed(Type::Struct(s)))
    }

    /// The shape; without a schema it follows from the value.
    pub(super) fn shape(self, value: Option<&Value>) -> Shape {
        match self {
            Self::Typed(Type::Struct(s)) => {
                if s.atomic {
                    Shape::Leaf
                } else {
                    Shape::Map
                }
            }
            Self::Typed(Type::Map(map)) => {
                if map.atomic {
                    Shape::Leaf
                } else {
                    Shape::Map
                }
            }
            Self::Typed(Type::List(list)) => match list.kind {
                ListKind::Atomic => Shape::Leaf,
                kind => Shape::List(kind),
            },
            Self::Typed(Type::Any) | Self::Deduced | Self::CustomObject => match value {
                Some(Value::Object(_) | Value::Null) | None => Shape::Map,
                Some(_) => Shape::Leaf,
            },
            Self::Typed(_) => Shape::Leaf,
        }
    }

    /// The schema of a member.
    pub(super) fn member(self, name: &str) -> Node {
        match self {
            Self::Typed(Type::Struct(s)) => s.field(name).map_or(Self::Deduced, |f| Self::Typed(f.ty)),
            Self::Typed(Type::Map(map)) => Self::Typed(map.value),
            Self::CustomObject if name == "metadata" => {
                let meta = schema::for_definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
                meta.map_or(Self::Deduced, |s| Self::Typed(Type::Struct(s)))
            }
            _ => Self::Deduced,
        }
    }

    /// Whether the schema names this member, so that it exists by itself and not by being set.
    pub(super) fn names(self, name: &str) -> bool {
        match self {
            Self::Typed(Type::Struct(s)) => s.field(name).is_some(),
            Self::CustomObject => name == "metadata",
            _ => false,
        }
    }

    /// The schema of a list's elements.
    pub(super) fn element(self) -> Node {
        match self {
            Self::Typed(Type::List(list)) => Self::Typed(list.element),
            _ => Self::Deduced,
        }
    }

    /// The path element of a list's element, `k:{"name":"a"}` or `v:"x"`.
    pub(super) fn item(self, kind: ListKind, item: &Value) -> Result<String, String> {
        match kind {
            ListKind::Map(keys) => keyed_item(self.element(), keys, item),
            _ => match item {
                Value::Object(_) => {
                    Err("associative list without keys has an element that's a map type".to_owned())
                }
                Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
                Value::Null => {
                    Err("associative list without keys has an element that's an explicit null".to_owned())
                }
                scalar => Ok(format!("v:{scalar}")),
            },
        }
    }
}

fn keyed_item(element: Node, keys: &[&str], item: &Value) -> Result<String, String> {
    let map = match item {
        Value::Object(map) => map,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let mut sorted: Vec<&str> = keys.to_vec();
    sorted.sort_unstable();
    let mut text = String::from("k:{");
    for key in sorted {
        let value = match (map.get(key), element) {
            (Some(value), _) => Cow::Owned(value.to_string()),
            (None, Node::Typed(Type::Struct(s))) => match s.field(key).and_then(|f| f.default) {
                Some(default) => Cow::Borrowed(default),
                None => continue,
            },
            _ => continue,
        };
        if text.len() > 3 {
            text.push(',');
        }
        text.push('"');
        text.push_str(key);
        text.push_str("\":");
        text.push_str(&value);
    }
    if text.len() == 3 {
        let keys: Vec<String> = keys.iter().map(|k| format!("\"{k}\"")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] \
             (and doesn't have default values for any key fields)",
            keys.join(" ")
        ));
    }
    text.push('}');
    Ok(text)
}

/// The members of a map; `None` for null and for what is no map.
pub(super) fn members(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// The elements of a list; none for null and for what is no list.
pub(super) fn elements(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// An object of this kind in which nothing is set, as upstream's types are when new: with the members that are
/// always written.
pub(super) fn empty_object(schema: Option<&'static Struct>) -> Value {
    let Some(schema) = schema else { return Value::Object(Map::new()) };
    let mut map = Map::new();
    for field in schema.fields.iter().filter(|f| f.always) {
        // What has no default is a pointer, list or map upstream, and null.
        let value = match (field.ty, field.default) {
            (_, None) => Value::Null,
            (Type::Struct(inner), Some(_)) => empty_object(Some(inner)),
            (_, Some(default)) => serde_json::from_str(default).unwrap_or(Value::Null),
        };
        map.insert(field.name.to_owned(), value);
    }
    Value::Object(map)
}
