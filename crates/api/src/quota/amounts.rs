//! Lists of amounts by name: addition, comparison, formatting.

use std::collections::{BTreeMap, BTreeSet};

use knarr_apimachinery::quantity::{Format, Quantity};
use serde_json::Value;

/// Amounts by resource name, as in `spec.hard`.
pub type Amounts = BTreeMap<String, Quantity>;

pub fn count(n: i64) -> Quantity {
    Quantity::new(n, Format::DecimalSI)
}

/// Reads amounts from JSON; skips values that are not quantities.
pub fn list(value: &Value) -> Amounts {
    let amount = |value: &Value| match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    };
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), amount(value)?))).collect()
}

pub fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match sum.get_mut(name) {
            Some(own) => own.add(amount),
            None => drop(sum.insert(name.clone(), amount.clone())),
        }
    }
}

/// Raises each amount to the other one if that is greater.
pub fn raise(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        if sum.get(name).is_none_or(|own| own < amount) {
            sum.insert(name.clone(), amount.clone());
        }
    }
}

/// Returns `a - b`; negative results become zero.
pub fn subtract(a: &Amounts, b: &Amounts) -> Amounts {
    let less = |(name, amount): (&String, &Quantity)| {
        let mut rest = amount.clone();
        if let Some(other) = b.get(name) {
            rest.sub(other);
        }
        (name.clone(), if rest.signum() > 0 { rest } else { count(0) })
    };
    a.iter().map(less).collect()
}

/// Returns the amounts of these names only.
pub fn mask(amounts: &Amounts, names: &BTreeSet<String>) -> Amounts {
    amounts.iter().filter(|(n, _)| names.contains(*n)).map(|(n, a)| (n.clone(), a.clone())).collect()
}

pub fn without_zeros(amounts: &Amounts) -> Amounts {
    amounts.iter().filter(|(_, a)| !a.is_zero()).map(|(n, a)| (n.clone(), a.clone())).collect()
}

/// Returns the names whose amounts exceed `limits`.
pub fn at_most(amounts: &Amounts, limits: &Amounts) -> BTreeSet<String> {
    let beyond = |(name, limit): &(&String, &Quantity)| amounts.get(*name).is_some_and(|a| a > *limit);
    limits.iter().filter(beyond).map(|(n, _)| n.clone()).collect()
}

/// Returns `cpu=1,memory=2Gi`, as messages show it.
pub fn shown(amounts: &Amounts) -> String {
    let parts: Vec<String> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    parts.join(",")
}
