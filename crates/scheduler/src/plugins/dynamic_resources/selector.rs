//! Device selectors: compiles CEL expressions once, and evaluates them for a device.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use knarr_api::devices::expressions::{COST_MAX, declarations};
use knarr_apimachinery::quantity::Quantity;
use knarr_cel::library::semver::Semver;
use knarr_cel::{Activation, Budget, Key, Map, Program, Str, Value, compile, library};

/// The number of programs kept; when it is reached, all are dropped.
const KEPT: usize = 256;

/// Compiled expressions, or the errors of those that do not compile.
#[derive(Default)]
pub struct Programs(Mutex<HashMap<String, Arc<Result<Program, String>>>>);

impl Programs {
    /// Returns the compiled expression, from the cache if possible.
    pub fn get(&self, source: &str) -> Arc<Result<Program, String>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = kept.get(source) {
            return Arc::clone(program);
        }
        let program = Arc::new(compile(source, &declarations().stored(), &[]).map_err(|e| e.to_string()));
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(source.to_owned(), Arc::clone(&program));
        program
    }
}

/// Returns the value of the variable `device`. Attributes and capacities without a domain belong to the driver's
/// domain.
pub fn device_value(driver: &str, device: &Device) -> Result<Value<'static>, String> {
    let key = |text: &str| Key::String(Str::Shared(text.into()));
    let mut attributes: BTreeMap<&str, BTreeMap<Key<'static>, Value<'static>>> = BTreeMap::new();
    for (name, attribute) in device.attributes.iter().flatten() {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        let value = attribute_value(attribute).map_err(|why| format!("attribute {name}: {why}"))?;
        attributes.entry(domain).or_default().insert(key(id), value);
    }
    let mut capacity: BTreeMap<&str, BTreeMap<Key<'static>, Value<'static>>> = BTreeMap::new();
    for (name, has) in device.capacity.iter().flatten() {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        let value = Quantity::parse(&has.value.0).map_err(|why| format!("capacity {name}: {why}"))?;
        capacity.entry(domain).or_default().insert(key(id), library::quantity::of(value));
    }
    let domains = |of: BTreeMap<&str, BTreeMap<Key<'static>, Value<'static>>>| {
        Value::Map(Map::open(of.into_iter().map(|(domain, ids)| (key(domain), Value::map(ids))).collect()))
    };
    let shared = device.allow_multiple_allocations.unwrap_or(false);
    Ok(Value::map(BTreeMap::from([
        (key("driver"), Value::string(driver)),
        (key("allowMultipleAllocations"), Value::Bool(shared)),
        (key("attributes"), domains(attributes)),
        (key("capacity"), domains(capacity)),
    ])))
}

fn attribute_value(attribute: &DeviceAttribute) -> Result<Value<'static>, String> {
    let version = |text: &str| {
        Semver::parse(text).map(library::semver::of).map_err(|why| format!("parse semantic version: {why}"))
    };
    if let Some(ints) = &attribute.ints {
        return Ok(Value::list(ints.iter().map(|n| Value::Int(*n)).collect()));
    }
    if let Some(bools) = &attribute.bools {
        return Ok(Value::list(bools.iter().map(|b| Value::Bool(*b)).collect()));
    }
    if let Some(strings) = &attribute.strings {
        return Ok(Value::strings(strings.iter().cloned()));
    }
    if let Some(versions) = &attribute.versions {
        return Ok(Value::list(versions.iter().map(|v| version(v)).collect::<Result<_, _>>()?));
    }
    match attribute {
        DeviceAttribute { int: Some(int), .. } => Ok(Value::Int(*int)),
        DeviceAttribute { bool: Some(bool), .. } => Ok(Value::Bool(*bool)),
        DeviceAttribute { string: Some(string), .. } => Ok(Value::string(string.as_str())),
        DeviceAttribute { version: Some(text), .. } => version(text),
        _ => Err("unsupported attribute value".to_owned()),
    }
}

/// Returns whether the expression is true for the device.
pub fn matches(
    program: &Program,
    device: &Value<'static>,
    interrupted: &dyn Fn() -> bool,
) -> Result<bool, String> {
    let mut budget = Budget::new(COST_MAX).per_call(COST_MAX).interruptible(interrupted);
    let activation = Activation::new().with("device", device.clone());
    match program.evaluate(&activation, &mut budget) {
        Ok(value) => value.as_bool().ok_or_else(|| {
            format!(
                "CEL result of type {} could not be converted to bool: type conversion error",
                value.type_of()
            )
        }),
        Err(error) => {
            let text = error.to_string();
            let hint = if text.contains("no such key:") {
                ". consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() \
                 for optional fields"
            } else {
                ""
            };
            Err(format!("{text}{hint}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn devices_are_selected_by_what_they_are() {
        let device: Device = serde_json::from_value(json!({
            "name": "gpu-0",
            "allowMultipleAllocations": true,
            "attributes": {"model": {"string": "a100"}, "other.example/numa": {"int": 1},
                "healthy": {"bool": true}, "firmware": {"version": "1.10.0"}},
            "capacity": {"memory": {"value": "40Gi"}}}))
        .unwrap();
        let programs = Programs::default();
        for (source, expected) in [
            ("device.driver == 'gpu.example'", Ok(true)),
            ("device.attributes['gpu.example'].model == 'a100'", Ok(true)),
            ("device.attributes['other.example'].numa == 2", Ok(false)),
            ("device.attributes['gpu.example'].healthy && device.allowMultipleAllocations", Ok(true)),
            ("device.attributes['gpu.example'].firmware.isGreaterThan(semver('1.9.0'))", Ok(true)),
            ("device.capacity['gpu.example'].memory.compareTo(quantity('40Gi')) >= 0", Ok(true)),
            ("has(device.attributes['nobody.example'].model)", Ok(false)),
            ("'nobody.example' in device.attributes", Ok(false)),
            ("'gpu.example' in device.attributes", Ok(true)),
            ("device.attributes['nobody.example'].model == 'x'", Err("no such key: model. consider using")),
        ] {
            let program = programs.get(source);
            let program = (*program).as_ref().unwrap();
            let found = matches(program, &device_value("gpu.example", &device).unwrap(), &|| false);
            match (found, expected) {
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{source}: {found}"),
                (found, expected) => assert_eq!(found.ok(), expected.ok(), "{source}"),
            }
        }
        assert!(programs.get("device.nope").is_err());
        let broken: Device =
            serde_json::from_value(json!({"name": "x", "attributes": {"v": {"version": "a"}}})).unwrap();
        assert!(device_value("d", &broken).unwrap_err().starts_with("attribute v: parse semantic version"));
    }
}
