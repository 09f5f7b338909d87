//! API groups outside of Kubernetes that another component of this process answers.
//!
//! They take part in discovery and authorization like any other group. An APIService of the same name with a Service
//! replaces them. Nothing is stored: objects are posted and returned with an answer.

use std::sync::Arc;

use async_trait::async_trait;
use http::Method;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use knarr_auth::authz::{Attributes, Authorizer};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

/// One group version.
#[async_trait]
pub trait LocalApi: Send + Sync {
    fn group(&self) -> &'static str;
    fn version(&self) -> &'static str;
    /// The names and kinds of the resources. Each is namespaced and supports only create.
    fn resources(&self) -> &'static [(&'static str, &'static str)];
    /// Answers an object posted to this namespace, given its `spec`. The user is allowed to create it in all
    /// namespaces.
    ///
    /// # Errors
    ///
    /// The error that the client gets.
    async fn answer(&self, kind: &str, namespace: &str, spec: Value) -> Result<Value, StatusError>;
}

/// Returns the resources as legacy discovery lists them.
pub fn resources(api: &dyn LocalApi) -> Value {
    let resource = |(name, kind): &(&str, &str)| json!({"name": name, "singularName": kind.to_lowercase(), "namespaced": true, "kind": kind, "verbs": ["create"]});
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{}/{}", api.group(), api.version()),
        "resources": api.resources().iter().map(resource).collect::<Vec<_>>(),
    })
}

/// Returns the API of this group version, if it exists.
pub fn find<'a>(all: &'a [Arc<dyn LocalApi>], group: &str, version: &str) -> Option<&'a Arc<dyn LocalApi>> {
    all.iter().find(|api| api.group() == group && api.version() == version)
}

/// Answers a request that is authorized in its namespace. Because the answer covers the whole cluster, the user must
/// be authorized in all namespaces: full access to one namespace must not reveal the others.
pub async fn answer(
    authorizer: &Authorizer,
    api: &dyn LocalApi,
    request: &Request,
) -> Result<Answer, StatusError> {
    let info = &request.info;
    let known = api.resources().iter().find(|(name, _)| *name == info.resource);
    let Some((_, kind)) = known.filter(|_| info.subresource.is_empty()) else {
        return Err(StatusError::path_not_found());
    };
    if info.verb != "create" || request.method != Method::POST || !info.name.is_empty() {
        return Err(StatusError::no_such_method());
    }
    let resource = GroupResource::new(api.group(), &info.resource);
    if info.namespace.is_empty() {
        return Err(StatusError::bad_request(format!("{resource} are asked in a namespace")));
    }
    let everywhere = Attributes {
        verb: info.verb.clone(),
        group: info.group.clone(),
        version: info.version.clone(),
        resource: info.resource.clone(),
        ..Attributes::default()
    };
    authorizer.check(&request.user, &everywhere).await?;
    let mut object: Value = serde_json::from_slice(&request.body)
        .map_err(|error| StatusError::bad_request(format!("the body is not a JSON object: {error}")))?;
    let group_version = format!("{}/{}", api.group(), api.version());
    if object["kind"] != *kind || object["apiVersion"] != group_version.as_str() {
        return Err(StatusError::bad_request(format!("the body has to be a {kind} of {group_version}")));
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&info.namespace);
    if namespace != info.namespace {
        return Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object["status"] = api.answer(kind, &info.namespace, object["spec"].clone()).await?;
    Ok(Answer::Value { code: 201, value: object })
}
