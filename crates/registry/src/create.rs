//! Create: POST of a new object.

use std::sync::Arc;

use knarr_api::codec;
use knarr_api::object::Object;
use knarr_apimachinery::names;
use knarr_apimachinery::status::StatusError;
use knarr_storage::Precondition;
use serde_json::Value;

use super::attributes::{Attributes, Operation};
use super::options::{FieldValidation, WriteParams};
use super::served::{Prepared, Served};
use super::store::{self, WriteError};
use super::{Request, metadata, unsupported};
use crate::Registry;
use crate::allocators;

/// How many times a name is generated before the create fails because each one exists already.
const NAME_ATTEMPTS: usize = 8;

/// Decodes the body as an object of the served kind.
pub fn decode_body(request: &Request, served: &Served, params: &WriteParams) -> Result<Value, StatusError> {
    let strict = params.field_validation == FieldValidation::Strict;
    let decoded = super::codec::decode(served, &request.headers, &request.body, strict)?;
    if params.field_validation == FieldValidation::Warn {
        decoded.strict_errors.iter().for_each(|e| request.warn(e.clone()));
    }
    Ok(decoded.value)
}

/// Handles POST to a collection.
pub async fn create(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
) -> Result<Arc<Object>, StatusError> {
    let mut object = decode_body(request, served, params)?;
    metadata::match_namespace(served, &mut object, &request.info.namespace)?;
    create_value(registry, request, served, params, object).await
}

/// Does the work of `create` for a decoded object; also used where an update or an apply creates the object.
pub async fn create_value(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
    mut object: Value,
) -> Result<Arc<Object>, StatusError> {
    let version = metadata::text(&object, "resourceVersion");
    let versioned = !version.is_empty() && version != "0" && !params.dry_run;
    let dropped = knarr_api::dropped::drop_fields(served.resource.types, &mut object);
    dropped.into_iter().for_each(|w| request.warn(w));
    served.resource.default(&mut object, None);
    let now = registry.clock.now();
    metadata::init(&mut object, now, &uuid::Uuid::new_v4().to_string());
    // Fields set by admission are not recorded in managedFields.
    super::managed::created(served, params, &mut object, now);
    let (namespace, name) = {
        let text = |field| metadata::text(&object, field).to_owned();
        (text("namespace"), text("name"))
    };
    let place = (namespace.as_str(), name.as_str(), "");
    let mut attributes = Attributes::new(request, served, Operation::Create, place, object, params.dry_run);
    registry.admission.mutate(registry, &mut attributes).await?;
    let mut object = attributes.object;
    name_limit_range(served, &mut object);
    let base = metadata::text(&object, "generateName").to_owned();
    let generated = metadata::text(&object, "name").is_empty() && !base.is_empty();
    if !generated {
        return create_named(registry, request, served, params, object, versioned).await;
    }
    for attempt in 1.. {
        let name = names::generate_name(&mut fastrand::Rng::new(), &base);
        knarr_api::prepare::metadata(&mut object).insert("name".into(), name.into());
        match create_named(registry, request, served, params, object.clone(), versioned).await {
            Err(error) if error.is_already_exists() && attempt < NAME_ATTEMPTS => {}
            other => return other,
        }
    }
    Err(StatusError::internal("no name could be generated"))
}

/// Generates a name for a LimitRange without one, the one kind that may be created without a name.
fn name_limit_range(served: &Served, object: &mut Value) {
    let nameless = ["name", "generateName"].iter().all(|field| metadata::text(object, field).is_empty());
    if nameless && (served.resource.types.group, served.resource.types.plural) == ("", "limitranges") {
        let name = uuid::Uuid::new_v4().to_string();
        knarr_api::prepare::metadata(object).insert("name".into(), name.into());
    }
}

/// Prepares, validates and stores an object whose name is set. If the request set a resourceVersion (`versioned`),
/// the create is refused after all other checks have passed.
async fn create_named(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
    mut object: Value,
    versioned: bool,
) -> Result<Arc<Object>, StatusError> {
    let strategy = served.resource.strategy();
    if served.is_terminating() {
        let why = "create not allowed while custom resource definition is terminating";
        let name = metadata::text(&object, "name");
        return Err(StatusError::forbidden(&served.group_resource(), name, why));
    }
    strategy.prepare_for_create(&mut object);
    let (namespace, name) = {
        let text = |field| metadata::text(&object, field).to_owned();
        (text("namespace"), text("name"))
    };
    let place = (namespace.as_str(), name.as_str(), "");
    let mut attributes = Attributes::new(request, served, Operation::Create, place, object, params.dry_run);
    registry.admission.complete(registry, &mut attributes);
    let mut errors = metadata::validate(served, &attributes.object);
    // Objects that are stored as they are served are serialized once: validation sees exactly what is written.
    let as_stored = served.is_plain() && !allocators::concern(served);
    let (view, prepared) = if as_stored {
        super::fill(served, &mut attributes.object);
        let new = served.prepare(&attributes.object).await?;
        (Arc::clone(&new.held), Some(new))
    } else {
        (typed(served, &attributes.object)?, None)
    };
    errors.extend(strategy.validate(&view));
    readable(served, &view)?;
    // A name that cannot be a path segment must not become part of a storage key.
    if errors.is_empty() {
        errors.extend(metadata::validate_path_segments(&attributes.object));
    }
    if !errors.is_empty() {
        let types = served.stored.types;
        let shown = if name.is_empty() { metadata::text(&attributes.object, "generateName") } else { &name };
        return Err(StatusError::invalid(types.group, types.kind, shown, &errors));
    }
    registry.admission.validate(registry, &attributes).await?;
    let object = attributes.object;
    strategy.warnings(&view, None).into_iter().for_each(|w| request.warn(w));
    let types = served.stored.types;
    let unsupported = unsupported::warnings(types.group, types.plural, &object, None);
    unsupported.into_iter().for_each(|w| request.warn(w));
    if versioned {
        return Err(StatusError::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    write_new(registry, served, params, object, prepared, &namespace, &name).await
}

/// Writes the new object in one transaction with its allocations; retries if an allocation conflicts.
async fn write_new(
    registry: &Registry,
    served: &Served,
    params: &WriteParams,
    mut object: Value,
    prepared: Option<Prepared>,
    namespace: &str,
    name: &str,
) -> Result<Arc<Object>, StatusError> {
    let key = served.key(namespace, name);
    let lease = if params.dry_run { None } else { registry.events.lease_for(served).await? };
    for _ in 0..allocators::ATTEMPTS {
        let (extra, allocated) = allocators::plan(registry, served, None, Some(&mut object)).await?;
        let new = match &prepared {
            Some(new) => new.clone(),
            None => {
                super::fill(served, &mut object);
                served.prepare(&object).await?
            }
        };
        if params.dry_run {
            if store::read(registry, served, namespace, name).await?.is_some() {
                return Err(StatusError::already_exists(&served.group_resource(), name));
            }
            return dry_object(served, &object);
        }
        match store::put(registry, served, key.clone(), new, Precondition::NotExists, lease, extra).await {
            Ok(object) => return Ok(object),
            Err(WriteError::Status(error)) => return Err(error),
            Err(WriteError::Conflict(conflict)) if conflict.key == key => {
                return Err(StatusError::already_exists(&served.group_resource(), name));
            }
            Err(WriteError::Conflict(conflict)) => {
                allocators::lost(served, &mut object, &allocated, &conflict.key)?;
            }
        }
    }
    Err(StatusError::internal("no address or port could be allocated"))
}

/// Returns the value as an [`Object`], for typed views.
pub fn typed(served: &Served, value: &Value) -> Result<Arc<Object>, StatusError> {
    let json = serde_json::to_vec(value).map_err(StatusError::internal)?;
    Object::new(json.into(), served.resource.selectable).map(Arc::new).map_err(StatusError::internal)
}

/// Fails if the object does not decode into its type, because validation has not seen fields that do not decode.
pub fn readable(served: &Served, view: &Object) -> Result<(), StatusError> {
    let types = served.resource.types;
    codec::readable(&types, view).map_err(|why| {
        let (kind, version) = (types.kind, types.version);
        StatusError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        ))
    })
}

/// Returns the answer of a dry run: the object as it would have been stored.
pub fn dry_object(served: &Served, value: &Value) -> Result<Arc<Object>, StatusError> {
    typed(served, value)
}
