//! The OpenAPI v3 document of one group version.

use serde_json::{Map, Value};

use super::envelope::with;
use super::resource::{Describe, Resource, group_version_path};
use super::{general, paths, schemas};
use crate::gvk::GroupVersionKind;
use crate::schema::{for_definition, for_kind};

/// Returns the document of `/openapi/v3/{group_version_path}` for built-in resources: that of [`document`], with the
/// path that lists the resources and the watch paths, which upstream's documents of custom resources do not have.
pub fn built_in_document(
    group: &str,
    version: &str,
    resources: &[Resource<'_>],
    describe: Describe<'_>,
) -> Value {
    let mut document = document(group, version, resources, describe);
    if let Some(all) = document["paths"].as_object_mut() {
        let list = format!("/{}/", group_version_path(group, version));
        all.insert(list, general::resources(group, version).into());
        all.extend(paths::watches(group, version, resources));
    }
    document
}

/// Returns the document of a group version with the paths of its resources.
pub fn document(group: &str, version: &str, resources: &[Resource<'_>], describe: Describe<'_>) -> Value {
    let mut roots = vec![
        GroupVersionKind::new("", "v1", "APIResourceList"),
        GroupVersionKind::new("", "v1", "Status"),
        GroupVersionKind::new("", "v1", "DeleteOptions"),
        GroupVersionKind::new("", "v1", "WatchEvent"),
    ];
    for resource in resources {
        roots.push(GroupVersionKind::new(group, version, resource.kind));
        roots.push(GroupVersionKind::new(group, version, &format!("{}List", resource.kind)));
        for sub in resource.subresources.iter().filter(|sub| !paths::is_connection(sub)) {
            let (group, version, kind) = sub.kind;
            roots.push(GroupVersionKind::new(group, version, kind));
        }
    }
    let roots: Vec<_> = roots.iter().filter_map(for_kind).collect();
    with(paths::paths(group, version, resources), schemas::schemas(&roots, describe))
}

/// Returns the schemas of these definitions and of all that they refer to, by name.
pub fn definitions(names: &[&str], describe: Describe<'_>) -> Map<String, Value> {
    let roots: Vec<_> = names.iter().filter_map(|name| for_definition(name)).collect();
    schemas::schemas(&roots, describe)
}
