//! The schema at a path of an object: scalar, map or list, granular or atomic.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::schema::{self, Struct, Type};
use crate::structural::{Additional, Schema};

/// The schema of one value.
#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    Typed(Type),
    /// No schema: maps are granular, lists are atomic.
    Deduced,
    /// An object of a kind without schema; only its metadata has one.
    CustomObject,
    /// A value with the schema of a custom resource.
    Custom(&'a Schema),
    /// A custom resource or an embedded resource: its metadata has a schema of its own.
    CustomResource(&'a Schema),
}

/// How the elements of a list are identified.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind<'a> {
    Atomic,
    Set,
    Map(Keys<'a>),
}

/// The names of the fields that identify an element.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys<'a> {
    Known(&'static [&'static str]),
    Custom(&'a [String]),
}

impl<'a> Keys<'a> {
    pub(super) fn sorted(self) -> Vec<&'a str> {
        let mut keys: Vec<&'a str> = match self {
            Self::Known(keys) => keys.to_vec(),
            Self::Custom(keys) => keys.iter().map(String::as_str).collect(),
        };
        keys.sort_unstable();
        keys
    }
}

impl From<schema::ListKind> for ListKind<'_> {
    fn from(kind: schema::ListKind) -> Self {
        match kind {
            schema::ListKind::Atomic => Self::Atomic,
            schema::ListKind::Set => Self::Set,
            schema::ListKind::Map(keys) => Self::Map(Keys::Known(keys)),
        }
    }
}

/// How a value is merged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape<'a> {
    /// Owned as a whole: scalars, atomic maps and lists.
    Leaf,
    /// Each member is owned separately.
    Map,
    /// Elements are identified by their keys or their value.
    List(ListKind<'a>),
}

impl<'a> Node<'a> {
    /// Returns the schema of a whole object.
    pub(super) fn root(schema: Option<&'static Struct>, custom: Option<&'a Schema>) -> Self {
        match (schema, custom) {
            (Some(schema), _) => Self::Typed(Type::Struct(schema)),
            (None, Some(custom)) => Self::CustomResource(custom),
            (None, None) => Self::CustomObject,
        }
    }

    fn custom(schema: &'a Schema) -> Self {
        if schema.embedded_resource { Self::CustomResource(schema) } else { Self::Custom(schema) }
    }

    /// Returns the shape; without a schema it follows from the value.
    pub(super) fn shape(self, value: Option<&Value>) -> Shape<'a> {
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
                schema::ListKind::Atomic => Shape::Leaf,
                kind => Shape::List(kind.into()),
            },
            Self::Typed(Type::Any) | Self::Deduced | Self::CustomObject => deduced(value),
            Self::Typed(_) => Shape::Leaf,
            Self::CustomResource(_) => Shape::Map,
            Self::Custom(schema) => match (schema.ty.as_str(), schema.list_type.as_deref()) {
                ("object", _) if schema.map_type.as_deref() == Some("atomic") => Shape::Leaf,
                ("object", _) => Shape::Map,
                ("array", Some("set")) => Shape::List(ListKind::Set),
                ("array", Some("map")) => Shape::List(ListKind::Map(Keys::Custom(&schema.list_map_keys))),
                ("", _) if schema.preserve_unknown_fields => deduced(value),
                _ => Shape::Leaf,
            },
        }
    }

    /// Returns the schema of a member.
    pub(super) fn member(self, name: &str) -> Node<'a> {
        match self {
            Self::Typed(Type::Struct(s)) => s.field(name).map_or(Self::Deduced, |f| Self::Typed(f.ty)),
            Self::Typed(Type::Map(map)) => Self::Typed(map.value),
            Self::CustomResource(_) if matches!(name, "apiVersion" | "kind") => Self::Typed(Type::String),
            Self::Custom(schema) => schema.member(name).map_or(Self::Deduced, Self::custom),
            Self::CustomResource(schema) if name != "metadata" => {
                schema.member(name).map_or(Self::Deduced, Self::custom)
            }
            Self::CustomObject | Self::CustomResource(_) if name == "metadata" => {
                let meta = schema::for_definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
                meta.map_or(Self::Deduced, |s| Self::Typed(Type::Struct(s)))
            }
            _ => Self::Deduced,
        }
    }

    /// Returns whether the schema specifies this member.
    pub(super) fn names(self, name: &str) -> bool {
        match self {
            Self::Typed(Type::Struct(s)) => s.field(name).is_some(),
            Self::CustomObject => name == "metadata",
            Self::Custom(schema) => schema.properties.contains_key(name),
            Self::CustomResource(schema) => {
                matches!(name, "apiVersion" | "kind" | "metadata") || schema.properties.contains_key(name)
            }
            _ => false,
        }
    }

    /// Returns whether the member is permitted, even if the schema does not specify it.
    pub(super) fn takes(self, name: &str) -> bool {
        match self {
            Self::Typed(Type::Struct(_)) => self.names(name),
            Self::Custom(schema) | Self::CustomResource(schema) => {
                let open = schema.preserve_unknown_fields
                    || matches!(schema.additional, Some(Additional::Schema(_) | Additional::Allowed(true)));
                open || self.names(name)
            }
            _ => true,
        }
    }

    /// Returns the schema of a list's elements.
    pub(super) fn element(self) -> Node<'a> {
        match self {
            Self::Typed(Type::List(list)) => Self::Typed(list.element),
            Self::Custom(schema) => schema.items.as_deref().map_or(Self::Deduced, Self::custom),
            _ => Self::Deduced,
        }
    }

    /// Returns the path element of a list's element, `k:{"name":"a"}` or `v:"x"`.
    pub(super) fn item(self, kind: ListKind<'_>, item: &Value) -> Result<String, String> {
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

fn keyed_item(element: Node<'_>, keys: Keys<'_>, item: &Value) -> Result<String, String> {
    let map = match item {
        Value::Object(map) => map,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let sorted = keys.sorted();
    let mut text = String::from("k:{");
    for key in &sorted {
        let key = *key;
        let value = match (map.get(key), element) {
            (Some(value), _) => Cow::Owned(value.to_string()),
            (None, Node::Typed(Type::Struct(s))) => match s.field(key).and_then(|f| f.default) {
                Some(default) => Cow::Borrowed(default),
                None => continue,
            },
            (None, Node::Custom(s) | Node::CustomResource(s)) => {
                match s.properties.get(key).and_then(|p| p.default.as_ref()) {
                    Some(default) => Cow::Owned(default.to_string()),
                    None => continue,
                }
            }
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
        let keys: Vec<String> = sorted.iter().map(|k| format!("\"{k}\"")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] \
             (and doesn't have default values for any key fields)",
            keys.join(" ")
        ));
    }
    text.push('}');
    Ok(text)
}

/// Treats maps as granular and everything else as owned as a whole.
fn deduced<'a>(value: Option<&Value>) -> Shape<'a> {
    match value {
        Some(Value::Object(_) | Value::Null) | None => Shape::Map,
        Some(_) => Shape::Leaf,
    }
}

/// Returns the members of a map; `None` for null and for other values.
pub(super) fn members(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// Returns the elements of a list; none for null and for other values.
pub(super) fn elements(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns an empty object of this kind, as a new object of upstream's Go type is written: with the members that are
/// always written.
pub(super) fn empty_object(schema: Option<&'static Struct>) -> Value {
    let Some(schema) = schema else { return Value::Object(Map::new()) };
    let mut map = Map::new();
    for field in schema.fields.iter().filter(|f| f.always) {
        // A field without a default is a pointer, list or map in Go, and written as null.
        let value = match (field.ty, field.default) {
            (_, None) => Value::Null,
            (Type::Struct(inner), Some(_)) => empty_object(Some(inner)),
            (_, Some(default)) => serde_json::from_str(default).unwrap_or(Value::Null),
        };
        map.insert(field.name.to_owned(), value);
    }
    Value::Object(map)
}
