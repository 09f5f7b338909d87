//! Messages of the types that JSON writes as text or number: times, quantities, int-or-string, durations.

use serde_json::Value;

use super::DecodeError;
use super::wire::{self, BYTES, Reader, VARINT};
use crate::duration;
use crate::quantity::Quantity;
use crate::schema::Type;
use crate::schema::validate::time::{self, Layout, Moment};

/// The fields of a small message: at most three numbers and texts.
#[derive(Default)]
struct Parts<'a> {
    numbers: [Option<u64>; 3],
    texts: [Option<&'a [u8]>; 3],
}

/// Reads fields 1 to 3; those in `texts` are strings.
fn parts<'a>(data: &'a [u8], name: &'static str, texts: &[u32]) -> Result<Parts<'a>, DecodeError> {
    let mut parts = Parts::default();
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag(name)? {
        let at = tag.number as usize - 1;
        if at >= 3 {
            reader.skip(tag.wire)?;
            continue;
        }
        let wanted = if texts.contains(&tag.number) { BYTES } else { VARINT };
        if tag.wire != wanted {
            return Err(DecodeError::WrongWireType { wire: tag.wire, field: name.to_owned() });
        }
        match wanted {
            BYTES => parts.texts[at] = Some(reader.bytes()?),
            _ => parts.numbers[at] = Some(reader.varint()?),
        }
    }
    Ok(parts)
}

fn text(bytes: Option<&[u8]>) -> String {
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}

/// Decodes such a message to its JSON value; `Null` for an unset time.
pub fn decode(ty: Type, data: &[u8]) -> Result<Value, DecodeError> {
    match ty {
        Type::Time => decode_time(data, Layout::Seconds),
        Type::MicroTime => decode_time(data, Layout::Micros),
        Type::Quantity => {
            let parts = parts(data, "Quantity", &[1])?;
            let Some(bytes) = parts.texts[0] else { return Ok(Value::from("0")) };
            let quantity =
                Quantity::parse(&text(Some(bytes))).map_err(|e| DecodeError::Value(e.to_string()))?;
            Ok(Value::String(quantity.to_string()))
        }
        Type::IntOrString => {
            let parts = parts(data, "IntOrString", &[3])?;
            match parts.numbers[0].unwrap_or(0) {
                0 => Ok(Value::from(parts.numbers[1].unwrap_or(0) as i32)),
                1 => Ok(Value::String(text(parts.texts[2]))),
                _ => Err(DecodeError::Value("impossible IntOrString.Type".to_owned())),
            }
        }
        _ => {
            let parts = parts(data, "Duration", &[])?;
            Ok(Value::String(duration::format(parts.numbers[0].unwrap_or(0) as i64)))
        }
    }
}

fn decode_time(data: &[u8], layout: Layout) -> Result<Value, DecodeError> {
    if data.is_empty() {
        return Ok(Value::Null);
    }
    let parts = parts(data, "Timestamp", &[])?;
    let nanos = match layout {
        Layout::Seconds => 0,
        Layout::Micros => i64::from(parts.numbers[1].unwrap_or(0) as i32),
    };
    let moment = Moment::from_unix(parts.numbers[0].unwrap_or(0) as i64, nanos);
    let moment =
        moment.ok_or_else(|| DecodeError::Value("Time.MarshalJSON: year out of range".to_owned()))?;
    Ok(if moment.is_zero() { Value::Null } else { Value::String(moment.format(layout)) })
}

/// Writes the message's fields, without tag and length. An unset value is written as Go's zero value.
pub fn encode(ty: Type, value: &Value, out: &mut Vec<u8>) -> Result<(), &'static str> {
    match (ty, value) {
        (Type::Time | Type::MicroTime, Value::Null) => {}
        (Type::Time, Value::String(text)) => encode_time(text, Layout::Seconds, out)?,
        (Type::MicroTime, Value::String(text)) => encode_time(text, Layout::Micros, out)?,
        (Type::Quantity, Value::Null) => wire::put_bytes(out, 1, b"0"),
        (Type::Quantity, Value::String(text)) => wire::put_bytes(out, 1, text.as_bytes()),
        (Type::Quantity, Value::Number(n)) => wire::put_bytes(out, 1, n.to_string().as_bytes()),
        (Type::IntOrString, Value::String(text)) => {
            wire::put_int(out, 1, 1);
            wire::put_int(out, 2, 0);
            wire::put_bytes(out, 3, text.as_bytes());
        }
        (Type::IntOrString, Value::Null | Value::Number(_)) => {
            let number = if value.is_null() { Some(0) } else { value.as_i64() };
            wire::put_int(out, 1, 0);
            wire::put_int(out, 2, number.ok_or("IntOrString")?);
            wire::put_bytes(out, 3, b"");
        }
        (Type::Duration, Value::Null) => wire::put_int(out, 1, 0),
        (Type::Duration, Value::String(text)) => {
            let parsed = duration::parse(text).map_err(|_| "Duration")?;
            wire::put_int(out, 1, i64::try_from(parsed.as_nanos()).map_err(|_| "Duration")?);
        }
        _ => return Err("a special type"),
    }
    Ok(())
}

fn encode_time(text: &str, layout: Layout, out: &mut Vec<u8>) -> Result<(), &'static str> {
    // A MicroTime without a fraction is accepted, too.
    let moment = time::parse(text, layout).or_else(|_| time::parse(text, Layout::Seconds));
    let moment = moment.map_err(|_| "Time")?;
    if moment.is_zero() {
        return Ok(());
    }
    let (seconds, nanos) = moment.to_unix();
    let nanos = if layout == Layout::Seconds { 0 } else { nanos / 1000 * 1000 };
    wire::put_int(out, 1, seconds);
    wire::put_int(out, 2, nanos);
    Ok(())
}
