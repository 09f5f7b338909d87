//! Decodes JSON into a value of the shape that a [`Struct`] describes, as Go decodes into the typed object.
//!
//! Go's behaviour is preserved: a type error is saved and decoding continues, so that the first one is reported
//! unless a type with its own decoder (quantity, time, int-or-string) fails; `null` means unset; an explicit zero
//! value of a field that does not distinguish it from unset is dropped; a repeated field is decoded into the same
//! value.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::cursor::{Cursor, Kind};
use super::quote::quote;
use super::time::Layout;
use super::{Abort, base64, time};
use crate::quantity::Quantity;
use crate::schema::{self, Field, List, Struct, Type, go_element};

/// The maximum number of errors about unknown and duplicate fields, as upstream limits them.
const MAX_STRICT_ERRORS: usize = 100;

pub struct Decoder<'a> {
    cursor: Cursor<'a>,
    /// The struct whose field is being decoded, and the names from the root to it, for type errors.
    owner: &'static str,
    names: Vec<&'static str>,
    /// The path for errors about fields, as in `spec.containers[0]`; `None` if they are not collected.
    path: Option<String>,
    pub strict: Vec<String>,
    saved: Option<Abort>,
}

type Result<T = ()> = std::result::Result<T, Abort>;

impl<'a> Decoder<'a> {
    /// Creates a decoder; `data` has passed the syntax check.
    pub fn new(data: &'a [u8]) -> Self {
        Self {
            cursor: Cursor::new(data),
            owner: "",
            names: Vec::new(),
            path: Some(String::new()),
            strict: Vec::new(),
            saved: None,
        }
    }

    /// Decodes the whole input.
    pub fn run(&mut self, ty: Type, slot: &mut Value) -> Result {
        self.value(ty, "", slot)?;
        self.saved.take().map_or(Ok(()), Err)
    }

    /// Decodes the whole input without a schema, and records duplicate keys.
    pub fn run_untyped(&mut self) -> Result<Value> {
        self.untyped()
    }

    fn complain(&mut self, what: &str, field: &str) {
        let Some(path) = &self.path else { return };
        if self.strict.len() >= MAX_STRICT_ERRORS {
            return;
        }
        let full = if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
        let message = format!("{what} field {}", quote(&full));
        if !self.strict.contains(&message) {
            self.strict.push(message);
        }
    }

    /// Adds a field or key to the path; returns the length to pass to [`Self::leave`].
    fn enter(&mut self, key: &str) -> usize {
        let Some(path) = &mut self.path else { return 0 };
        let before = path.len();
        if before > 0 {
            path.push('.');
        }
        path.push_str(key);
        before
    }

    fn enter_index(&mut self, index: usize) -> usize {
        let Some(path) = &mut self.path else { return 0 };
        let before = path.len();
        path.push_str(&format!("[{index}]"));
        before
    }

    fn leave(&mut self, before: usize) {
        if let Some(path) = &mut self.path {
            path.truncate(before);
        }
    }

    fn mismatch(&self, value: &str, go_type: String) -> Abort {
        Abort::Type {
            value: value.to_owned(),
            owner: self.owner.to_owned(),
            field: self.names.join("."),
            go_type,
        }
    }

    /// Saves a type error and skips the value.
    fn reject(&mut self, ty: Type, go: &str) {
        let word = self.cursor.kind().word();
        self.cursor.raw();
        self.save(word, go_type(ty, go));
    }

    fn save(&mut self, value: &str, go_type: String) {
        if self.saved.is_none() {
            self.saved = Some(self.mismatch(value, go_type));
        }
    }

    fn value(&mut self, ty: Type, go: &'static str, slot: &mut Value) -> Result {
        let kind = self.cursor.kind();
        if kind == Kind::Null {
            self.cursor.raw();
            if slot.is_null() {
                *slot = zero(ty);
            }
            return Ok(());
        }
        match (ty, kind) {
            (Type::Struct(schema), Kind::Object) => return self.structure(schema, slot),
            (Type::List(list), Kind::Array) => return self.list(list, go, slot),
            (Type::Map(map), Kind::Object) => return self.map(map.value, go, slot),
            (Type::Bool, Kind::Bool) => *slot = Value::Bool(self.cursor.raw() == b"true"),
            (Type::String, Kind::String) => *slot = Value::String(self.cursor.string().into_owned()),
            (Type::Int32 | Type::Int64, Kind::Number) => self.integer(ty, go, slot),
            (Type::Float64, Kind::Number) => self.float(go, slot),
            (Type::Bytes, Kind::String | Kind::Array) => self.bytes(kind, slot),
            (Type::Quantity, _) => {
                let raw = self.cursor.raw();
                let inner = raw.strip_prefix(b"\"").and_then(|r| r.strip_suffix(b"\"")).unwrap_or(raw);
                let text = String::from_utf8_lossy(inner);
                let quantity = Quantity::parse(text.trim()).map_err(|e| Abort::Text(e.to_string()))?;
                *slot = Value::String(quantity.to_string());
            }
            (Type::IntOrString, Kind::String) => *slot = Value::String(self.cursor.string().into_owned()),
            (Type::IntOrString, _) => *slot = self.own_int32(kind)?,
            (Type::Time, _) => *slot = self.time(kind, Layout::Seconds)?,
            (Type::MicroTime, _) => *slot = self.time(kind, Layout::Micros)?,
            (Type::Duration, Kind::String) => *slot = Value::String(self.cursor.string().into_owned()),
            (Type::Duration, _) => return Err(self.mismatch(kind.word(), "string".to_owned())),
            (Type::Any, _) => *slot = self.any(go, kind)?,
            _ => self.reject(ty, go),
        }
        Ok(())
    }

    fn structure(&mut self, schema: &'static Struct, slot: &mut Value) -> Result {
        let mut map = match slot.take() {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let outer_owner = self.owner;
        let outer_names = self.names.len();
        let mut seen: Vec<&'static str> = Vec::new();
        self.cursor.begin();
        while self.cursor.more() {
            let key = self.cursor.key();
            let Some(field) = schema.field(&key) else {
                self.complain("unknown", &key);
                self.cursor.raw();
                continue;
            };
            let again = seen.contains(&field.name);
            if again {
                self.complain("duplicate", field.name);
            } else {
                seen.push(field.name);
            }
            self.owner = schema.short_name();
            if !field.inlined_names.is_empty() {
                self.names.push(field.inlined_names);
            }
            self.names.push(field.name);
            let before = self.enter(field.name);
            let mut value = map.remove(field.name).unwrap_or(Value::Null);
            self.field(field, &mut value)?;
            if !value.is_null() && !dropped(field, &value) {
                map.insert(field.name.to_owned(), value);
            }
            self.leave(before);
            self.names.truncate(outer_names);
            self.owner = outer_owner;
        }
        *slot = Value::Object(map);
        Ok(())
    }

    /// Decodes a field's value; `Null` means unset.
    fn field(&mut self, field: &'static Field, value: &mut Value) -> Result {
        if self.cursor.kind() != Kind::Null {
            return self.value(field.ty, field.go_name, value);
        }
        self.cursor.raw();
        let scalar = matches!(
            field.ty,
            Type::Bool | Type::Int32 | Type::Int64 | Type::Float64 | Type::String | Type::Struct(_)
        );
        // Null resets fields that can be nil in Go, and does not change others.
        if field.pointer || !scalar {
            *value = Value::Null;
        }
        Ok(())
    }

    fn list(&mut self, list: &'static List, go: &'static str, slot: &mut Value) -> Result {
        let mut items = match slot.take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        let element_go = go_element(go);
        let mut index = 0;
        self.cursor.begin();
        while self.cursor.more() {
            let before = self.enter_index(index);
            if index == items.len() {
                items.push(Value::Null);
            }
            self.value(list.element, element_go, &mut items[index])?;
            self.leave(before);
            index += 1;
        }
        items.truncate(index);
        // The error of an element of a wrong type is saved; the list is not used then.
        *slot = Value::Array(items);
        Ok(())
    }

    fn map(&mut self, ty: Type, go: &'static str, slot: &mut Value) -> Result {
        let mut map = match slot.take() {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        let value_go = go_element(go);
        let mut seen: BTreeSet<Cow<'a, str>> = BTreeSet::new();
        self.cursor.begin();
        while self.cursor.more() {
            let key = self.cursor.key();
            if seen.contains(&key) {
                self.complain("duplicate", &key);
            }
            let before = self.enter(&key);
            let mut value = Value::Null;
            self.value(ty, value_go, &mut value)?;
            self.leave(before);
            map.insert(key.clone().into_owned(), value);
            seen.insert(key);
        }
        *slot = Value::Object(map);
        Ok(())
    }

    fn integer(&mut self, ty: Type, go: &str, slot: &mut Value) {
        let text = String::from_utf8_lossy(self.cursor.raw());
        let fits = |n: &i64| !matches!(ty, Type::Int32) || i32::try_from(*n).is_ok();
        match text.parse::<i64>().ok().filter(fits) {
            Some(n) => *slot = Value::from(n),
            None => self.save(&format!("number {text}"), go_type(ty, go)),
        }
    }

    fn float(&mut self, go: &str, slot: &mut Value) {
        let text = String::from_utf8_lossy(self.cursor.raw());
        match text.parse::<f64>().ok().filter(|n| n.is_finite()) {
            // Go writes whole floats without a fraction.
            Some(n) if n.fract() == 0.0 && n.abs() < 1e15 => *slot = Value::from(n as i64),
            Some(n) => *slot = Value::from(n),
            None => self.save(&format!("number {text}"), go_type(Type::Float64, go)),
        }
    }

    fn bytes(&mut self, kind: Kind, slot: &mut Value) {
        if kind == Kind::String {
            let text = self.cursor.string();
            match base64::decode(text.as_bytes()) {
                Ok(bytes) => *slot = Value::String(base64::encode(&bytes)),
                Err(at) => {
                    let message = format!("illegal base64 data at input byte {at}");
                    self.saved.get_or_insert(Abort::Text(message));
                }
            }
            return;
        }
        let mut bytes = Vec::new();
        self.cursor.begin();
        while self.cursor.more() {
            let kind = self.cursor.kind();
            let raw = String::from_utf8_lossy(self.cursor.raw());
            match (kind, raw.parse::<u8>()) {
                (Kind::Number, Ok(byte)) => bytes.push(byte),
                (Kind::Number, Err(_)) => self.save(&format!("number {raw}"), "uint8".to_owned()),
                (Kind::Null, _) => bytes.push(0),
                _ => self.save(kind.word(), "uint8".to_owned()),
            }
        }
        *slot = Value::String(base64::encode(&bytes));
    }

    /// Decodes the number of an int-or-string, which has its own decoder: its errors end the decoding.
    fn own_int32(&mut self, kind: Kind) -> Result<Value> {
        let text = String::from_utf8_lossy(self.cursor.raw());
        if kind != Kind::Number {
            return Err(self.mismatch(kind.word(), "int32".to_owned()));
        }
        let number = text.parse::<i32>();
        number.map(Value::from).map_err(|_| self.mismatch(&format!("number {text}"), "int32".to_owned()))
    }

    fn time(&mut self, kind: Kind, layout: Layout) -> Result<Value> {
        if kind != Kind::String {
            return Err(self.mismatch(kind.word(), "string".to_owned()));
        }
        let moment = time::parse(&self.cursor.string(), layout).map_err(Abort::Text)?;
        Ok(if moment.is_zero() { Value::Null } else { Value::String(moment.format(layout)) })
    }

    /// Decodes a value without a fixed shape; some of these types have their own decoder.
    fn any(&mut self, go: &str, kind: Kind) -> Result<Value> {
        match (go, kind) {
            ("v1.JSONSchemaPropsOrBool", Kind::Bool) => Ok(Value::Bool(self.cursor.raw() == b"true")),
            ("v1.JSONSchemaPropsOrBool", Kind::Object) => self.nested(None),
            ("v1.JSONSchemaPropsOrBool", _) => Err(Abort::Text("boolean or JSON schema expected".to_owned())),
            ("v1.JSONSchemaPropsOrArray" | "v1.JSONSchemaPropsOrStringArray", Kind::Object) => {
                self.nested(None)
            }
            ("v1.JSONSchemaPropsOrArray", Kind::Array) => self.nested(Some(None)),
            ("v1.JSONSchemaPropsOrStringArray", Kind::Array) => self.nested(Some(Some(Type::String))),
            ("v1.JSONSchemaPropsOrArray" | "v1.JSONSchemaPropsOrStringArray", _) => {
                self.cursor.raw();
                Ok(Value::Null)
            }
            ("interface {}", _) | ("", _) => self.untyped(),
            _ => {
                self.cursor.any().map_err(|e| self.mismatch(&format!("number {}", e.0), "float64".to_owned()))
            }
        }
    }

    /// Decodes a JSON schema, or a list of schemas or of another type. These have a decoder of their own, which
    /// reports
    /// neither unknown nor duplicate fields.
    fn nested(&mut self, list: Option<Option<Type>>) -> Result<Value> {
        let Some(schema) = schema::for_definition(JSON_SCHEMA_PROPS) else { return Ok(Value::Null) };
        let mut inner = Decoder { path: None, ..Decoder::new(self.cursor.raw()) };
        let mut value = Value::Null;
        let result = match list {
            None => inner.run(Type::Struct(schema), &mut value),
            Some(element) => {
                let mut items = Vec::new();
                inner.cursor.begin();
                let mut result = Ok(());
                while result.is_ok() && inner.cursor.more() {
                    let mut item = Value::Null;
                    result = inner.value(element.unwrap_or(Type::Struct(schema)), "", &mut item);
                    items.push(item);
                }
                value = Value::Array(items);
                result.and_then(|()| inner.saved.take().map_or(Ok(()), Err))
            }
        };
        match result {
            Ok(()) => Ok(value),
            Err(Abort::Text(text)) => Err(Abort::Text(text)),
            Err(Abort::Type { value, field, go_type, .. }) => {
                let mut outer = self.mismatch(&value, go_type);
                if let Abort::Type { field: names, .. } = &mut outer
                    && !field.is_empty()
                {
                    *names = format!("{names}.{field}");
                }
                Err(outer)
            }
        }
    }

    /// Decodes any value and records duplicate keys. The syntax check limits the depth of the recursion.
    fn untyped(&mut self) -> Result<Value> {
        match self.cursor.kind() {
            Kind::Object => {
                let mut map = Map::new();
                self.cursor.begin();
                while self.cursor.more() {
                    let key = self.cursor.key();
                    if map.contains_key(key.as_ref()) {
                        self.complain("duplicate", &key);
                    }
                    let before = self.enter(&key);
                    let value = self.untyped()?;
                    self.leave(before);
                    map.insert(key.into_owned(), value);
                }
                Ok(Value::Object(map))
            }
            Kind::Array => {
                let mut items = Vec::new();
                self.cursor.begin();
                while self.cursor.more() {
                    let before = self.enter_index(items.len());
                    items.push(self.untyped()?);
                    self.leave(before);
                }
                Ok(Value::Array(items))
            }
            _ => {
                self.cursor.any().map_err(|e| self.mismatch(&format!("number {}", e.0), "float64".to_owned()))
            }
        }
    }
}

const JSON_SCHEMA_PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Lists that differ from unset ones even if they are empty, and then get no default: an autoscaler's `policies`.
const DISTINCT_IF_EMPTY: [&str; 1] = ["policies"];

/// Returns whether Go writes the field as if it were unset.
pub fn dropped(field: &Field, value: &Value) -> bool {
    if field.pointer || field.always {
        return false;
    }
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_i64() == Some(0) && !matches!(field.ty, Type::IntOrString | Type::Any),
        Value::String(s) => {
            s.is_empty() && !matches!(field.ty, Type::IntOrString | Type::Any | Type::Quantity)
        }
        Value::Array(items) => {
            items.is_empty() && matches!(field.ty, Type::List(_)) && !DISTINCT_IF_EMPTY.contains(&field.name)
        }
        Value::Object(map) => map.is_empty() && matches!(field.ty, Type::Map(_)),
    }
}

/// Returns the value that `null` means for an element of a list or map.
fn zero(ty: Type) -> Value {
    match ty {
        Type::Bool => Value::Bool(false),
        Type::Int32 | Type::Int64 | Type::Float64 | Type::IntOrString => Value::from(0),
        Type::String => Value::String(String::new()),
        Type::Quantity => Value::String("0".to_owned()),
        Type::Duration => Value::String("0s".to_owned()),
        Type::Struct(_) => Value::Object(Map::new()),
        Type::Bytes | Type::Time | Type::MicroTime | Type::Any | Type::List(_) | Type::Map(_) => Value::Null,
    }
}

/// Returns the Go type as messages name it.
fn go_type(ty: Type, go: &str) -> String {
    if !go.is_empty() {
        return go.to_owned();
    }
    match ty {
        Type::Bool => "bool".to_owned(),
        Type::Int32 => "int32".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Float64 => "float64".to_owned(),
        Type::String => "string".to_owned(),
        Type::Bytes => "[]uint8".to_owned(),
        Type::Quantity => "resource.Quantity".to_owned(),
        Type::IntOrString => "intstr.IntOrString".to_owned(),
        Type::Time => "v1.Time".to_owned(),
        Type::MicroTime => "v1.MicroTime".to_owned(),
        Type::Duration => "v1.Duration".to_owned(),
        Type::Any => "interface {}".to_owned(),
        Type::Struct(schema) => {
            let mut parts = schema.name.rsplit('.');
            let (name, package) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            format!("{package}.{name}")
        }
        Type::List(list) => format!("[]{}", go_type(list.element, "")),
        Type::Map(map) => format!("map[string]{}", go_type(map.value, "")),
    }
}
