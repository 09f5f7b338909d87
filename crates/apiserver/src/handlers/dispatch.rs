//! Dispatches a request about a resource to the handler of its verb.

use std::sync::Arc;

use http::Method;
use knarr_apimachinery::names;
use knarr_apimachinery::status::StatusError;

use super::subresources;
use crate::local_api;
use crate::resource_metrics;
use crate::state::State;
use knarr_registry::options::{ListParams, Version, WriteParams};
use knarr_registry::served::Served;
use knarr_registry::{create, delete, list, patch, update, watch, watch_body};
use knarr_wire::metrics::Metric;
use knarr_wire::negotiate::{self, Format};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

/// Answers an authorized request about a resource.
pub async fn dispatch(server: &Arc<State>, request: &Request) -> Result<Answer, StatusError> {
    let info = &request.info;
    let Some(served) = server.registry.table.find(&info.group, &info.version, &info.resource) else {
        if info.group == resource_metrics::GROUP {
            return resource_metrics::answer(&server.resource_metrics, request).await;
        }
        return match local_api::find(&server.config.local_apis, &info.group, &info.version) {
            Some(api) => local_api::answer(&server.authorizer, &**api, request).await,
            None => Err(StatusError::path_not_found()),
        };
    };
    if let Some(warning) = served.resource.custom().and_then(|c| c.deprecation.as_deref()) {
        request.warn(warning);
    }
    if !info.subresource.is_empty() {
        return subresources::dispatch(server, request, &served).await;
    }
    let served = &served;
    check_scope(served, request)?;
    if !info.name.is_empty() && !is_named(served) {
        return Err(StatusError::path_not_found());
    }
    let nameless = info.name.is_empty() && matches!(info.verb.as_str(), "update" | "patch");
    let misplaced = !info.name.is_empty() && info.verb == "create";
    if nameless
        || misplaced
        || request.method == Method::HEAD
        || !served.resource.verbs.contains(&info.verb.as_str())
    {
        return Err(StatusError::no_such_method());
    }
    if info.watch_path && request.method != Method::GET {
        return Err(StatusError::no_such_method());
    }
    if let Some(warning) = deprecation(served) {
        request.warn(warning.to_owned());
        let types = &served.resource.types;
        let labels = [types.group, "", types.plural, "", types.version];
        server.metrics.set(Metric::DeprecatedApis, &labels, 1.0);
    }
    if let Some(text) = served.resource.deprecated {
        request.warn(text.to_owned());
    }
    if !served.resource.is_stored() {
        return subresources::review(server, request, served).await;
    }
    match info.verb.as_str() {
        "get" => {
            // The resourceVersion of a single object is parsed later, because upstream's error for it differs.
            if request.query.flag("export") {
                let why = "the export parameter, deprecated since v1.14, is no longer supported";
                return Err(StatusError::bad_request(why));
            }
            let version = Version::parse(request.query.get("resourceVersion"))
                .map_err(|e| StatusError::new(500, "", e.message()))?;
            check_name(&info.name)?;
            let object = list::get(&server.registry, served, &info.namespace, &info.name, version).await?;
            Ok(served.answer(200, object))
        }
        "list" => {
            let params = ListParams::parse(served, &info.name, &request.query, false)?;
            warn_of_shards(request);
            let found =
                list::list(&server.registry, served, Some(namespace_of(served, request)), &params).await?;
            Ok(Answer::List(found))
        }
        "watch" => watch(server, request, served).await,
        "create" => {
            let params = WriteParams::parse(request, "CreateOptions")?;
            let object = create::create(&server.registry, request, served, &params).await?;
            Ok(served.answer(201, object))
        }
        "update" => {
            let params = WriteParams::parse(request, "UpdateOptions")?;
            let (object, created) = update::update(&server.registry, request, served, &params).await?;
            Ok(served.answer(if created { 201 } else { 200 }, object))
        }
        "patch" => {
            let params = WriteParams::parse(request, "PatchOptions")?;
            let (object, created) = patch::patch(&server.registry, request, served, &params).await?;
            Ok(served.answer(if created { 201 } else { 200 }, object))
        }
        "delete" => delete_one(server, request, served).await,
        "deletecollection" => delete_collection(server, request, served).await,
        other => Err(StatusError::method_not_allowed(&served.group_resource(), other)),
    }
}

/// Refuses a name that no object can have.
fn check_name(name: &str) -> Result<(), StatusError> {
    let problems = names::path_segment_name(name);
    if problems.is_empty() {
        return Ok(());
    }
    Err(StatusError::bad_request(format!("Name parameter invalid: {name:?}: {}", problems.join(";"))))
}

/// Returns whether single objects have paths; resources that are answered but not stored have none.
fn is_named(served: &Served) -> bool {
    served.resource.verbs.iter().any(|verb| *verb != "create")
}

/// Returns the warning of a deprecated resource.
fn deprecation(served: &Served) -> Option<&'static str> {
    let types = &served.resource.types;
    match (types.group, types.plural) {
        ("", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        ("", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        _ => None,
    }
}

/// Checks the scope: namespaced resources need a namespace, except for reads of the whole collection; cluster-scoped
/// ones have none.
fn check_scope(served: &Served, request: &Request) -> Result<(), StatusError> {
    let info = &request.info;
    let everywhere = matches!(info.verb.as_str(), "list" | "watch");
    let collection = info.name.is_empty() || info.selected_name;
    match (served.resource.types.namespaced, info.in_namespace) {
        (true, true) | (false, false) => Ok(()),
        // The collection of all namespaces can only be read.
        (true, false) if is_named(served) && collection => {
            if everywhere {
                Ok(())
            } else {
                Err(StatusError::no_such_method())
            }
        }
        _ => Err(StatusError::path_not_found()),
    }
}

/// Returns the namespace of the objects; it is empty for a Namespace, whose path contains its own name.
fn namespace_of<'a>(served: &Served, request: &'a Request) -> &'a str {
    if served.resource.types.namespaced { &request.info.namespace } else { "" }
}

/// Adds a warning that the answer contains more than the requested shard. Clients also detect this by the missing
/// `shardInfo`.
fn warn_of_shards(request: &Request) {
    if request.query.non_empty("shardSelector").is_some() {
        request.warn("shardSelector: lists and watches have no shards: everything is answered");
    }
}

async fn watch(server: &Arc<State>, request: &Request, served: &Arc<Served>) -> Result<Answer, StatusError> {
    let info = &request.info;
    let params = ListParams::parse(served, &info.name, &request.query, true)?;
    warn_of_shards(request);
    if negotiate::negotiate(&request.headers, &request.query, true)?.format == Format::Yaml {
        return Err(StatusError::not_acceptable(&negotiate::STREAM_TYPES));
    }
    match watch::start(&server.registry, served, Some(namespace_of(served, request)), params).await {
        Ok(session) => Ok(Answer::Watch(Box::new(session))),
        Err(error) if error.is_expired() => {
            let format = negotiate::negotiate(&request.headers, &request.query, true)?.format;
            Ok(Answer::Raw(watch_body::respond_error(&error, format)))
        }
        Err(error) => Err(error),
    }
}

async fn delete_one(server: &State, request: &Request, served: &Served) -> Result<Answer, StatusError> {
    let how = delete::options(request)?;
    check_name(&request.info.name)?;
    let (namespace, name) = (namespace_of(served, request), &request.info.name);
    let deleted = delete::delete(&server.registry, request, served, namespace, name, &how).await?;
    if let Some(value) = delete::success(served, &deleted) {
        return Ok(Answer::Value { code: 200, value });
    }
    let code = if !deleted.gone && how.options.orphan_dependents == Some(false) { 202 } else { 200 };
    Ok(served.answer(code, deleted.object))
}

async fn delete_collection(
    server: &State,
    request: &Request,
    served: &Served,
) -> Result<Answer, StatusError> {
    let how = delete::options(request)?;
    delete::check_collection(&how)?;
    if request.query.non_empty("shardSelector").is_some() {
        // Upstream, with its gate off, deletes everything.
        let why = "shardSelector: collections have no shards: nothing was deleted";
        return Err(StatusError::bad_request(why));
    }
    delete::warn(request, served, &how);
    let params = ListParams::parse(served, &request.info.name, &request.query, false)?;
    let found = list::list(&server.registry, served, Some(namespace_of(served, request)), &params).await?;
    for object in &found.items {
        match delete::delete(&server.registry, request, served, object.namespace(), object.name(), &how).await
        {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    // Undecodable objects are in no list, but they exist: a client that empties a namespace must not take it for
    // empty.
    if let Some(key) = served.cache()?.damaged(Some(namespace_of(served, request))).first() {
        return Err(delete::unread(served, key));
    }
    // The objects are answered as they were before the deletion.
    Ok(Answer::List(found))
}
