//! Objects of every built-in kind, generated with the schema table from the bytes of the input.
//!
//! The bytes choose the resource, its fields and their values, so a mutated byte gives another well-formed
//! object rather than broken JSON. Each object is defaulted, validated and updated by its strategy, and sent
//! to a whole server as a dry run.

use http::Method;
use knarr_api::object::Object;
use knarr_api::resource::Resource;
use knarr_api::resources;
use knarr_apimachinery::schema::{self, Field, Struct, Type};
use serde_json::{Map, Value, json};

use crate::Target;
use crate::requests::Server;

/// The depth of nested structs; deeper ones stay empty.
const DEPTH: usize = 14;
/// The most fields, elements and entries of one object in all.
const NODES: usize = 2000;

/// Texts that some validation treats specially.
const TEXTS: &[&str] = &[
    "a",
    "",
    "b-1",
    "A_b",
    "a.b/c",
    "-",
    "é\u{0}",
    "*",
    "Exists",
    "In",
    "TCP",
    "10.0.0.0/24",
    "10.0.0.1",
    "fd00::/64",
    "::ffff:1.2.3.4",
    "50%",
    "-1%",
    "9223372036854775808",
    "/",
    "/a/../b",
    "../x",
    "http://h:99999/p",
    "@daily",
    "61 * * * *",
    "object.a == 1",
    "self.all(x, x > 1",
    "kubernetes.io/hostname",
    "Always",
    "None",
    "0.1.2.3.4.5",
    "cpu",
    "requests.memory",
    "limits.example.com/gpu",
    "system:node:a",
    "kubernetes.io/kubelet-serving",
    "LS0tLS1CRUdJTg==",
    "v1",
    "apps/v1",
    "Pod",
    "2026-01-01T00:00:00Z",
];
const NUMBERS: &[i64] =
    &[0, 1, 2, 80, -1, 100, 65_535, 65_536, 1 << 31, i32::MAX as i64, i32::MIN as i64, i64::MAX, i64::MIN];
const QUANTITIES: &[&str] = &["0", "1", "100m", "1.5Gi", "-1", "1e20", "1n", "", "x", "9223372036854775807"];
const DURATIONS: &[&str] = &["0s", "1h30m", "-5s", "9999999h", "", "x"];

/// The bytes of an input, in order, followed by zeros.
struct Bytes<'a> {
    left: &'a [u8],
    nodes: usize,
}

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.left.split_first() else { return 0 };
        self.left = rest;
        *first
    }

    /// Returns a number below `of`; 0 if that is 0.
    fn below(&mut self, of: usize) -> usize {
        let wide = usize::from(self.next());
        let wide = if of > 256 { wide << 8 | usize::from(self.next()) } else { wide };
        wide.checked_rem(of).unwrap_or(0)
    }

    fn choose<T: Copy>(&mut self, among: &[T]) -> Option<T> {
        among.get(self.below(among.len())).copied()
    }

    /// Returns whether the object may still grow.
    fn grow(&mut self) -> bool {
        self.nodes = self.nodes.saturating_sub(1);
        self.nodes > 0 && !self.left.is_empty()
    }

    fn text(&mut self) -> String {
        match self.next() {
            // A text from the input itself.
            255 => {
                let len = self.below(64).min(self.left.len());
                let (own, rest) = self.left.split_at(len);
                self.left = rest;
                String::from_utf8_lossy(own).into_owned()
            }
            254 => "a".repeat(300),
            byte => TEXTS[usize::from(byte) % TEXTS.len()].to_owned(),
        }
    }

    fn object(&mut self, of: &'static Struct, depth: usize) -> Value {
        let mut fields = Map::new();
        if depth > 0 && !of.fields.is_empty() {
            for _ in 0..self.below(10) {
                if !self.grow() {
                    break;
                }
                let field = &of.fields[self.below(of.fields.len())];
                fields.insert(field.name.to_owned(), self.field(field, depth));
            }
            for field in of.fields.iter().filter(|field| field.required) {
                if !fields.contains_key(field.name) && self.next() != 1 {
                    fields.insert(field.name.to_owned(), self.field(field, depth));
                }
            }
        }
        Value::Object(fields)
    }

    fn field(&mut self, field: &'static Field, depth: usize) -> Value {
        if let Type::String = field.ty
            && !field.enumeration.is_empty()
            && self.next() != 1
        {
            return self.choose(field.enumeration).map_or(Value::Null, Value::from);
        }
        self.value(field.ty, depth - 1)
    }

    fn value(&mut self, ty: Type, depth: usize) -> Value {
        match ty {
            Type::Bool => Value::Bool(self.next() % 2 == 1),
            Type::Int32 | Type::Int64 => self.choose(NUMBERS).map_or(Value::Null, Value::from),
            Type::Float64 => json!(0.5 * f64::from(self.next())),
            Type::String => Value::String(self.text()),
            Type::Bytes => Value::from(["", "YQ==", "LS0tLS1CRUdJTg=="][self.below(3)]),
            Type::Quantity => self.choose(QUANTITIES).map_or(Value::Null, Value::from),
            Type::IntOrString if self.next().is_multiple_of(2) => {
                self.choose(NUMBERS).map_or(Value::Null, Value::from)
            }
            Type::IntOrString => Value::String(self.text()),
            Type::Time => Value::from("2026-01-01T00:00:00Z"),
            Type::MicroTime => Value::from("2026-01-01T00:00:00.000001Z"),
            Type::Duration => self.choose(DURATIONS).map_or(Value::Null, Value::from),
            Type::Any => [json!({}), json!({"a": {"b": [1, null]}}), json!("x"), Value::Null, json!([true])]
                [self.below(5)]
            .clone(),
            Type::Struct(of) => self.object(of, depth),
            Type::List(list) => {
                let len = self.below(4);
                let grown = |bytes: &mut Self| bytes.grow().then(|| bytes.value(list.element, depth));
                Value::Array((0..len).map_while(|_| grown(self)).collect())
            }
            Type::Map(map) => {
                let len = self.below(3);
                let grown =
                    |bytes: &mut Self| bytes.grow().then(|| (bytes.text(), bytes.value(map.value, depth)));
                Value::Object((0..len).map_while(|_| grown(self)).collect())
            }
        }
    }
}

/// Builds an object of this resource; `None` if its kind is in no table.
fn object(bytes: &mut Bytes, resource: &Resource) -> Option<Value> {
    let schema = schema::for_kind(&resource.types.gvk())?;
    let mut object = bytes.object(schema, DEPTH);
    object["apiVersion"] = resource.types.api_version().into();
    object["kind"] = resource.types.kind.into();
    let named = json!({"name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"});
    match object.get_mut("metadata").and_then(Value::as_object_mut) {
        Some(metadata) => metadata.extend(named.as_object().cloned().unwrap_or_default()),
        None => object["metadata"] = named,
    }
    if resource.types.namespaced {
        object["metadata"]["namespace"] = "default".into();
    }
    Some(object)
}

/// Creates the first object, then updates it to the second, with the steps of the generic handlers.
fn follow_rules(resource: &Resource, old: &Value, new: &Value, subresource: Option<&str>) {
    let strategy = resource.strategy;
    let held = |value: &Value| Object::new(value.to_string().into(), resource.selectable).ok();
    let (mut old, mut new) = (old.clone(), new.clone());
    strategy.default(&mut old);
    strategy.prepare_for_create(&mut old);
    let Some(first) = held(&old) else { return };
    let _ = strategy.validate(&first);
    let _ = strategy.warnings(&first, None);
    strategy.default(&mut new);
    strategy.prepare_for_update(&mut new, &old, subresource);
    let Some(second) = held(&new) else { return };
    let _ = strategy.validate_update(&second, &first, subresource);
    let _ = strategy.warnings(&second, Some(&first));
    strategy.prepare_for_delete(&mut new, "2026-01-01T00:00:00Z");
}

fn run(server: &Server, input: &[u8]) {
    let mut bytes = Bytes { left: input, nodes: NODES };
    let all = resources::all();
    let resource = all[bytes.below(all.len())];
    let subresource = match bytes.below(resource.subresources.len() + 1) {
        0 => None,
        n => resource.subresources.get(n - 1).map(|s| s.name),
    };
    let Some(first) = object(&mut bytes, resource) else { return };
    let Some(second) = object(&mut bytes, resource) else { return };
    // Decoding uses the table's types: what it refuses reaches no strategy.
    let kind = resource.types.gvk();
    let fits = |value: &Value| {
        schema::validate::decode_request(value.to_string().as_bytes(), &kind, false).ok().map(|d| d.value)
    };
    if let (Some(old), Some(new)) = (fits(&first), fits(&second)) {
        follow_rules(resource, &old, &new, subresource);
    }
    let uri = format!("{}?dryRun=All", resource.types.path(Some("default"), None));
    server.send(Method::POST, &uri, "application/json", first.to_string().as_bytes());
}

/// Returns one input per resource: its number, and bytes that fill the object.
fn corpus() -> Vec<Vec<u8>> {
    let count = resources::all().len();
    (0..count)
        .map(|n| {
            let number = if count > 256 { vec![(n >> 8) as u8, n as u8] } else { vec![n as u8] };
            let filling = (0..200_usize).map(|i| (i * 7 + n * 13 + i * i) as u8);
            number.into_iter().chain(filling).collect()
        })
        .collect()
}

pub fn all() -> Vec<Target> {
    let server = std::cell::OnceCell::new();
    let run = move |input: &[u8]| run(server.get_or_init(Server::start), input);
    vec![Target { name: "objects", corpus: corpus(), run: Box::new(run) }]
}
