//! IPAddress objects: one per cluster address, written and deleted in the transaction of its Service.

use bytes::Bytes;
use knarr_apimachinery::status::StatusError;
use knarr_storage::Op;
use serde_json::{Value, json};

use crate::Registry;
use crate::options::WriteParams;
use crate::store_errors::status_of;
use crate::{fill, managed, metadata};

const GROUP: &str = "networking.k8s.io";
/// The prefix of the objects' storage keys.
pub const PREFIX: &str = "/registry/networking.k8s.io/ipaddresses/";
/// The label that marks the addresses that the server manages.
pub const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
pub const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
pub const ALLOCATOR: &str = "ipallocator.k8s.io";

/// Returns the IPAddress object that records the Service as the owner of the address.
pub fn object(ip: &str, namespace: &str, name: &str) -> Value {
    let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": ip, "labels": {FAMILY: family, MANAGED_BY: ALLOCATOR}},
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
    })
}

/// Returns the operation that records this Service as the owner of the address.
pub async fn take(registry: &Registry, key: &Bytes, service: &Value) -> Result<Op, StatusError> {
    let (namespace, name) = (metadata::text(service, "namespace"), metadata::text(service, "name"));
    let text = String::from_utf8_lossy(key);
    let mut address = object(text.strip_prefix(PREFIX).unwrap_or(&text), namespace, name);
    let value = match registry.table.find(GROUP, "v1", "ipaddresses") {
        Some(served) => {
            let now = registry.clock.now();
            metadata::init(&mut address, now, &uuid::Uuid::new_v4().to_string());
            managed::created(&served, &WriteParams::own(), &mut address, now);
            fill(&served, &mut address);
            served.to_stored(&address).await?
        }
        None => Bytes::from(address.to_string()),
    };
    Ok(Op::Put { key: key.clone(), value, lease: None })
}

/// Returns the operation that releases the address if it belongs to this Service. An object with finalizers is marked
/// as being deleted instead.
pub async fn release(registry: &Registry, key: &Bytes, service: &Value) -> Result<Option<Op>, StatusError> {
    let Some(kv) = registry.store.get(key).await.map_err(|e| status_of(&e))? else { return Ok(None) };
    let mut address: Value = serde_json::from_slice(&kv.value).map_err(StatusError::internal)?;
    if !belongs_to(&address, service) {
        return Ok(None);
    }
    if metadata::finalizers(&address).is_empty() {
        return Ok(Some(Op::Delete { key: key.clone() }));
    }
    if metadata::is_deleting(&address) {
        return Ok(None);
    }
    let meta = knarr_api::prepare::metadata(&mut address);
    meta.insert("deletionTimestamp".into(), metadata::rfc3339(registry.clock.now()).into());
    meta.insert("deletionGracePeriodSeconds".into(), 0.into());
    Ok(Some(Op::Put { key: key.clone(), value: Bytes::from(address.to_string()), lease: None }))
}

fn belongs_to(address: &Value, service: &Value) -> bool {
    let parent = &address["spec"]["parentRef"];
    let text = |field: &str| parent[field].as_str().unwrap_or("");
    text("resource") == "services"
        && text("group").is_empty()
        && text("namespace") == metadata::text(service, "namespace")
        && text("name") == metadata::text(service, "name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_one_service() {
        let service = |ns: &str, name: &str| json!({"metadata": {"namespace": ns, "name": name}});
        let address = object("10.43.0.9", "shop", "web");
        assert!(belongs_to(&address, &service("shop", "web")));
        assert!(!belongs_to(&address, &service("shop", "api")));
        assert!(!belongs_to(&address, &service("other", "web")));
        let gateway =
            json!({"spec": {"parentRef": {"resource": "gateways", "namespace": "shop", "name": "web"}}});
        assert!(!belongs_to(&gateway, &service("shop", "web")));
    }
}
