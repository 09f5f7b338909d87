//! The ServiceCIDR `kubernetes`: the range that the server was started with.

use k8s_openapi::api::networking::v1::ServiceCIDR;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use knarr_registry::Registry;
use knarr_registry::allocators::ranges::{DEFAULT, Range};
use knarr_registry::managed::Change;
use knarr_registry::metadata;
use knarr_registry::options::WriteParams;
use knarr_registry::own::ensure;
use knarr_registry::target::Target;
use knarr_registry::update::modify;
use knarr_wire::request::Request;

const MANAGER: &str = "kubernetes-service-cidr-controller";
const MESSAGE: &str = "Kubernetes default Service CIDR is ready";

/// Returns the server's own range, such as `10.43.0.0/16`.
fn cidr(registry: &Registry) -> String {
    let (network, length) = registry.settings.service_cidr;
    format!("{}/{length}", Range::new(network, length).address(0))
}

/// Creates the object, and sets its Ready condition unless it has one.
pub async fn reconcile(registry: &Registry) -> Result<(), StatusError> {
    let Some(served) = registry.table.find("networking.k8s.io", "v1", "servicecidrs") else { return Ok(()) };
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": DEFAULT}, "spec": {"cidrs": [cidr(registry)]},
    });
    let request = Request::own();
    ensure(registry, &request, &served, object).await?;
    let own = [Value::from(cidr(registry))];
    let now = metadata::rfc3339(registry.clock.now());
    let change = |old: &Value| {
        let mut new = old.clone();
        if needs_condition(old, &own) {
            new["status"]["conditions"] = json!([{
                "type": "Ready", "status": "True", "reason": "", "message": MESSAGE, "lastTransitionTime": now,
            }]);
        }
        Ok(new)
    };
    let target = Target { namespace: "", name: DEFAULT, subresource: Some("status") };
    let mut params = WriteParams::own();
    params.field_manager = MANAGER.into();
    modify(registry, &request, &served, &params, target, Change::Update, &change).await.map(|_| ())
}

/// Returns whether the condition must be set. Objects that are being deleted, have another range, or have the
/// condition already are left alone.
fn needs_condition(cidr: &Value, own: &[Value]) -> bool {
    let conditions = cidr["status"]["conditions"].as_array();
    let known = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    !metadata::is_deleting(cidr)
        && cidr["spec"]["cidrs"].as_array().is_some_and(|c| c == own)
        && known.is_none_or(|c| c["status"] == "Unknown")
}

/// Returns the event reason and message for an existing object with another range.
pub fn differs(found: &ServiceCIDR, registry: &Registry) -> Option<(&'static str, String)> {
    let cidrs = found.spec.as_ref().and_then(|s| s.cidrs.clone()).unwrap_or_default();
    let own = cidr(registry);
    (cidrs != [own.as_str()] && found.metadata.deletion_timestamp.is_none()).then(|| {
        let why = format!(
            "The default ServiceCIDR [{}] does not match the controller flag configurations [{own}]",
            cidrs.join(" ")
        );
        ("KubernetesDefaultServiceCIDRInconsistent", why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_condition_that_nobody_set_is_set() {
        let own = [Value::from("10.43.0.0/16")];
        let object = |cidr: &str, status: Option<&str>| {
            let conditions: Vec<Value> =
                status.into_iter().map(|s| json!({"type": "Ready", "status": s})).collect();
            json!({"spec": {"cidrs": [cidr]}, "status": {"conditions": conditions}})
        };
        assert!(needs_condition(&object("10.43.0.0/16", None), &own));
        assert!(needs_condition(&object("10.43.0.0/16", Some("Unknown")), &own));
        assert!(!needs_condition(&object("10.43.0.0/16", Some("True")), &own));
        assert!(!needs_condition(&object("10.43.0.0/16", Some("False")), &own));
        assert!(!needs_condition(&object("10.96.0.0/12", None), &own));
    }
}
