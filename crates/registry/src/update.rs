//! Update: PUT of an object or a subresource, and the write path that patches share with it.

use std::sync::Arc;

use bytes::Bytes;
use knarr_api::object::Object;
use knarr_api::prepare;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::status::StatusError;
use knarr_storage::Precondition;
use serde_json::Value;

use super::attributes::{Attributes, Operation};
use super::create::{self, dry_object, readable, typed};
use super::managed::Change;
use super::options::WriteParams;
use super::served::{Prepared, Served};
use super::store::{self, Current, Extra, WriteError};
use super::target::Target;
use super::{Request, fill, managed, metadata, unsupported};
use crate::Registry;
use crate::allocators;

/// How many times a write is attempted when other writes conflict with it.
const ATTEMPTS: usize = 32;

/// Handles PUT to one object. The flag is true if the object was created.
pub async fn update(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
) -> Result<(Arc<Object>, bool), StatusError> {
    let mut body = create::decode_body(request, served, params)?;
    let info = &request.info;
    match_name(&mut body, &info.name)?;
    metadata::match_namespace(served, &mut body, &info.namespace)?;
    let subresource = (!info.subresource.is_empty()).then_some(info.subresource.as_str());
    let target = Target { namespace: &info.namespace, name: &info.name, subresource };
    let change = |_: &Value| Ok(body.clone());
    match modify(registry, request, served, params, target, Change::Update, &change).await {
        Err(error)
            if error.is_not_found()
                && subresource.is_none()
                && served.resource.strategy().allow_create_on_update() =>
        {
            if !metadata::text(&body, "uid").is_empty() {
                let why = format!(
                    "Precondition failed: UID in precondition: {}, UID in object meta: ",
                    metadata::text(&body, "uid")
                );
                return Err(StatusError::conflict(&served.group_resource(), &info.name, &why));
            }
            may_create(registry, request).await?;
            prepare::metadata(&mut body).remove("resourceVersion");
            Ok((create::create_value(registry, request, served, params, body).await?, true))
        }
        other => Ok((other?, false)),
    }
}

/// Checks the permission to create, which PUT and apply need if they create the object.
pub async fn may_create(registry: &Registry, request: &Request) -> Result<(), StatusError> {
    registry.permissions.check_verb(request, "create").await
}

/// Sets an absent name in the body; fails if the body's name differs from that of the URL.
pub fn match_name(body: &mut Value, name: &str) -> Result<(), StatusError> {
    let own = metadata::text(body, "name").to_owned();
    if own.is_empty() {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if own == name {
        return Ok(());
    }
    let why = format!("the name of the object ({own}) does not match the name on the URL ({name})");
    Err(StatusError::bad_request(why))
}

/// Returns the new object for a given current object.
pub type Changer<'a> = &'a (dyn Fn(&Value) -> Result<Value, StatusError> + Send + Sync);

/// The same, for callers that do not need the current object any longer.
pub type RawChanger<'a> = &'a (dyn Fn(Value) -> Result<Value, StatusError> + Send + Sync);

/// Reads, changes, validates and writes an object; retries if another write conflicts.
#[allow(clippy::too_many_arguments, reason = "the one path that every kind of update takes")]
pub async fn modify(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
    target: Target<'_>,
    how: Change,
    change: Changer<'_>,
) -> Result<Arc<Object>, StatusError> {
    for _ in 0..ATTEMPTS {
        let Some(current) = store::read(registry, served, target.namespace, target.name).await? else {
            return Err(served.not_found(target.name));
        };
        let old = current.value()?;
        let new = change(&old)?;
        let new = prepare_update(registry, request, served, params, target, how, new, &old, &current.object)
            .await?;
        match commit(registry, served, params, target, &current, &old, new).await {
            Ok(object) => return Ok(object),
            Err(WriteError::Status(error)) => return Err(error),
            Err(WriteError::Conflict(_)) => {}
        }
    }
    Err(StatusError::modified(&served.group_resource(), target.name))
}

#[allow(clippy::too_many_arguments, reason = "one step of `modify`")]
async fn prepare_update(
    registry: &Registry,
    request: &Request,
    served: &Served,
    params: &WriteParams,
    target: Target<'_>,
    how: Change,
    mut new: Value,
    old: &Value,
    before: &Object,
) -> Result<Value, StatusError> {
    let strategy = served.resource.strategy();
    check_preconditions(served, target.name, &new, old, request.info.verb == "patch")?;
    metadata::carry_over(&mut new, old);
    let dropped = knarr_api::dropped::drop_fields(served.resource.types, &mut new);
    dropped.into_iter().for_each(|w| request.warn(w));
    served.resource.default(&mut new, Some(old));
    strategy.prepare_for_update(&mut new, old, target.subresource);
    // Fields set by admission are not recorded in managedFields.
    managed::updated(served, params, target.subresource, how, &mut new, old, registry.clock.now());
    let place = (target.namespace, target.name, target.subresource.unwrap_or(""));
    let mut attributes = Attributes::new(request, served, Operation::Update, place, new, params.dry_run);
    attributes.old = Some(old);
    registry.admission.mutate(registry, &mut attributes).await?;
    strategy.prepare_for_update(&mut attributes.object, old, target.subresource);
    registry.admission.complete(registry, &mut attributes);
    let standard = metadata::wants_standard_finalizers(served);
    let mut errors = metadata::validate_update(&attributes.object, old, standard);
    let after = typed(served, &attributes.object)?;
    errors.extend(strategy.validate_update(&after, before, target.subresource));
    readable(served, &after)?;
    if let Some(why) = before.unreadable() {
        // Immutable fields could not be compared with an old object that does not decode.
        let name = before.name();
        return Err(StatusError::internal(format!("stored object {name:?} cannot be read: {why}")));
    }
    if !errors.is_empty() {
        let types = served.stored.types;
        return Err(StatusError::invalid(types.group, types.kind, target.name, &errors));
    }
    registry.admission.validate(registry, &attributes).await?;
    strategy.warnings(&after, Some(before)).into_iter().for_each(|w| request.warn(w));
    let types = served.stored.types;
    let unsupported = unsupported::warnings(types.group, types.plural, &attributes.object, Some(old));
    unsupported.into_iter().for_each(|w| request.warn(w));
    Ok(attributes.object)
}

/// Checks the resourceVersion (optimistic locking) and the uid. A patch that changes the uid is refused as a change
/// of an immutable field.
fn check_preconditions(
    served: &Served,
    name: &str,
    new: &Value,
    old: &Value,
    patch: bool,
) -> Result<(), StatusError> {
    let version = metadata::text(new, "resourceVersion");
    let unset = version.is_empty() || version == "0";
    if unset && !served.resource.strategy().allow_unconditional_update() {
        let mut errors = ErrorList::new();
        let path = Path::new("metadata").child("resourceVersion");
        errors.push(Error::invalid(&path, 0, "must be specified for an update"));
        let types = served.resource.types;
        // Unlike other errors, this one names the resource instead of the kind.
        return Err(StatusError::invalid(types.group, types.plural, name, &errors));
    }
    if !unset && version != metadata::text(old, "resourceVersion") {
        return Err(StatusError::modified(&served.group_resource(), name));
    }
    let (uid, existing) = (metadata::text(new, "uid"), metadata::text(old, "uid"));
    if !uid.is_empty() && uid != existing && patch {
        let mut errors = ErrorList::new();
        errors.push(Error::invalid(&Path::new("metadata").child("uid"), uid, "field is immutable"));
        let types = served.resource.types;
        return Err(StatusError::invalid(types.group, types.kind, name, &errors));
    }
    if !uid.is_empty() && uid != existing {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {existing}");
        return Err(StatusError::conflict(&served.group_resource(), name, &why));
    }
    Ok(())
}

async fn commit(
    registry: &Registry,
    served: &Served,
    params: &WriteParams,
    target: Target<'_>,
    current: &Current,
    old: &Value,
    mut new: Value,
) -> Result<Arc<Object>, WriteError> {
    prepare::metadata(&mut new).remove("resourceVersion");
    let key = served.key(target.namespace, target.name);
    for _ in 0..allocators::ATTEMPTS {
        let (extra, allocated) = allocators::plan(registry, served, Some(old), Some(&mut new)).await?;
        fill(served, &mut new);
        let gone = super::delete::is_finished(&new);
        if params.dry_run {
            let version = metadata::text(old, "resourceVersion").to_owned();
            prepare::metadata(&mut new).insert("resourceVersion".into(), version.into());
            return Ok(dry_object(served, &new)?);
        }
        let prepared = served.prepare(&new).await?;
        if !gone && prepared.stored == current.stored {
            return Ok(Arc::clone(&current.object));
        }
        let done = if gone {
            let (extra, _) = allocators::plan(registry, served, Some(old), None).await?;
            remove(registry, served, key.clone(), current, &prepared, extra).await
        } else {
            let condition = Precondition::ModRevision(current.revision);
            store::put(registry, served, key.clone(), prepared, condition, current.lease, extra).await
        };
        match done {
            Ok(object) => return Ok(object),
            Err(WriteError::Conflict(conflict)) if conflict.key != key => {
                allocators::lost(served, &mut new, &allocated, &conflict.key)?;
            }
            Err(other) => return Err(other),
        }
    }
    Err(WriteError::Status(StatusError::internal("no address or port could be allocated")))
}

/// Removes an object whose last finalizer the update removed. Returns the object as the update left it.
async fn remove(
    registry: &Registry,
    served: &Served,
    key: Bytes,
    current: &Current,
    last: &Prepared,
    extra: Extra,
) -> Result<Arc<Object>, WriteError> {
    let revision = store::remove(registry, key, current.revision, extra).await?;
    Ok(served.object(&last.stored, revision).await?)
}

/// Reads, changes and writes an object without its strategy, for subresources with rules of their own.
pub async fn modify_raw(
    registry: &Registry,
    served: &Served,
    namespace: &str,
    name: &str,
    dry_run: bool,
    change: RawChanger<'_>,
) -> Result<Arc<Object>, StatusError> {
    for _ in 0..ATTEMPTS {
        let Some(current) = store::read(registry, served, namespace, name).await? else {
            return Err(served.not_found(name));
        };
        let mut new = change(current.value()?)?;
        if dry_run {
            return dry_object(served, &new);
        }
        prepare::metadata(&mut new).remove("resourceVersion");
        fill(served, &mut new);
        let prepared = served.prepare(&new).await?;
        if prepared.stored == current.stored {
            return Ok(current.object);
        }
        let condition = Precondition::ModRevision(current.revision);
        let key = served.key(namespace, name);
        let extra = Extra::default();
        let done = if super::delete::is_finished(&new) {
            remove(registry, served, key, &current, &prepared, extra).await
        } else {
            store::put(registry, served, key, prepared, condition, current.lease, extra).await
        };
        match done {
            Ok(object) => return Ok(object),
            Err(WriteError::Status(error)) => return Err(error),
            Err(WriteError::Conflict(_)) => {}
        }
    }
    Err(StatusError::modified(&served.group_resource(), name))
}
