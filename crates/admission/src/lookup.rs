//! Objects that plugins need: from the watch cache, or from the store if the cache may not have them yet.

use std::sync::Arc;

use knarr_api::object::Object;
use knarr_apimachinery::selector::Selector;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::Context;
use knarr_registry::served::Served;
use knarr_registry::store;
use knarr_wire::request::Request;

/// Returns one object; `None` if it does not exist or its resource is not served.
pub async fn find(
    context: &Context<'_>,
    (group, version, plural): (&str, &str, &str),
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<Object>>, StatusError> {
    let Some(served) = context.registry.table.find(group, version, plural) else { return Ok(None) };
    match served.cache()?.get(&served.cache_key(namespace, name)) {
        Some(held) => Ok(Some(held)),
        None => Ok(store::read(context.registry, &served, namespace, name).await?.map(|c| c.object)),
    }
}

/// Returns the same as [`find`], as JSON.
pub async fn value(
    context: &Context<'_>,
    resource: (&str, &str, &str),
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, StatusError> {
    let found = find(context, resource, namespace, name).await?;
    found.map(|o| serde_json::from_slice(&o.json()).map_err(StatusError::internal)).transpose()
}

/// Returns one object in the version of this resource, as JSON.
pub async fn in_version(
    context: &Context<'_>,
    served: &Served,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, StatusError> {
    let found = match served.cache()?.get(&served.cache_key(namespace, name)) {
        Some(held) => held,
        None => match store::read(context.registry, served, namespace, name).await? {
            Some(current) => current.object,
            None => return Ok(None),
        },
    };
    let shown = served.show(&found).await?;
    serde_json::from_slice(&shown.json()).map(Some).map_err(StatusError::internal)
}

/// Returns the objects with matching labels of a namespace, or of all, in the version of this resource.
pub async fn selected(
    request: &Request,
    served: &Served,
    namespace: Option<&str>,
    selector: &Selector,
) -> Result<Vec<Value>, StatusError> {
    check_readable(request, served, namespace)?;
    let mut objects = served.cache()?.list(namespace);
    objects.retain(|o| selector.is_everything() || selector.matches_with(|key| o.header().label(key)));
    let shown = served.show_all(objects).await?;
    shown.iter().map(|o| serde_json::from_slice(&o.json()).map_err(StatusError::internal)).collect()
}

/// Returns the cached objects of a namespace, or of all.
pub fn list(
    context: &Context<'_>,
    (group, version, plural): (&str, &str, &str),
    namespace: Option<&str>,
) -> Result<Vec<Value>, StatusError> {
    let Some(served) = context.registry.table.find(group, version, plural) else { return Ok(Vec::new()) };
    let objects = served.cache()?.list(namespace);
    Ok(objects.iter().filter_map(|o| serde_json::from_slice(&o.json()).ok()).collect())
}

/// Refuses a write while a stored object that might forbid it cannot be decoded, in a namespace or anywhere. An
/// undecodable object is not treated as absent. It can still be deleted, because unsafe deletion skips admission, and
/// it does not keep a server from starting, although the start writes objects.
pub fn check_readable(
    request: &Request,
    served: &Served,
    namespace: Option<&str>,
) -> Result<(), StatusError> {
    if request.is_own() {
        return Ok(());
    }
    match served.cache()?.damaged(namespace).first() {
        None => Ok(()),
        Some(key) => Err(StatusError::internal(format!(
            "{} \"{key}\" cannot be read from the store, and may be about this request: it can be deleted with \
             ignoreStoreReadErrorWithClusterBreakingPotential",
            served.group_resource()
        ))),
    }
}

/// Returns the same as [`list`], but fails if an object cannot be decoded.
pub fn list_whole(
    (request, context): (&Request, &Context<'_>),
    resource: (&str, &str, &str),
    namespace: Option<&str>,
) -> Result<Vec<Value>, StatusError> {
    if let Some(served) = context.registry.table.find(resource.0, resource.1, resource.2) {
        check_readable(request, &served, namespace)?;
    }
    list(context, resource, namespace)
}

/// Returns the default class: the newest of those with this annotation, of equally old ones the first by name.
pub fn default_class(classes: &[Value], annotations: &[&str]) -> Option<String> {
    let marked = |c: &&Value| annotations.iter().any(|a| c["metadata"]["annotations"][*a] == "true");
    let meta = |c: &Value, field: &str| c["metadata"][field].as_str().unwrap_or("").to_owned();
    let newest = classes.iter().filter(marked).min_by(|a, b| {
        let by_age = meta(b, "creationTimestamp").cmp(&meta(a, "creationTimestamp"));
        by_age.then_with(|| meta(a, "name").cmp(&meta(b, "name")))
    });
    newest.map(|c| meta(c, "name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newest_default() {
        let class = |name: &str, at: &str, mark: &str| json!({"metadata": {"name": name, "creationTimestamp": at, "annotations": {"default": mark}}});
        let all = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("b", "2026-01-02T00:00:00Z", "true"),
            class("a", "2026-01-02T00:00:00Z", "true"),
            class("no", "2026-01-03T00:00:00Z", "false"),
        ];
        assert_eq!(default_class(&all, &["default"]).as_deref(), Some("a"));
        assert_eq!(default_class(&all, &["other"]), None);
    }
}
