//! The ConfigMap `kube-system/kube-apiserver-legacy-service-account-token-tracking`: the day since which the use of
//! tokens from Secrets is recorded. The legacy token cleaner needs it.

use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::state::State;
use knarr_registry::own::ensure;
use knarr_wire::request::Request;

pub async fn reconcile(server: &State, request: &Request) -> Result<(), StatusError> {
    let Some(config_maps) = server.registry.table.v1("", "configmaps") else { return Ok(()) };
    ensure(&server.registry, request, &config_maps, since(server.clock.now())).await
}

fn since(now: jiff::Timestamp) -> Value {
    let name = "kube-apiserver-legacy-service-account-token-tracking";
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"},
        "data": {"since": now.strftime("%Y-%m-%d").to_string()},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_is_written_as_the_cleaner_reads_it() {
        let now = "2026-03-04T23:59:59Z".parse().unwrap();
        assert_eq!(since(now)["data"], json!({"since": "2026-03-04"}));
    }
}
