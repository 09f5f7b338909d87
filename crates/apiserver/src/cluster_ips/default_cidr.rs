//! The ServiceCIDR `kubernetes`: the range that the server was started with.

use k8s_openapi::api::networking::v1::ServiceCIDR;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::allocators::ranges::{DEFAULT, Range};
use crate::bootstrap::{ensure, own_request, params};
use crate::registry::managed::Change;
use crate::registry::metadata;
use crate::registry::update::{Target, modify};
use crate::server::Inner;

const MANAGER: &str = "kubernetes-service-cidr-controller";
const MESSAGE: &str = "Kubernetes default Service CIDR is ready";

/// The server's own range, `10.43.0.0/16`.
fn cidr(server: &Inner) -> String {
    let (network, length) = server.config.service_cidr;
    format!("{}/{length}", Range::new(network, length).address(0))
}

/// Creates the object, and sets it ready where nobody has said anything yet.
pub async fn reconcile(server: &Inner) -> Result<(), StatusError> {
    let Some(served) = server.table.find("networking.k8s.io", "v1", "servicecidrs") else { return Ok(()) };
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": DEFAULT}, "spec": {"cidrs": [cidr(server)]},
    });
    let request = own_request();
    ensure(server, &request, &served, object).await?;
    let own = [Value::from(cidr(server))];
    let now = metadata::rfc3339(server.clock.now());
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
    let mut params = params();
    params.field_manager = MANAGER.into();
    modify(server, &request, &served, &params, target, Change::Update, &change).await.map(|_| ())
}

/// An object that is leaving, of another range, or judged by somebody else is left alone.
fn needs_condition(cidr: &Value, own: &[Value]) -> bool {
    let conditions = cidr["status"]["conditions"].as_array();
    let known = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    !metadata::is_deleting(cidr)
        && cidr["spec"]["cidrs"].as_array().is_some_and(|c| c == own)
        && known.is_none_or(|c| c["status"] == "Unknown")
}

/// What is to be reported of an object that stands there with another range.
pub fn differs(found: &ServiceCIDR, server: &Inner) -> Option<(&'static str, String)> {
    let cidrs = found.spec.as_ref().and_then(|s| s.cidrs.clone()).unwrap_or_default();
    let own = cidr(server);
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
