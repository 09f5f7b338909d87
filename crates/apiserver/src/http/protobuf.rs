//! Request bodies in `application/vnd.kubernetes.protobuf`, read into JSON by the field numbers of the schema table.
//!
//! Source: `k8s.io/apimachinery/pkg/runtime/serializer/protobuf`, and the `.proto` files of the API types.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::{self, Field, List, Map as MapType, Struct, Type};
use serde_json::{Map, Value, json};

/// What a body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Messages in messages.
const MAX_DEPTH: usize = 100;

/// Bytes that are no such message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Magic,
    #[error("unexpected EOF")]
    Truncated,
    #[error("proto: illegal tag or wire type in {0}")]
    Wire(&'static str),
    #[error("proto: messages nested too deeply")]
    Depth,
    #[error("proto: invalid {0}")]
    Value(&'static str),
}

type Result<T> = std::result::Result<T, ProtobufError>;

/// The object in a body, as a value with `apiVersion` and `kind`; only these for a kind that is not known.
pub fn decode(body: &[u8]) -> Result<Value> {
    let envelope = body.strip_prefix(MAGIC).ok_or(ProtobufError::Magic)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    let mut reader = Reader(envelope);
    while let Some((number, wire)) = reader.field()? {
        match (number, wire) {
            (1, Wire::Bytes(type_meta)) => {
                let mut reader = Reader(type_meta);
                while let Some((number, wire)) = reader.field()? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => api_version = utf8(text)?,
                        (2, Wire::Bytes(text)) => kind = utf8(text)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let gvk = GroupVersionKind::from_api_version(&api_version, &kind);
    let mut object = Map::new();
    if let Some(schema) = schema::for_kind(&gvk) {
        message(raw, schema, &[], &mut object, MAX_DEPTH)?;
    }
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

/// One value as it is on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for i in 0..10 {
            let (byte, rest) = self.0.split_first().ok_or(ProtobufError::Truncated)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::Value("varint"))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    /// The next field's number and value; `None` at the end.
    fn field(&mut self) -> Result<Option<(u32, Wire<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Wire("field number"))?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(ProtobufError::Wire("message")),
        };
        Ok(Some((number, value)))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| ProtobufError::Truncated)
    }
}

fn utf8(bytes: &[u8]) -> Result<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ProtobufError::Value("UTF-8"))
}

/// Reads a message into the fields of a JSON object. `inlined` are the numbers of the messages around this one that
/// JSON does not show.
fn message(
    bytes: &[u8],
    schema: &'static Struct,
    inlined: &[u32],
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or(ProtobufError::Depth)?;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        if let Some(field) = field_at(schema, inlined, number) {
            add(out, field, wire, depth)?;
        } else if let Wire::Bytes(inner) = wire {
            let path: Vec<u32> = inlined.iter().copied().chain([number]).collect();
            if schema.fields.iter().any(|f| f.inlined.starts_with(&path)) {
                message(inner, schema, &path, out, depth)?;
            }
        }
    }
    Ok(())
}

fn field_at(schema: &'static Struct, inlined: &[u32], number: u32) -> Option<&'static Field> {
    schema.fields.iter().find(|f| f.number == number && f.number != 0 && f.inlined == inlined)
}

fn add(out: &mut Map<String, Value>, field: &'static Field, wire: Wire<'_>, depth: usize) -> Result<()> {
    match field.ty {
        Type::List(list) => {
            let slot = out.entry(field.name).or_insert_with(|| json!([]));
            if let Value::Array(items) = slot {
                add_items(items, list, wire, depth)?;
            }
        }
        Type::Map(map) => {
            let slot = out.entry(field.name).or_insert_with(|| json!({}));
            if let Value::Object(entries) = slot {
                add_entry(entries, map, wire, depth)?;
            }
        }
        ty => {
            out.insert(field.name.to_owned(), value(ty, wire, depth)?);
        }
    }
    Ok(())
}

fn add_items(items: &mut Vec<Value>, list: &'static List, wire: Wire<'_>, depth: usize) -> Result<()> {
    let packable = matches!(list.element, Type::Bool | Type::Int32 | Type::Int64);
    if let (true, Wire::Bytes(packed)) = (packable, wire) {
        let mut reader = Reader(packed);
        while !reader.0.is_empty() {
            let number = reader.varint()?;
            items.push(value(list.element, Wire::Varint(number), depth)?);
        }
        return Ok(());
    }
    items.push(value(list.element, wire, depth)?);
    Ok(())
}

fn add_entry(
    entries: &mut Map<String, Value>,
    map: &'static MapType,
    wire: Wire<'_>,
    depth: usize,
) -> Result<()> {
    let Wire::Bytes(entry) = wire else { return Err(ProtobufError::Wire("map entry")) };
    let (mut key, mut found) = (String::new(), None);
    let mut reader = Reader(entry);
    while let Some((number, wire)) = reader.field()? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => key = utf8(text)?,
            (2, wire) => found = Some(value(map.value, wire, depth)?),
            _ => {}
        }
    }
    entries.insert(key, found.unwrap_or_else(|| zero(map.value)));
    Ok(())
}

/// What an entry without a value has.
fn zero(ty: Type) -> Value {
    match ty {
        Type::Bool => false.into(),
        Type::Int32 | Type::Int64 | Type::Float64 => 0.into(),
        Type::String | Type::Bytes => "".into(),
        Type::Quantity => "0".into(),
        Type::List(_) => json!([]),
        _ => json!({}),
    }
}

fn value(ty: Type, wire: Wire<'_>, depth: usize) -> Result<Value> {
    Ok(match (ty, wire) {
        (Type::Bool, Wire::Varint(n)) => (n != 0).into(),
        // Negative numbers come as 64-bit two's complement, which the cut keeps.
        (Type::Int32, Wire::Varint(n)) => (n as i32).into(),
        (Type::Int64, Wire::Varint(n)) => n.cast_signed().into(),
        (Type::Float64, Wire::Fixed64(n)) => json!(f64::from_bits(n)),
        (Type::Float64, Wire::Fixed32(n)) => json!(f32::from_bits(n)),
        (Type::String, Wire::Bytes(text)) => utf8(text)?.into(),
        (Type::Bytes, Wire::Bytes(bytes)) => BASE64.encode(bytes).into(),
        (Type::Struct(schema), Wire::Bytes(bytes)) => {
            let mut object = Map::new();
            message(bytes, schema, &[], &mut object, depth)?;
            Value::Object(object)
        }
        // A list as the value of a map is wrapped into a message with the items as its first field.
        (Type::List(list), Wire::Bytes(bytes)) => {
            let mut items = Vec::new();
            let mut reader = Reader(bytes);
            while let Some((number, wire)) = reader.field()? {
                if number == 1 {
                    add_items(&mut items, list, wire, depth)?;
                }
            }
            Value::Array(items)
        }
        (Type::Quantity, Wire::Bytes(bytes)) => match numbered(bytes, 1)? {
            Some(Wire::Bytes(text)) => utf8(text)?.into(),
            _ => "0".into(),
        },
        (Type::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (Type::Time, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        (Type::MicroTime, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        (Type::Duration, Wire::Bytes(bytes)) => match numbered(bytes, 1)? {
            Some(Wire::Varint(nanos)) => go_duration(nanos.cast_signed()).into(),
            _ => "0s".into(),
        },
        (Type::Any, Wire::Bytes(bytes)) => match numbered(bytes, 1)? {
            Some(Wire::Bytes(raw)) => {
                serde_json::from_slice(raw).map_err(|_| ProtobufError::Value("raw JSON"))?
            }
            _ => Value::Null,
        },
        _ => return Err(ProtobufError::Wire("field")),
    })
}

/// The last value of one field of a message.
fn numbered(bytes: &[u8], wanted: u32) -> Result<Option<Wire<'_>>> {
    let mut found = None;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.field()? {
        if number == wanted {
            found = Some(wire);
        }
    }
    Ok(found)
}

fn int_or_string(bytes: &[u8]) -> Result<Value> {
    let is_text = matches!(numbered(bytes, 1)?, Some(Wire::Varint(1)));
    Ok(match (is_text, numbered(bytes, 2)?, numbered(bytes, 3)?) {
        (true, _, Some(Wire::Bytes(text))) => utf8(text)?.into(),
        (true, _, _) => "".into(),
        (false, Some(Wire::Varint(n)), _) => (n as i32).into(),
        (false, _, _) => 0.into(),
    })
}

/// An empty message is Go's zero time, which counts as unset.
fn time(bytes: &[u8], layout: &str) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let number = |wire| match wire {
        Some(Wire::Varint(n)) => n.cast_signed(),
        _ => 0,
    };
    let (seconds, nanos) = (number(numbered(bytes, 1)?), number(numbered(bytes, 2)?));
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Value("time"))?;
    let at = Timestamp::new(seconds, nanos).map_err(|_| ProtobufError::Value("time"))?;
    Ok(at.strftime(layout).to_string().into())
}

/// A duration as Go prints it, `1h2m3.5s`.
fn go_duration(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".into();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let total = nanos.unsigned_abs();
    let fraction = |value: u64, unit: u64, name: &str| {
        let (whole, part) = (value / unit, value % unit);
        let digits = unit.ilog10() as usize;
        let part = format!("{part:0digits$}");
        let part = part.trim_end_matches('0');
        if digits == 0 || part.is_empty() {
            format!("{whole}{name}")
        } else {
            format!("{whole}.{part}{name}")
        }
    };
    let text = match total {
        0..1_000 => format!("{total}ns"),
        1_000..1_000_000 => fraction(total, 1_000, "µs"),
        1_000_000..1_000_000_000 => fraction(total, 1_000_000, "ms"),
        _ => {
            let (hours, minutes) = (total / 3_600_000_000_000, total / 60_000_000_000 % 60);
            let seconds = fraction(total % 60_000_000_000, 1_000_000_000, "s");
            match (hours, minutes) {
                (0, 0) => seconds,
                (0, m) => format!("{m}m{seconds}"),
                (h, m) => format!("{h}h{m}m{seconds}"),
            }
        }
    };
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(mut n: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push((n & 0x7f) as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
        out
    }

    fn bytes(number: u32, content: &[u8]) -> Vec<u8> {
        [varint(u64::from(number) << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
    }

    fn number(number: u32, n: u64) -> Vec<u8> {
        [varint(u64::from(number) << 3), varint(n)].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &meta), bytes(2, raw)].concat()
    }

    #[test]
    fn a_pod_with_inlined_messages_is_read() {
        let metadata = [bytes(1, b"p"), bytes(11, &[bytes(1, b"app"), bytes(2, b"x")].concat())].concat();
        // The volume's source and the probe's handler are messages of their own here, and none in JSON.
        let empty_dir = bytes(2, &[]);
        let volume = [bytes(1, b"v"), bytes(2, &empty_dir)].concat();
        let port = [number(1, 0), number(2, 80)].concat();
        let handler = bytes(2, &[bytes(1, b"/"), bytes(2, &port)].concat());
        let probe = [bytes(1, &handler), number(2, 5)].concat();
        let cpu = [bytes(1, b"cpu"), bytes(2, &bytes(1, b"100m"))].concat();
        let container =
            [bytes(1, b"c"), bytes(2, b"i"), bytes(8, &bytes(2, &cpu)), bytes(10, &probe)].concat();
        let spec = [bytes(1, &volume), bytes(2, &container), number(4, 30)].concat();
        let pod = [bytes(1, &metadata), bytes(2, &spec)].concat();
        assert_eq!(
            decode(&body("v1", "Pod", &pod)).unwrap(),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {
                "volumes": [{"name": "v", "emptyDir": {}}], "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": 80}, "initialDelaySeconds": 5}}]}})
        );
    }

    #[test]
    fn what_is_broken_is_an_error() {
        assert_eq!(decode(b"{}"), Err(ProtobufError::Magic));
        let whole = body("v1", "Pod", &bytes(1, &bytes(1, b"p")));
        for end in MAGIC.len() + 1..whole.len() {
            // Cut anywhere, it either fails or loses fields; it never panics.
            let _ = decode(&whole[..end]);
        }
        assert!(decode(&[MAGIC, &[0x0f]].concat()).is_err());
        assert!(decode(&[MAGIC, &[0xff; 20]].concat()).is_err());
        let unknown = decode(&body("v9", "Nope", b"\xff\xff")).unwrap();
        assert_eq!(unknown, json!({"apiVersion": "v9", "kind": "Nope"}));
    }

    #[test]
    fn durations_read_as_gos() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (2_000_000, "2ms"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (1_500_000_000, "1.5s"),
            (-1_000_000_000, "-1s"),
        ] {
            assert_eq!(go_duration(nanos), text);
        }
    }
}
