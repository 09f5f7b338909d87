//! The variables of admission expressions: the objects, the request, the parameters, the authorizer.

use std::sync::Arc;

use knarr_apimachinery::status::StatusError;
use knarr_cel::library::authz::{self as cel, Authorizer, Check};
use knarr_cel::{Activation, schema};
use serde_json::{Map, Value, json};

use crate::Context;
use crate::matching::Invocation;
use crate::{Attributes, lookup};

/// The values of all variables except `variables`.
#[derive(Clone)]
pub struct Inputs<'v> {
    pub object: &'v Value,
    pub old: &'v Value,
    pub request: &'v Value,
    /// `Null` if the request is not namespaced.
    pub namespace: &'v Value,
    /// `Null` without parameters.
    pub params: &'v Value,
    /// `None` if no authorizer is available.
    pub authorizer: Option<Arc<dyn Authorizer>>,
    /// The request itself as a check for the authorizer.
    pub about: Check,
}

impl<'v> Inputs<'v> {
    pub fn activation<'l>(&self) -> Activation<'l, 'v> {
        let activation = Activation::new()
            .with("object", schema::dynamic(self.object))
            .with("oldObject", schema::dynamic(self.old))
            .with("request", schema::dynamic(self.request))
            .with("namespaceObject", schema::dynamic(self.namespace))
            .with("params", schema::dynamic(self.params));
        let Some(authorizer) = &self.authorizer else { return activation };
        let check = cel::resource_check(Arc::clone(authorizer), self.about.clone());
        activation
            .with("authorizer", cel::authorizer(Arc::clone(authorizer)))
            .with("authorizer.requestResource", check)
    }

    /// Returns the inputs of message and audit annotation expressions.
    pub fn without_authorizer(&self) -> Self {
        Self { authorizer: None, ..self.clone() }
    }

    /// Returns the inputs of match conditions.
    pub fn without_namespace(&self) -> Self {
        Self { namespace: &Value::Null, ..self.clone() }
    }
}

/// Returns the request as a check for the authorizer.
pub fn about(attributes: &Attributes<'_>) -> Check {
    Check {
        group: attributes.resource.group.to_owned(),
        resource: attributes.resource.plural.to_owned(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.namespace.to_owned(),
        name: attributes.name.to_owned(),
        ..Check::default()
    }
}

/// Returns the variable `request`: an AdmissionRequest without its uid and objects.
pub fn request(attributes: &Attributes<'_>, invocation: &Invocation) -> Value {
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let resource = |group: &str, version: &str, plural: &str| json!({"group": group, "version": version, "resource": plural});
    let own = attributes.kind();
    let types = attributes.resource;
    let mut request = Map::new();
    let mut put = |field: &str, value: Value| drop(request.insert(field.to_owned(), value));
    put("uid", "".into());
    put("kind", kind(&invocation.kind.group, &invocation.kind.version, &invocation.kind.kind));
    put("resource", resource(&invocation.group, &invocation.version, &invocation.plural));
    put("requestKind", kind(&own.group, &own.version, &own.kind));
    put("requestResource", resource(types.group, types.version, types.plural));
    for (field, text) in [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", attributes.own_name()),
        ("namespace", attributes.in_namespace()),
    ] {
        if !text.is_empty() {
            put(field, text.into());
        }
    }
    put("operation", attributes.operation.as_str().into());
    put("userInfo", attributes.user.to_value());
    put("object", Value::Null);
    put("oldObject", Value::Null);
    put("dryRun", attributes.dry_run.into());
    put("options", attributes.options.clone());
    Value::Object(request)
}

/// Returns the variable `namespaceObject`: the namespace of the request; `Null` for cluster-scoped requests and for
/// namespaces.
pub async fn namespace(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<Value, StatusError> {
    let kind = attributes.kind();
    if attributes.namespace.is_empty() || (kind.group.is_empty() && kind.kind == "Namespace") {
        return Ok(Value::Null);
    }
    let resource = ("", "v1", "namespaces");
    let found = lookup::value(context, resource, "", attributes.namespace).await?;
    let Some(mut found) = found else {
        let resource = knarr_apimachinery::gvk::GroupResource::new("", "namespaces");
        return Err(StatusError::not_found(&resource, attributes.namespace));
    };
    if let Some(metadata) = found["metadata"].as_object_mut() {
        for hidden in ["managedFields", "ownerReferences", "selfLink"] {
            metadata.remove(hidden);
        }
    }
    Ok(found)
}
