//! Capacity of devices that several claims share: the amount a request consumes, and whether that much is left.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::quantity::Quantity;
use thiserror::Error;

/// Amounts by the name of the capacity.
pub type Amounts = BTreeMap<String, Quantity>;
type Requests<'a> = Option<&'a BTreeMap<String, ApiQuantity>>;
type Capacity = BTreeMap<String, DeviceCapacity>;

const NANOS_PER_MILLI: i128 = 1_000_000;

/// An invalid request or device, which ends the search.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CapacityError {
    #[error(
        "capacity {0:?}: capacity request cannot be represented in the device's range arithmetic: request {1} exceeds \
         MaxInt64"
    )]
    TooLarge(String, String),
    #[error(
        "capacity {0:?}: capacity request cannot be represented in the device's range arithmetic: request {1} is not \
         a representable milli value"
    )]
    NotMilli(String, String),
    #[error(
        "capacity {0:?}: capacity request cannot be represented in the device's range arithmetic: rounding request \
         {1} up to the next step passes {2}"
    )]
    RoundedTooLarge(String, String, &'static str),
    #[error("capacity {0:?}: capacity value is negative")]
    Negative(String),
    #[error("capacity {0:?}: {1:?} is no quantity")]
    Unreadable(String, String),
}

fn read(name: &str, quantity: &ApiQuantity) -> Result<Quantity, CapacityError> {
    Quantity::parse(&quantity.0).map_err(|_| CapacityError::Unreadable(name.to_owned(), quantity.0.clone()))
}

/// Returns how much the request consumes of each of the device's capacities; `None` when it requests a capacity that
/// the device does not have.
pub fn taken(requests: Requests, capacity: &Capacity) -> Result<Option<Amounts>, CapacityError> {
    if requests.is_some_and(|r| r.keys().any(|name| !capacity.contains_key(name))) {
        return Ok(None);
    }
    let mut amounts = Amounts::new();
    for (name, has) in capacity {
        let asked = requests.and_then(|r| r.get(name)).map(|q| read(name, q)).transpose()?;
        let amount = one(name, asked, has)?;
        if amount.signum() < 0 {
            return Err(CapacityError::Negative(name.clone()));
        }
        amounts.insert(name.clone(), amount);
    }
    Ok(Some(amounts))
}

fn one(name: &str, asked: Option<Quantity>, has: &DeviceCapacity) -> Result<Quantity, CapacityError> {
    let policy = has.request_policy.as_ref();
    let Some(asked) = asked else {
        return read(name, policy.and_then(|p| p.default.as_ref()).unwrap_or(&has.value));
    };
    let Some(policy) = policy else { return Ok(asked) };
    if let Some(range) = &policy.valid_range {
        return round_up(name, asked, range);
    }
    for valid in policy.valid_values.iter().flatten() {
        let valid = read(name, valid)?;
        if asked <= valid {
            return Ok(valid);
        }
    }
    Ok(asked)
}

/// A parsed range, with the unit in which steps are counted: thousandths if all of its values are multiples of them.
struct Range {
    min: Quantity,
    max: Option<Quantity>,
    step: Option<Quantity>,
    milli: bool,
}

impl Range {
    fn read(name: &str, range: &CapacityRequestPolicyRange) -> Result<Self, CapacityError> {
        let optional = |q: &Option<ApiQuantity>| q.as_ref().map(|q| read(name, q)).transpose();
        let (min, max, step) = (read(name, &range.min)?, optional(&range.max)?, optional(&range.step)?);
        let all = [Some(&min), max.as_ref(), step.as_ref()];
        let milli = all.into_iter().flatten().all(|q| milli(q).is_some())
            && step.as_ref().is_none_or(|s| s.nanos() >= NANOS_PER_MILLI);
        Ok(Self { min, max, step, milli })
    }

    fn count(&self, quantity: &Quantity) -> i64 {
        if self.milli { quantity.milli_value() } else { quantity.value() }
    }
}

/// The quantity in thousandths, if that is exact.
fn milli(quantity: &Quantity) -> Option<i64> {
    let exact = quantity.nanos() % NANOS_PER_MILLI == 0;
    i64::try_from(quantity.nanos() / NANOS_PER_MILLI).ok().filter(|_| exact)
}

fn round_up(
    name: &str,
    asked: Quantity,
    range: &CapacityRequestPolicyRange,
) -> Result<Quantity, CapacityError> {
    let range = Range::read(name, range)?;
    if asked < range.min {
        return Ok(range.min);
    }
    let Some(step_by) = &range.step else { return Ok(asked) };
    let name_and_request = || (name.to_owned(), asked.to_string());
    let wanted = if range.milli {
        let (name, asked_for) = name_and_request();
        milli(&asked).ok_or(CapacityError::NotMilli(name, asked_for))?
    } else {
        if asked > Quantity::new(i64::MAX, asked.format()) {
            let (name, asked_for) = name_and_request();
            return Err(CapacityError::TooLarge(name, asked_for));
        }
        asked.value()
    };
    let (min, step) = (range.count(&range.min), range.count(step_by));
    if step <= 0 {
        return Ok(asked);
    }
    let steps = (i128::from(wanted) - i128::from(min) + i128::from(step) - 1).div_euclid(i128::from(step));
    let Ok(rounded) = i64::try_from(i128::from(min) + steps * i128::from(step)) else {
        let (name, asked_for) = name_and_request();
        let limit = if range.milli { "the milli-value range" } else { "MaxInt64" };
        return Err(CapacityError::RoundedTooLarge(name, asked_for, limit));
    };
    Ok(match range.milli {
        true => Quantity::from_milli(rounded, step_by.format()),
        false => Quantity::new(rounded, step_by.format()),
    })
}

/// Returns whether the device's policies allow these amounts, and enough is left beside what is in use.
pub fn is_there(
    amounts: &Amounts,
    capacity: &Capacity,
    in_use: Option<&Amounts>,
    being_taken: Option<&Amounts>,
) -> Result<bool, CapacityError> {
    for (name, has) in capacity {
        let Some(amount) = amounts.get(name) else { continue };
        if let Some(policy) = &has.request_policy
            && violates(name, amount, policy)?
        {
            return Ok(false);
        }
        let mut sum = amount.clone();
        for more in [in_use, being_taken].into_iter().flatten().filter_map(|a| a.get(name)) {
            sum.add(more);
        }
        if sum > read(name, &has.value)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn violates(name: &str, amount: &Quantity, policy: &CapacityRequestPolicy) -> Result<bool, CapacityError> {
    if let Some(default) = &policy.default
        && read(name, default)? == *amount
    {
        return Ok(false);
    }
    if let Some(range) = &policy.valid_range {
        let range = Range::read(name, range)?;
        if range.max.as_ref().is_some_and(|max| amount > max) {
            return Ok(true);
        }
        let Some(step) = &range.step else { return Ok(false) };
        if range.milli && milli(amount).is_none() {
            return Ok(true);
        }
        let (min, step) = (range.count(&range.min), range.count(step));
        return Ok(step > 0 && (i128::from(range.count(amount)) - i128::from(min)) % i128::from(step) != 0);
    }
    let valid = policy.valid_values.as_deref().unwrap_or_default();
    for value in valid {
        if read(name, value)? == *amount {
            return Ok(false);
        }
    }
    Ok(!valid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn capacity(policy: serde_json::Value) -> Capacity {
        serde_json::from_value(json!({"memory": {"value": "40Gi", "requestPolicy": policy}})).unwrap()
    }

    #[test]
    fn requests_are_rounded_to_what_the_policy_allows() {
        let range = json!({"default": "1Gi", "validRange": {"min": "2Gi", "max": "8Gi", "step": "2Gi"}});
        let values = json!({"default": "1Gi", "validValues": ["1Gi", "4Gi"]});
        let fraction = json!({"default": "500m", "validRange": {"min": "500m", "step": "250m"}});
        for (policy, asked, expected, allowed) in [
            (json!(null), None, "40Gi", true),
            (json!(null), Some("3Gi"), "3Gi", true),
            (json!(null), Some("41Gi"), "41Gi", false),
            (range.clone(), None, "1Gi", true),
            (range.clone(), Some("1Gi"), "2Gi", true),
            (range.clone(), Some("3Gi"), "4Gi", true),
            (range.clone(), Some("9Gi"), "10Gi", false),
            (values.clone(), Some("2Gi"), "4Gi", true),
            (values, Some("5Gi"), "5Gi", false),
            (fraction.clone(), Some("600m"), "750m", true),
            (fraction, Some("100m"), "500m", true),
        ] {
            let capacity = capacity(policy);
            let requests = asked.map(|a| BTreeMap::from([("memory".to_owned(), ApiQuantity(a.to_owned()))]));
            let amounts = taken(requests.as_ref(), &capacity).unwrap().unwrap();
            assert_eq!(amounts["memory"], Quantity::parse(expected).unwrap(), "{asked:?}");
            assert_eq!(is_there(&amounts, &capacity, None, None), Ok(allowed), "{asked:?}");
        }
    }

    #[test]
    fn what_is_in_use_counts() {
        let capacity = capacity(json!(null));
        let amount = |text: &str| Amounts::from([("memory".to_owned(), Quantity::parse(text).unwrap())]);
        for (used, being_taken, there) in [("10Gi", "10Gi", true), ("10Gi", "11Gi", false), ("0", "0", true)]
        {
            let there_is =
                is_there(&amount("20Gi"), &capacity, Some(&amount(used)), Some(&amount(being_taken)));
            assert_eq!(there_is, Ok(there));
        }
    }

    #[test]
    fn what_cannot_be_judged() {
        let capacity = capacity(json!({"default": "1", "validRange": {"min": "1", "step": "3"}}));
        let ask = |name: &str, amount: &str| BTreeMap::from([(name.into(), ApiQuantity(amount.into()))]);
        assert_eq!(taken(Some(&ask("cores", "1")), &capacity), Ok(None), "the device has no such capacity");
        assert!(matches!(taken(Some(&ask("memory", "x")), &capacity), Err(CapacityError::Unreadable(..))));
        let negative: Capacity = serde_json::from_value(json!({"memory": {"value": "-1"}})).unwrap();
        assert!(matches!(taken(None, &negative), Err(CapacityError::Negative(_))));
        let huge = taken(Some(&ask("memory", "9223372036854775807")), &capacity);
        assert!(matches!(huge, Err(CapacityError::NotMilli(..))), "{huge:?}");
    }
}
