//! The attributes of a request, as authorizers see them.

use knarr_wire::query::Query;
use knarr_wire::request_info::RequestInfo;

/// The attributes of a request to be authorized.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// The URL path of a non-resource request; `resource` is then empty.
    pub path: String,
    /// The field selector of a list or watch.
    pub field_selector: String,
    /// The label selector of a list or watch.
    pub label_selector: String,
}

impl Attributes {
    pub fn of_request(info: &RequestInfo, query: &Query) -> Self {
        if !info.is_resource {
            return Self { verb: info.verb.clone(), path: info.path.clone(), ..Self::default() };
        }
        // The deprecated watch paths honour selectors only in part, so authorization ignores the selectors there.
        let selects = !info.watch_path && matches!(info.verb.as_str(), "list" | "watch" | "deletecollection");
        let selector = |name: &str| query.get(name).filter(|_| selects).unwrap_or("").to_owned();
        Self {
            verb: info.verb.clone(),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            path: String::new(),
            field_selector: selector("fieldSelector"),
            label_selector: selector("labelSelector"),
        }
    }

    pub fn is_resource(&self) -> bool {
        self.path.is_empty()
    }

    /// Returns the resource as in rules: `pods`, `pods/log`.
    pub fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}
