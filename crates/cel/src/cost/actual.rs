//! The actual cost of a call.

use crate::cost::{CHECK, PATTERN, STRING};
use crate::opaque::Opaque;
use crate::value::{List, Value};

/// The costs of creating a list, a map and an object.
pub const LIST: u64 = 10;
pub const MAP: u64 = 30;
pub const OBJECT: u64 = 40;

fn times(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// Returns the cost of a call with these arguments and this result. `overload` is set if only one is possible.
pub fn call(function: &str, overload: Option<&str>, args: &[Value<'_>], result: &Value<'_>) -> u64 {
    let size = |n: usize| args.get(n).map_or(1, Value::cost_size);
    if let Some(cost) = overload.and_then(|o| extension(o, args, result)) {
        return cost;
    }
    kubernetes(function, overload, args, result).unwrap_or_else(|| match overload.unwrap_or("") {
        "starts_with_string" | "ends_with_string" => times(size(1), STRING),
        "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => times(size(0), STRING),
        "in_list" => size(1),
        "add_string" | "add_bytes" => times(size(0).saturating_add(size(1)), STRING),
        "matches" | "matches_string" => {
            times(size(0).saturating_add(1), STRING).saturating_mul(times(size(1), PATTERN))
        }
        "contains_string" => times(size(0), STRING).saturating_mul(times(size(1), STRING)),
        o if is_comparison(o) => times(size(0).min(size(1)), STRING),
        _ => 1,
    })
}

fn is_comparison(overload: &str) -> bool {
    matches!(
        overload,
        "equals"
            | "not_equals"
            | "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
    )
}

/// Returns the cost of functions of CEL's extensions.
fn extension(overload: &str, args: &[Value<'_>], result: &Value<'_>) -> Option<u64> {
    let size = |n: usize| args.get(n).map_or(1, Value::cost_size);
    let allocating = |factor: f64, size: u64| Some((size as f64 * factor) as u64 + 1 + LIST);
    match overload {
        "list_sets_contains_list" | "list_sets_intersects_list" => Some(1 + size(0).saturating_mul(size(1))),
        "list_sets_equivalent_list" => Some(1 + size(0).saturating_mul(size(1)).saturating_mul(2)),
        "list_slice" | "lists_range" | "list_reverse" => allocating(1.0, result.cost_size()),
        "list_flatten" => allocating(1.0, size(0)),
        "list_flatten_int" => match args.get(1) {
            Some(Value::Int(depth)) => allocating(*depth as f64, size(0)),
            _ => allocating(1.0, size(0)),
        },
        "list_distinct" => self_compare(args.first()),
        o if o.ends_with("_sortByAssociatedKeys") => self_compare(args.get(1)),
        o if o.starts_with("list_") && o.ends_with("_sort") => self_compare(args.first()),
        _ => None,
    }
}

/// Returns the cost of comparing all elements of a list with each other.
fn self_compare(list: Option<&Value<'_>>) -> Option<u64> {
    let Some(Value::List(list)) = list else { return None };
    let text = matches!(list.get(0), Some(Ok(Value::String(_) | Value::Bytes(_))));
    let factor = if text { 2.0 + STRING } else { 2.0 };
    let size = (list.len() as u64).saturating_mul(list.len() as u64);
    Some((size as f64 * factor) as u64 + 1 + LIST)
}

/// Returns the cost of functions of Kubernetes' libraries, by name.
fn kubernetes(function: &str, overload: Option<&str>, args: &[Value<'_>], result: &Value<'_>) -> Option<u64> {
    let size = |n: usize| args.get(n).map_or(1, |a| a.size().unwrap_or(1));
    Some(match function {
        "check" => CHECK,
        "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name"
        | "allowed" | "reason" | "error" | "errored" => 1,
        "fieldSelector" | "labelSelector" => {
            let requirements = times(times(size(1), 0.5), (LIST + OBJECT) as f64);
            LIST + times(size(1), STRING) + requirements
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
            args.first().map_or(0, |a| traversal(a, &mut 0))
        }
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "jsonpatch.escapeKey" => {
            times(size(0), STRING)
        }
        "replace" | "split" => times(size(0), 2.0 * STRING),
        "join" => times(result.size().unwrap_or(1), 2.0 * STRING),
        "find" | "findAll" => {
            times(size(0).saturating_add(1), STRING).saturating_mul(times(size(1), PATTERN))
        }
        "ip" if overload == Some("cidr_ip") => 1,
        "cidr" | "isIP" | "isCIDR" | "ip" => times(size(0), STRING),
        "ip.isCanonical" => times(size(0), 2.0 * STRING),
        "masked"
        | "prefixLength"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast" => 1,
        "containsIP" => {
            let parse = if overload == Some("cidr_contains_ip_string") { times(size(1), STRING) } else { 0 };
            times(size(0) * 2, STRING) + parse
        }
        "containsCIDR" => {
            let parse =
                if overload == Some("cidr_contains_cidr_string") { times(size(1), STRING) } else { 0 };
            times(size(0) * 2, STRING) + times(size(0), STRING) + 1 + parse
        }
        "quantity" | "isQuantity" | "semver" | "isSemver" => times(size(0), STRING),
        "validate" => match args.first() {
            Some(Value::Opaque(Opaque::Format(format))) => {
                times(size(1) + 1, STRING).saturating_mul(times(format.pattern_size, PATTERN))
            }
            _ => return None,
        },
        "format.named" | "sign" | "asInteger" | "isInteger" | "asApproximateFloat" | "isGreaterThan"
        | "isLessThan" | "compareTo" | "add" | "sub" | "major" | "minor" | "patch" | "getScheme"
        | "getHostname" | "getHost" | "getPort" | "getEscapedPath" | "getQuery" => 1,
        "_==_" if matches!(args.first(), Some(Value::Opaque(_))) => 1,
        _ => return None,
    })
}

/// The maximum number of parts of a value that are visited.
const MOST_PARTS: u64 = 10_000_000;

/// Returns the cost of traversing a value once.
fn traversal(value: &Value<'_>, seen: &mut u64) -> u64 {
    *seen += 1;
    if *seen > MOST_PARTS {
        return MOST_PARTS;
    }
    match value {
        Value::String(s) => (s.len() as f64 * STRING) as u64,
        Value::Bytes(b) => (b.len() as f64 * STRING) as u64,
        Value::List(list) => list_traversal(list, seen),
        Value::Map(_) | Value::Object(_) => crate::ops::keys(value)
            .iter()
            .map(|key| {
                let inner = crate::ops::lookup(value, key).ok().flatten();
                traversal(key, seen).saturating_add(inner.map_or(0, |v| traversal(&v, seen)))
            })
            .fold(0, u64::saturating_add),
        _ => 1,
    }
}

fn list_traversal(list: &List<'_>, seen: &mut u64) -> u64 {
    list.iter().map(|item| item.map_or(1, |v| traversal(&v, seen))).fold(0, u64::saturating_add)
}
