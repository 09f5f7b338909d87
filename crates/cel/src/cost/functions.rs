//! Cost estimates of library functions.

use crate::ast::{Kind, Literal};
use crate::cost::actual::{LIST, OBJECT};
use crate::cost::estimate::{CallEstimate, CostRange, Operand, SizeRange};
use crate::cost::{CHECK, PATTERN, STRING};
use crate::types::Type;

const ONE: CostRange = CostRange { min: 1, max: 1 };

fn only(cost: CostRange) -> Option<CallEstimate> {
    Some(CallEstimate { cost, size: None })
}

fn sized(cost: CostRange, size: SizeRange) -> Option<CallEstimate> {
    Some(CallEstimate { cost, size: Some(size) })
}

/// Returns the value of a literal count.
fn literal(operand: Option<&Operand<'_>>, otherwise: u64) -> u64 {
    match operand.map(|o| &o.expr.kind) {
        Some(Kind::Literal(Literal::Int(i))) => u64::try_from(*i).unwrap_or(0),
        _ => otherwise,
    }
}

/// Estimates the creation of a list of this size.
fn list(factor: f64, size: SizeRange) -> Option<CallEstimate> {
    sized(size.scaled(factor).plus(ONE).plus(CostRange::fixed(LIST)), size)
}

/// Estimates functions of CEL's extensions.
pub fn extension(overload: &str, target: Option<&Operand<'_>>, args: &[Operand<'_>]) -> Option<CallEstimate> {
    let size = |n: usize| args.get(n).map(Operand::size_or_unknown);
    let own = target.map(Operand::size_or_unknown);
    match overload {
        "list_sets_contains_list" | "list_sets_intersects_list" => {
            only(size(0)?.times(size(1)?).scaled(1.0).plus(ONE))
        }
        "list_sets_equivalent_list" => only(size(0)?.times(size(1)?).scaled(2.0).plus(ONE)),
        "list_slice" => {
            let (start, end) = (literal(args.first(), 0), literal(args.get(1), own?.max));
            list(1.0, SizeRange::fixed(end.wrapping_sub(start)))
        }
        "lists_range" => list(1.0, SizeRange::fixed(literal(args.first(), u64::MAX))),
        "list_reverse" => list(1.0, own?),
        "list_flatten" => list(1.0, own?),
        "list_flatten_int" => list(literal(args.first(), u64::MAX) as f64, own?),
        "list_distinct" => list(2.0, own?.times(own?)),
        o if o.ends_with("_sortByAssociatedKeys") => list(sort_factor(o), size(0)?.times(size(0)?)),
        o if o.starts_with("list_") && o.ends_with("_sort") => list(sort_factor(o), own?.times(own?)),
        _ => None,
    }
}

fn sort_factor(overload: &str) -> f64 {
    if overload.starts_with("list_string") || overload.starts_with("list_bytes") { 2.0 + STRING } else { 2.0 }
}

/// Estimates functions of Kubernetes' libraries, by name.
pub fn kubernetes(
    function: &str,
    overload: &str,
    target: Option<&Operand<'_>>,
    args: &[Operand<'_>],
) -> Option<CallEstimate> {
    let size = |n: usize| args.get(n).map(Operand::size_or_unknown);
    match function {
        "check" => only(CostRange::fixed(CHECK)),
        "serviceAccount"
        | "path"
        | "group"
        | "resource"
        | "subresource"
        | "namespace"
        | "name"
        | "allowed"
        | "reason"
        | "error"
        | "errored"
        | "masked"
        | "prefixLength"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast"
        | "format.named"
        | "sign"
        | "asInteger"
        | "isInteger"
        | "asApproximateFloat"
        | "isGreaterThan"
        | "isLessThan"
        | "compareTo"
        | "add"
        | "sub"
        | "major"
        | "minor"
        | "patch"
        | "getScheme"
        | "getHostname"
        | "getHost"
        | "getPort"
        | "getEscapedPath"
        | "getQuery" => only(ONE),
        "fieldSelector" | "labelSelector" => {
            let length = size(0)?;
            let requirements = length.scaled(0.5).scaled((LIST + OBJECT) as f64);
            only(CostRange::fixed(LIST).plus(length.scaled(STRING)).plus(requirements))
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => {
            elements(function, target?)
        }
        "url" | "jsonpatch.escapeKey" => sized(size(0)?.scaled(STRING), size(0)?),
        "lowerAscii" | "upperAscii" | "substring" | "trim" => {
            let own = target?.size_or_unknown();
            sized(own.scaled(STRING), own)
        }
        "replace" => replace(target?.size_or_unknown(), size(0)?, size(1)?),
        "split" => {
            let own = target?.size_or_unknown();
            let max = match args.get(1).map(|a| &a.expr.kind) {
                Some(Kind::Literal(Literal::Int(i))) => *i as u64,
                _ => own.max,
            };
            sized(own.scaled(2.0 * STRING), SizeRange { min: 0, max })
        }
        "join" => join(target?, size(0)),
        "find" | "findAll" => {
            let own = target?.size_or_unknown();
            let cost = own.plus(ONE).scaled(STRING).times(size(0)?.scaled(PATTERN));
            sized(cost, SizeRange { min: 0, max: own.max })
        }
        "ip" if overload == "cidr_ip" => only(ONE),
        "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            only(size(0)?.scaled(STRING))
        }
        "ip.isCanonical" => only(size(0)?.scaled(2.0 * STRING)),
        "containsIP" | "containsCIDR" => network(function, overload, size(0)?),
        "validate" => {
            const LONGEST_PATTERN: f64 = 128.0;
            only(size(0)?.scaled(STRING).scaled(LONGEST_PATTERN * PATTERN))
        }
        "_==_" => equality(args),
        _ => None,
    }
}

fn elements(function: &str, target: &Operand<'_>) -> Option<CallEstimate> {
    let own = target.size_or_unknown();
    match &target.t {
        Type::List(element) => {
            let mut each = ONE;
            if matches!(**element, Type::String | Type::Bytes) {
                let size = target.element_size.unwrap_or(crate::cost::estimate::UNKNOWN);
                each = each.plus(size.scaled(STRING));
            }
            only(own.times(each))
        }
        _ if function == "includes" => only(own),
        _ => only(own.scaled(STRING)),
    }
}

fn replace(own: SizeRange, old: SizeRange, new: SizeRange) -> Option<CallEstimate> {
    let (mut count, mut kept) = (SizeRange::fixed(0), SizeRange::fixed(0));
    let parts = |n: u64, by: u64| (n as f64 / by as f64).ceil() as u64;
    if old.min == 0 {
        count.max = own.max.saturating_add(1);
        kept.max = own.max;
    } else if new.max <= old.min {
        kept.max = own.max;
    } else {
        count.max = parts(own.max, old.min);
    }
    if old.max == 0 {
        count.min = own.min.saturating_add(1);
        kept.min = own.min;
    } else if old.max <= new.min {
        kept.min = own.min;
    } else {
        count.min = parts(own.min, old.max);
    }
    sized(own.scaled(2.0 * STRING), count.times(new).plus(kept))
}

fn join(target: &Operand<'_>, separator: Option<SizeRange>) -> Option<CallEstimate> {
    let own = target.size_or_unknown();
    let mut size = match &target.t {
        Type::List(_) => own.times(target.element_size.unwrap_or(crate::cost::estimate::UNKNOWN)),
        _ => SizeRange::fixed(0),
    };
    if let Some(separator) = separator {
        let gaps = SizeRange { min: own.min.saturating_sub(1), max: own.max.saturating_sub(1) };
        size = size.plus(separator.times(gaps));
    }
    sized(size.scaled(STRING), size)
}

fn network(function: &str, overload: &str, other: SizeRange) -> Option<CallEstimate> {
    let address = SizeRange { min: 4, max: 16 };
    let mut cost = address.plus(address).scaled(STRING);
    if function == "containsCIDR" {
        cost = cost.plus(address.scaled(STRING)).plus(ONE);
    }
    if matches!(overload, "cidr_contains_ip_string" | "cidr_contains_cidr_string") {
        cost = cost.plus(other.scaled(STRING));
    }
    only(cost)
}

fn equality(args: &[Operand<'_>]) -> Option<CallEstimate> {
    let [a, b] = args else { return None };
    let Type::Opaque(name) = &a.t else { return None };
    if a.t != b.t {
        return None;
    }
    match &**name {
        "kubernetes.NamedFormat" => only(CostRange { min: 1, max: 64 }.scaled(STRING)),
        "kubernetes.URL" => {
            let max = b.size.map_or(1, |s| s.max);
            only(CostRange { min: 1, max }.scaled(STRING))
        }
        _ => only(ONE),
    }
}
