//! A value computed for each service; computed again only when the service or one of its endpoint slices is
//! another object.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// `namespace/name`
pub type ServiceKey = Arc<str>;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A value with the objects that it was computed from.
struct Computed<T> {
    service: Arc<Service>,
    slices: Vec<Arc<EndpointSlice>>,
    value: Arc<T>,
}

/// Values by service.
pub struct PerService<T> {
    computed: BTreeMap<ServiceKey, Computed<T>>,
}

impl<T> Default for PerService<T> {
    fn default() -> Self {
        Self { computed: BTreeMap::new() }
    }
}

impl<T: PartialEq> PerService<T> {
    /// Updates the values to the given services, which must be all that exist. If a new value is equal, the
    /// same `Arc` is kept.
    pub fn update(
        &mut self,
        services: &[Arc<Service>],
        slices: &[Arc<EndpointSlice>],
        compute: impl Fn(&Service, &[Arc<EndpointSlice>]) -> T,
    ) {
        let mut by_service = slices_by_service(slices);
        let mut computed = BTreeMap::new();
        for service in services {
            let key = service_key(service);
            let slices = by_service.remove(&*key).unwrap_or_default();
            let entry = match self.computed.remove(&key) {
                Some(before) if before.is_of(service, &slices) => before,
                before => {
                    let value = Arc::new(compute(service, &slices));
                    let value = before.map(|b| b.value).filter(|old| **old == *value).unwrap_or(value);
                    Computed { service: service.clone(), slices, value }
                }
            };
            computed.insert(key, entry);
        }
        self.computed = computed;
    }

    /// Returns the value of the service that the slice belongs to.
    pub fn of_slice(&self, slice: &EndpointSlice) -> Option<&T> {
        let computed = self.computed.get(slice_service(slice)?.as_str())?;
        Some(&computed.value)
    }

    /// Returns the values in order of their keys.
    pub fn values(&self) -> BTreeMap<ServiceKey, Arc<T>> {
        self.computed.iter().map(|(key, computed)| (key.clone(), computed.value.clone())).collect()
    }
}

impl<T> Computed<T> {
    fn is_of(&self, service: &Arc<Service>, slices: &[Arc<EndpointSlice>]) -> bool {
        Arc::ptr_eq(&self.service, service)
            && self.slices.len() == slices.len()
            && self.slices.iter().zip(slices).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// Returns the key of a service.
pub fn service_key(service: &Service) -> ServiceKey {
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{name}").into()
}

fn slices_by_service(slices: &[Arc<EndpointSlice>]) -> BTreeMap<String, Vec<Arc<EndpointSlice>>> {
    let mut by_service: BTreeMap<String, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in slices {
        if let Some(service) = slice_service(slice) {
            by_service.entry(service).or_default().push(slice.clone());
        }
    }
    by_service
}

/// The key of the service that the slice belongs to.
fn slice_service(slice: &EndpointSlice) -> Option<String> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    Some(format!("{namespace}/{name}"))
}
