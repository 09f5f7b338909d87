//! The constraints of a claim: attributes that its devices must share, or must differ in.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceConstraint};

/// A constraint, with the values of the devices chosen so far. Once it is violated, further devices cannot fix it.
pub struct Constraint<'a> {
    /// The requests that the constraint applies to; all if empty.
    requests: BTreeSet<&'a str>,
    attribute: &'a str,
    distinct: bool,
    values: Vec<&'a DeviceAttribute>,
}

impl<'a> Constraint<'a> {
    /// Returns `None` for unknown types of constraints.
    pub fn of(constraint: &'a DeviceConstraint) -> Option<Self> {
        let (attribute, distinct) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (attribute, false),
            (None, Some(attribute)) => (attribute, true),
            (None, None) => return None,
        };
        let requests = constraint.requests.iter().flatten().map(String::as_str).collect();
        Some(Self { requests, attribute, distinct, values: Vec::new() })
    }

    fn is_about(&self, request: &str, sub_request: Option<&str>) -> bool {
        self.requests.is_empty()
            || self.requests.contains(request)
            || sub_request.is_some_and(|sub| self.requests.contains(format!("{request}/{sub}").as_str()))
    }

    /// Adds a device if it satisfies the constraint together with the devices before.
    pub fn add(&mut self, request: &str, sub: Option<&str>, driver: &str, device: &'a Device) -> bool {
        if !self.is_about(request, sub) {
            return true;
        }
        let Some(value) = self.lookup(driver, device) else { return false };
        let fits = match (self.distinct, self.values.first()) {
            (_, None) => true,
            (false, Some(first)) => same(first, value) == Some(true),
            (true, _) => self.values.iter().all(|other| same(other, value) == Some(false)),
        };
        if fits {
            self.values.push(value);
        }
        fits
    }

    /// Removes the device that was added last.
    pub fn remove(&mut self, request: &str, sub: Option<&str>) {
        if self.is_about(request, sub) {
            self.values.pop();
        }
    }

    fn lookup(&self, driver: &str, device: &'a Device) -> Option<&'a DeviceAttribute> {
        let attributes = device.attributes.as_ref()?;
        let short = || {
            let (domain, id) = self.attribute.split_once('/')?;
            attributes.get(id).filter(|_| domain == driver)
        };
        attributes.get(self.attribute).or_else(short)
    }
}

/// Returns whether two values are equal; `None` if one has a type that cannot be compared.
fn same(known: &DeviceAttribute, new: &DeviceAttribute) -> Option<bool> {
    match new {
        DeviceAttribute { string: Some(value), .. } => Some(known.string.as_ref() == Some(value)),
        DeviceAttribute { int: Some(value), .. } => Some(known.int == Some(*value)),
        DeviceAttribute { bool: Some(value), .. } => Some(known.bool == Some(*value)),
        DeviceAttribute { version: Some(value), .. } => Some(known.version.as_ref() == Some(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn device(attribute: &str, value: serde_json::Value) -> Device {
        serde_json::from_value(json!({"name": "x", "attributes": {attribute: value}})).unwrap()
    }

    #[test]
    fn devices_match_or_differ() {
        let numa = |n: i64| device("numa", json!({"int": n}));
        let text = |t: &str| device("numa", json!({"string": t}));
        for (kind, requests, devices, expected) in [
            ("matchAttribute", vec![], vec![numa(1), numa(1)], vec![true, true]),
            ("matchAttribute", vec![], vec![numa(1), numa(2), numa(1)], vec![true, false, true]),
            ("matchAttribute", vec![], vec![numa(1), text("1")], vec![true, false]),
            ("matchAttribute", vec![], vec![device("d/numa", json!({"int": 1})), numa(1)], vec![true, true]),
            ("matchAttribute", vec![], vec![device("e/numa", json!({"int": 1}))], vec![false]),
            ("matchAttribute", vec!["b"], vec![numa(1), numa(2)], vec![true, true]),
            ("matchAttribute", vec!["a"], vec![numa(1), numa(2)], vec![true, false]),
            ("matchAttribute", vec!["a/s"], vec![numa(1), numa(2)], vec![true, false]),
            ("distinctAttribute", vec![], vec![numa(1), numa(2), numa(1)], vec![true, true, false]),
            ("distinctAttribute", vec![], vec![numa(1), text("1")], vec![true, true]),
        ] {
            let of: DeviceConstraint =
                serde_json::from_value(json!({kind: "d/numa", "requests": requests})).unwrap();
            let mut constraint = Constraint::of(&of).unwrap();
            let found: Vec<_> = devices.iter().map(|d| constraint.add("a", Some("s"), "d", d)).collect();
            assert_eq!(found, expected, "{of:?}");
        }
        assert!(Constraint::of(&DeviceConstraint::default()).is_none());
    }

    #[test]
    fn what_is_taken_back_does_not_count() {
        let of: DeviceConstraint = serde_json::from_value(json!({"matchAttribute": "d/numa"})).unwrap();
        let mut constraint = Constraint::of(&of).unwrap();
        let (one, two) = (device("numa", json!({"int": 1})), device("numa", json!({"int": 2})));
        assert!(constraint.add("a", None, "d", &one));
        constraint.remove("a", None);
        assert!(constraint.add("a", None, "d", &two));
    }
}
