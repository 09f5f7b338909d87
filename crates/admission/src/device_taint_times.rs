//! Sets `timeAdded` of device taints to the current time if it is absent.

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct DeviceTaintTimes;

#[async_trait]
impl Plugin for DeviceTaintTimes {
    fn name(&self) -> &'static str {
        "DeviceTaintTimes"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        const GROUP: &str = "resource.k8s.io";
        let now = || json!(Time(context.registry.clock.now()));
        if attributes.is(GROUP, "devicetaintrules") {
            let old = attributes.old.map(|old| &old["spec"]["taint"]);
            if let Some(taint) = attributes.object.pointer_mut("/spec/taint") {
                of_rule(taint, old, &now());
            }
        } else if attributes.is(GROUP, "resourceslices") {
            let devices = attributes.object.pointer_mut("/spec/devices").and_then(Value::as_array_mut);
            let taints =
                devices.into_iter().flatten().filter_map(|device| device.get_mut("taints")?.as_array_mut());
            let now = now();
            taints.flatten().for_each(|taint| since(taint, &now));
        }
        Ok(())
    }
}

fn since(taint: &mut Value, now: &Value) {
    if taint.is_object() && taint["timeAdded"].is_null() {
        taint["timeAdded"] = now.clone();
    }
}

/// Resets the time if the effect changed, unless the time was changed with it.
fn of_rule(taint: &mut Value, old: Option<&Value>, now: &Value) {
    since(taint, now);
    let changed = |old: &Value| old["effect"] != taint["effect"] && old["timeAdded"] == taint["timeAdded"];
    if old.is_some_and(changed) {
        taint["timeAdded"] = now.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_count_from_when_their_effect_began() {
        let taint = |effect: &str, time: Value| json!({"key": "k", "effect": effect, "timeAdded": time});
        let (now, before, other) = (json!("now"), json!("before"), json!("other"));
        for (old, mut new, expected) in [
            (None, taint("None", Value::Null), &now),
            (None, taint("None", other.clone()), &other),
            (Some(taint("None", before.clone())), taint("None", before.clone()), &before),
            (Some(taint("None", before.clone())), taint("NoExecute", before.clone()), &now),
            (Some(taint("None", before.clone())), taint("NoExecute", other.clone()), &other),
        ] {
            of_rule(&mut new, old.as_ref(), &now);
            assert_eq!(new["timeAdded"], *expected, "{old:?}");
        }
    }
}
