//! Component statuses: the current state of the store, and of the components that hold a lease.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ComponentCondition, ComponentStatus};
use knarr_api::kind::Kind;
use knarr_api::object::Object;
use knarr_apimachinery::status::StatusError;

use crate::Registry;
use crate::options::ListParams;
use crate::served::Served;
use knarr_wire::output::{Answer, ListAnswer};
use knarr_wire::request::Request;

/// The legacy component names, and their leader election leases.
const LEASES: [(&str, &str); 2] =
    [("scheduler", "kube-scheduler"), ("controller-manager", "kube-controller-manager")];

pub async fn answer(registry: &Registry, request: &Request, served: &Served) -> Result<Answer, StatusError> {
    let mut items = Vec::new();
    for (name, lease) in LEASES {
        items.extend(of_lease(registry, name, lease)?);
    }
    let store = match registry.store.status().await {
        Ok(status) => status.failure.map_or(Ok(()), Err),
        Err(error) => Err(error.to_string()),
    };
    items.push(component("etcd-0", store)?);
    let name = request.info.name.as_str();
    if request.info.verb == "list" {
        let params = ListParams::parse(served, name, &request.query, false)?;
        items.retain(|item| params.selection.matches(item));
        return Ok(Answer::List(ListAnswer {
            resource: served.resource.clone(),
            items,
            resource_version: 0,
            continue_token: None,
            remaining: None,
        }));
    }
    let found = items.into_iter().find(|item| item.name() == name);
    found.map(|item| served.answer(200, item)).ok_or_else(|| served.not_found(name))
}

/// Returns the status of a component according to its lease; `None` if the component never took one.
fn of_lease(registry: &Registry, name: &str, lease: &str) -> Result<Option<Arc<Object>>, StatusError> {
    let Some(leases) = registry.table.find("coordination.k8s.io", "v1", "leases") else { return Ok(None) };
    let Some(lease) = leases.cache()?.get(&leases.cache_key("kube-system", lease)) else { return Ok(None) };
    let lease = lease.typed::<Lease>().map_err(StatusError::internal)?;
    let spec = lease.spec.clone().unwrap_or_default();
    let renewed = spec.renew_time.map_or(0, |t| t.0.as_second());
    let until = renewed.saturating_add(i64::from(spec.lease_duration_seconds.unwrap_or(0)));
    let health = if until >= registry.clock.now().as_second() {
        Ok(())
    } else {
        Err("its lease has not been renewed".to_owned())
    };
    component(name, health).map(Some)
}

fn component(name: &str, health: Result<(), String>) -> Result<Arc<Object>, StatusError> {
    let (status, message) = match health {
        Ok(()) => ("True", "ok".to_owned()),
        Err(why) => ("False", why),
    };
    let condition = ComponentCondition {
        type_: "Healthy".to_owned(),
        status: status.to_owned(),
        message: Some(message),
        error: None,
    };
    let mut component = ComponentStatus { conditions: Some(vec![condition]), ..ComponentStatus::default() };
    component.meta_mut().name = Some(name.to_owned());
    Object::from_typed(&component).map(Arc::new).map_err(StatusError::internal)
}
