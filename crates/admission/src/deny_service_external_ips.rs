//! DenyServiceExternalIPs: refuses new external IPs of Services.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct DenyServiceExternalIps;

#[async_trait]
impl Plugin for DenyServiceExternalIps {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        if attributes.is("", "services") && adds(&attributes.object, attributes.old) {
            return Err(attributes.forbidden("Use of external IPs is denied by admission control"));
        }
        Ok(())
    }
}

/// Returns whether the update adds addresses.
fn adds(new: &Value, old: Option<&Value>) -> bool {
    let list = |v: &Value| v["spec"]["externalIPs"].as_array().cloned().unwrap_or_default();
    let before = old.map(list).unwrap_or_default();
    list(new).iter().any(|ip| !before.contains(ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_new_ones() {
        let service = |ips: &[&str]| json!({"spec": {"externalIPs": ips}});
        for (new, old, expected) in [
            (service(&[]), None, false),
            (service(&["1.1.1.1"]), None, true),
            (service(&["1.1.1.1"]), Some(service(&["1.1.1.1", "2.2.2.2"])), false),
            (service(&["3.3.3.3"]), Some(service(&["1.1.1.1"])), true),
        ] {
            assert_eq!(adds(&new, old.as_ref()), expected);
        }
    }
}
