//! Resolves the name of a Service to the address of a ready endpoint, from the watch cache.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;

use super::Registry;
use knarr_outgoing::webhook::{Services, endpoint};

impl Services for Registry {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<(String, u16), StatusError> {
        let missing = || StatusError::not_found(&GroupResource::new("", "services"), name);
        let services = self.table.find("", "v1", "services").ok_or_else(missing)?;
        let held = services.cache()?.get(&services.cache_key(namespace, name)).ok_or_else(missing)?;
        let service = held.typed::<Service>().map_err(StatusError::internal)?;
        let mut slices = Vec::new();
        if let Some(served) = self.table.find("discovery.k8s.io", "v1", "endpointslices") {
            for object in served.cache()?.list(Some(namespace)) {
                if object.header().label("kubernetes.io/service-name") == Some(name)
                    && let Ok(slice) = object.typed::<EndpointSlice>()
                {
                    slices.push(slice);
                }
            }
        }
        let slices: Vec<&EndpointSlice> = slices.iter().map(AsRef::as_ref).collect();
        endpoint(&service, &slices, port, fastrand::usize(..))
    }
}
