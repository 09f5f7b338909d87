//! Delete: preconditions, grace periods, finalizers and the removal of an object.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::object::Object;
use knarr_api::prepare;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use knarr_storage::Precondition;
use serde_json::{Value, json};

use super::attributes::{Attributes, Operation};
use super::options::dry_run;
use super::served::{CORRUPT, Served};
use super::store::{self, Current, WriteError};
use super::{Request, fill, metadata};
use crate::Registry;
use crate::allocators;
use knarr_wire::annotations::annotate;
use knarr_wire::input;
use knarr_wire::query::Query;

const ATTEMPTS: usize = 32;
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The result of a deletion.
pub struct Deleted {
    pub object: Arc<Object>,
    /// Whether the object has been removed from the store, rather than waiting for its grace period or finalizers.
    pub gone: bool,
    /// Whether the object could not be decoded; `object` then has only its name.
    pub unreadable: bool,
}

/// How to delete an object: the options, and whether it is a dry run.
pub struct How {
    pub options: DeleteOptions,
    pub dry_run: bool,
    /// Whether the object already passed admission as another operation, such as an eviction.
    pub admitted: bool,
}

const IGNORE_READ_ERRORS: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// Returns the conflict error for unsafe deletion of an object that decodes.
fn decodable(served: &Served, namespace: &str, name: &str) -> StatusError {
    let resource = served.group_resource();
    let key = [resource.to_string().as_str(), namespace, name]
        .iter()
        .filter(|part| !part.is_empty())
        .fold("/registry".to_owned(), |key, part| format!("{key}/{part}"));
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is \
         not allowed because the object is decodable from storage"
    );
    StatusError::conflict(&resource, name, &why)
}

/// Returns the error for a collection of which not all objects could be read and deleted.
pub fn unread(served: &Served, key: &str) -> StatusError {
    let resource = served.group_resource();
    let prefix = served.prefix(None);
    let why =
        format!("failed to read one or more {resource} from the storage: {CORRUPT}, Key: {prefix}{key}");
    StatusError::new(500, "StorageReadError", why)
}

/// Refuses unsafe deletion (`ignoreStoreReadErrorWithClusterBreakingPotential`) of whole collections.
pub fn check_collection(how: &How) -> Result<(), StatusError> {
    if how.options.ignore_store_read_error_with_cluster_breaking_potential != Some(true) {
        return Ok(());
    }
    let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
    let mut errors = ErrorList::new();
    errors.push(Error::invalid(&Path::new(IGNORE_READ_ERRORS), true, why));
    Err(StatusError::invalid("meta.k8s.io", "DeleteOptions", "", &errors))
}

/// Reads the options from the body, or from the query if the body is empty.
pub fn options(request: &Request) -> Result<How, StatusError> {
    let options = if request.body.is_empty() {
        let query = &request.query;
        DeleteOptions {
            grace_period_seconds: query.number("gracePeriodSeconds")?,
            orphan_dependents: query.optional_flag("orphanDependents"),
            propagation_policy: query.non_empty("propagationPolicy").map(str::to_owned),
            preconditions: preconditions_of(query),
            dry_run: Some(query.all("dryRun").map(str::to_owned).collect()),
            ignore_store_read_error_with_cluster_breaking_potential: query.optional_flag(IGNORE_READ_ERRORS),
            ..DeleteOptions::default()
        }
    } else {
        let options = input::decode_options(&request.headers, &request.body, DELETE_OPTIONS)?;
        are_options(&options)?;
        serde_json::from_value(match options {
            Value::Null => json!({}),
            options => options,
        })
        .map_err(|e| StatusError::bad_request(e.to_string()))?
    };
    checked(options)
}

/// Reads preconditions from the query. Source: `Convert_url_Values_To_v1_DeleteOptions` of
/// `k8s.io/apimachinery/pkg/apis/meta/v1`.
fn preconditions_of(query: &Query) -> Option<Preconditions> {
    let parameter = |name| query.non_empty(name).map(str::to_owned);
    let wanted = Preconditions { uid: parameter("uid"), resource_version: parameter("resourceVersion") };
    (wanted != Preconditions::default()).then_some(wanted)
}

/// Validates the options and normalizes the grace period.
pub fn checked(mut options: DeleteOptions) -> Result<How, StatusError> {
    let mut errors = ErrorList::new();
    if options.orphan_dependents.is_some() && options.propagation_policy.is_some() {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        let path = Path::new("propagationPolicy");
        errors.push(Error::invalid(&path, options.propagation_policy.clone(), why));
    }
    if let Some(policy) = options.propagation_policy.as_deref()
        && !matches!(policy, "Foreground" | "Background" | "Orphan")
    {
        let path = Path::new("propagationPolicy");
        errors.push(Error::not_supported(&path, policy, &["Foreground", "Background", "Orphan", "nil"]));
    }
    errors.extend(exclusive(&options));
    let dry = dry_run(options.dry_run.iter().flatten().map(String::as_str), &mut errors);
    if !errors.is_empty() {
        return Err(StatusError::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
    }
    if options.grace_period_seconds.is_some_and(|g| g < 0) {
        options.grace_period_seconds = Some(1);
    }
    Ok(How { options, dry_run: dry, admitted: false })
}

/// Returns an error for each option that cannot be combined with unsafe deletion.
fn exclusive(options: &DeleteOptions) -> ErrorList {
    let mut errors = ErrorList::new();
    if options.ignore_store_read_error_with_cluster_breaking_potential != Some(true) {
        return errors;
    }
    let others = [
        (options.propagation_policy.is_some(), "propagationPolicy"),
        (options.orphan_dependents.is_some(), "orphanDependents"),
        (options.grace_period_seconds.is_some(), "gracePeriodSeconds"),
        (options.preconditions.is_some(), "preconditions"),
    ];
    for (_, other) in others.into_iter().filter(|(set, _)| *set) {
        let why = format!("cannot be set together with .{other}");
        errors.push(Error::invalid(&Path::new(IGNORE_READ_ERRORS), true, &why));
    }
    errors
}

/// Refuses a body of another kind than DeleteOptions. The version is not checked: every group has DeleteOptions.
fn are_options(body: &Value) -> Result<(), StatusError> {
    let text = |field: &str| body[field].as_str().unwrap_or("");
    let (kind, version) = (text("kind"), text("apiVersion"));
    let found = match body {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null | Value::Object(_) if kind.is_empty() || kind == "DeleteOptions" => return Ok(()),
        Value::Null | Value::Object(_) => {
            return Err(StatusError::bad_request(format!(
                "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"pkg/runtime/scheme.go:111\""
            )));
        }
    };
    Err(StatusError::bad_request(format!(
        "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type struct {{ \
         APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
    )))
}

/// Deletes one object, or starts its deletion.
pub async fn delete(
    registry: &Registry,
    request: &Request,
    served: &Served,
    namespace: &str,
    name: &str,
    how: &How,
) -> Result<Deleted, StatusError> {
    warn(request, served, how);
    if how.options.ignore_store_read_error_with_cluster_breaking_potential == Some(true) {
        // The attempt is annotated, whatever its result. Source: upstream's delete handler.
        annotate("apiserver.k8s.io/unsafe-delete-ignore-read-error", "");
        return unsafe_delete(registry, request, served, namespace, name, how.dry_run).await;
    }
    for _ in 0..ATTEMPTS {
        let Some(current) = store::read(registry, served, namespace, name).await? else {
            return Err(served.not_found(name));
        };
        let old = current.value()?;
        preconditions(served, name, &how.options, &old)?;
        if !how.admitted {
            admit(registry, request, served, (namespace, name), how, &old).await?;
        }
        let fate = fate(served, &current.object, &old, &how.options, registry.clock.now());
        match carry_out(registry, served, namespace, name, how.dry_run, &current, &old, fate).await {
            Ok(deleted) => return Ok(deleted),
            Err(WriteError::Status(error)) => return Err(error),
            Err(WriteError::Conflict(_)) => {}
        }
    }
    Err(StatusError::modified(&served.group_resource(), name))
}

/// Deletes an object that cannot be decoded, without admission, preconditions and finalizers: all of them need the
/// object.
async fn unsafe_delete(
    registry: &Registry,
    request: &Request,
    served: &Served,
    namespace: &str,
    name: &str,
    dry_run: bool,
) -> Result<Deleted, StatusError> {
    registry.permissions.check_verb(request, "unsafe-delete-ignore-read-errors").await?;
    for _ in 0..ATTEMPTS {
        let Some(found) = store::unreadable(registry, served, namespace, name).await? else {
            return Err(served.not_found(name));
        };
        let Some(revision) = found else { return Err(decodable(served, namespace, name)) };
        if !dry_run {
            let extra = store::Extra::default();
            match store::remove(registry, served.key(namespace, name), revision, extra).await {
                Ok(_) => {
                    tracing::warn!(resource = %served.group_resource(), namespace, name, "a damaged object was deleted");
                }
                Err(WriteError::Conflict(_)) => continue,
                Err(WriteError::Status(error)) => return Err(error),
            }
        }
        let object = json!({"metadata": {"name": name, "namespace": namespace}});
        return Ok(Deleted { object: super::create::typed(served, &object)?, gone: true, unreadable: true });
    }
    Err(StatusError::modified(&served.group_resource(), name))
}

/// Adds the warning of the resource's strategy if the request sets no propagation policy, for example that pods of
/// Jobs are orphaned.
pub fn warn(request: &Request, served: &Served, how: &How) {
    if how.options.propagation_policy.is_none() && how.options.orphan_dependents.is_none() {
        served.resource.strategy().deletion_warning().into_iter().for_each(|w| request.warn(w.to_owned()));
    }
}

pub fn preconditions(
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    old: &Value,
) -> Result<(), StatusError> {
    let Some(wanted) = &options.preconditions else { return Ok(()) };
    let checks = [
        ("UID", &wanted.uid, "uid", "deleted and then recreated"),
        ("ResourceVersion", &wanted.resource_version, "resourceVersion", "modified"),
    ];
    for (what, wanted, field, fate) in checks {
        let existing = metadata::text(old, field);
        if let Some(wanted) = wanted
            && wanted != existing
        {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({existing}). The object might have been {fate}"
            );
            let types = &served.resource.types;
            let kind = GroupResource::new(types.group, types.kind);
            return Err(StatusError::conflict(&kind, name, &why));
        }
    }
    Ok(())
}

async fn admit(
    registry: &Registry,
    request: &Request,
    served: &Served,
    (namespace, name): (&str, &str),
    how: &How,
    old: &Value,
) -> Result<(), StatusError> {
    let place = (namespace, name, "");
    let mut attributes = Attributes::new(request, served, Operation::Delete, place, Value::Null, how.dry_run);
    attributes.old = Some(old);
    if let (Some(options), Ok(Value::Object(given))) =
        (attributes.options.as_object_mut(), serde_json::to_value(&how.options))
    {
        options.extend(given);
    }
    registry.admit(&mut attributes).await.map(|_| ())
}

/// The effect of a deletion on an object.
#[derive(Debug, PartialEq)]
enum Fate {
    /// The object is removed at once and answered in this form.
    Gone(Value),
    /// The object is marked as being deleted, and waits for its grace period or finalizers.
    Marked(Value),
    /// The object is being deleted already; nothing changes.
    Pending,
}

fn fate(
    served: &Served,
    object: &Object,
    old: &Value,
    options: &DeleteOptions,
    now: jiff::Timestamp,
) -> Fate {
    let mut new = old.clone();
    let grace = match graceful(served, object, old, &mut new, options, now) {
        Graceful::Pending => return Fate::Pending,
        Graceful::No => None,
        Graceful::After(seconds) => Some(seconds),
    };
    set_finalizers(&mut new, served, options);
    if !metadata::is_deleting(old) {
        served.resource.strategy().prepare_for_delete(&mut new, &metadata::rfc3339(now));
    }
    let waits = !metadata::finalizers(&new).is_empty() || !namespace_finalizers(&new).is_empty();
    match grace {
        Some(seconds) if seconds > 0 || waits => Fate::Marked(new),
        None if waits => {
            let meta = prepare::metadata(&mut new);
            if meta.get("deletionTimestamp").is_none_or(Value::is_null) {
                meta.insert("deletionTimestamp".into(), metadata::rfc3339(now).into());
                bump(&mut new);
            }
            if new["kind"] == "CustomResourceDefinition" {
                // A definition waits for its objects, which have grace periods of their own.
            } else if is_namespace(&new) {
                new["status"]["phase"] = "Terminating".into();
            } else {
                prepare::metadata(&mut new).insert("deletionGracePeriodSeconds".into(), 0.into());
            }
            Fate::Marked(new)
        }
        _ => Fate::Gone(new),
    }
}

enum Graceful {
    No,
    After(i64),
    Pending,
}

/// Sets the grace period of an object that has one, or shortens it.
fn graceful(
    served: &Served,
    object: &Object,
    old: &Value,
    new: &mut Value,
    options: &DeleteOptions,
    now: jiff::Timestamp,
) -> Graceful {
    if metadata::is_deleting(old) {
        let held = old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        if held == 0 {
            return Graceful::No;
        }
        return match options.grace_period_seconds {
            Some(wanted) if wanted < held => {
                let at: Option<jiff::Timestamp> = metadata::text(old, "deletionTimestamp").parse().ok();
                let at = at.unwrap_or(now) + jiff::SignedDuration::from_secs(wanted - held);
                let meta = prepare::metadata(new);
                meta.insert("deletionTimestamp".into(), metadata::rfc3339(at).into());
                meta.insert("deletionGracePeriodSeconds".into(), wanted.into());
                Graceful::After(wanted)
            }
            _ => Graceful::Pending,
        };
    }
    match served.resource.strategy().grace_period_seconds(object, options) {
        None => Graceful::No,
        Some(seconds) => {
            // Far longer than any real grace period, and far below the maximum of a timestamp.
            let bounded = seconds.clamp(0, 100 * 365 * 86400);
            let at = now + jiff::SignedDuration::from_secs(bounded);
            let meta = prepare::metadata(new);
            meta.insert("deletionTimestamp".into(), metadata::rfc3339(at).into());
            meta.insert("deletionGracePeriodSeconds".into(), seconds.into());
            bump(new);
            Graceful::After(seconds)
        }
    }
}

fn bump(object: &mut Value) {
    let generation = prepare::generation(object);
    if generation > 0 {
        prepare::set_generation(object, generation + 1);
    }
}

/// Sets or removes the garbage collector's finalizers, according to the propagation policy.
fn set_finalizers(object: &mut Value, served: &Served, options: &DeleteOptions) {
    let existing: Vec<String> = metadata::finalizers(object).into_iter().map(str::to_owned).collect();
    let has = |f: &str| existing.iter().any(|e| e == f);
    let by_default = if has(ORPHAN) || has(FOREGROUND) {
        (has(ORPHAN), has(FOREGROUND))
    } else {
        (served.resource.strategy().orphans_by_default(), false)
    };
    let (orphan, foreground) = match (options.orphan_dependents, options.propagation_policy.as_deref()) {
        (Some(orphan), _) => (orphan, false),
        (None, Some(policy)) => (policy == "Orphan", policy == "Foreground"),
        (None, None) => by_default,
    };
    let mut wanted: Vec<String> =
        existing.iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).cloned().collect();
    if orphan {
        wanted.push(ORPHAN.into());
    }
    if foreground {
        wanted.push(FOREGROUND.into());
    }
    let same = wanted.len() == existing.len() && wanted.iter().all(|f| existing.contains(f));
    if same {
        return;
    }
    if wanted.is_empty() {
        prepare::metadata(object).remove("finalizers");
    } else {
        prepare::metadata(object).insert("finalizers".into(), json!(wanted));
    }
}

fn is_namespace(object: &Value) -> bool {
    object["kind"] == "Namespace" && object["apiVersion"] == "v1"
}

/// Returns the finalizers in a namespace's spec, which delay its deletion as those in its metadata do.
fn namespace_finalizers(object: &Value) -> Vec<&str> {
    if !is_namespace(object) {
        return Vec::new();
    }
    let list = object.pointer("/spec/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns whether nothing delays the removal of an object any longer: it is being deleted, its grace period is 0 and
/// it has no finalizers.
pub fn is_finished(object: &Value) -> bool {
    let grace = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    metadata::is_deleting(object)
        && grace == 0
        && metadata::finalizers(object).is_empty()
        && namespace_finalizers(object).is_empty()
}

#[allow(clippy::too_many_arguments, reason = "one step of `delete`")]
async fn carry_out(
    registry: &Registry,
    served: &Served,
    namespace: &str,
    name: &str,
    dry_run: bool,
    current: &Current,
    old: &Value,
    fate: Fate,
) -> Result<Deleted, WriteError> {
    let key = served.key(namespace, name);
    let unchanged = |gone| Ok(Deleted { object: Arc::clone(&current.object), gone, unreadable: false });
    match fate {
        Fate::Pending => unchanged(false),
        Fate::Gone(new) if dry_run => {
            Ok(Deleted { object: super::create::typed(served, &new)?, gone: true, unreadable: false })
        }
        Fate::Gone(new) => {
            let (extra, _) = allocators::plan(registry, served, Some(old), None).await?;
            let revision = store::remove(registry, key, current.revision, extra).await?;
            let object = if new == *old {
                served.object(&current.stored, revision).await?
            } else {
                let mut new = new;
                let version = revision.to_string();
                prepare::metadata(&mut new).insert("resourceVersion".into(), version.into());
                super::create::typed(served, &new)?
            };
            Ok(Deleted { object, gone: true, unreadable: false })
        }
        Fate::Marked(new) if new == *old => unchanged(false),
        Fate::Marked(new) if dry_run => {
            Ok(Deleted { object: super::create::typed(served, &new)?, gone: false, unreadable: false })
        }
        Fate::Marked(mut new) => {
            prepare::metadata(&mut new).remove("resourceVersion");
            fill(served, &mut new);
            let new = served.prepare(&new).await?;
            let condition = Precondition::ModRevision(current.revision);
            let extra = store::Extra::default();
            let object = store::put(registry, served, key, new, condition, current.lease, extra).await?;
            Ok(Deleted { object, gone: false, unreadable: false })
        }
    }
}

/// Resources whose deletion answers the deleted object; deletions of other resources answer a Status.
const ANSWERED_WHOLE: [(&str, &[&str]); 3] = [
    (
        "",
        &[
            "namespaces",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "resourcequotas",
            "serviceaccounts",
            "services",
        ],
    ),
    ("resource.k8s.io", &["deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"]),
    (
        "storage.k8s.io",
        &["csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses"],
    ),
];

/// Returns the Status that a successful deletion answers, or `None` if the answer is the object.
pub fn success(served: &Served, deleted: &Deleted) -> Option<Value> {
    let types = served.resource.types;
    let mut whole = ANSWERED_WHOLE.iter().filter(|(group, _)| *group == types.group);
    if !deleted.gone || !deleted.unreadable && whole.any(|(_, all)| all.contains(&types.plural)) {
        return None;
    }
    if deleted.unreadable {
        return Some(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}));
    }
    let mut details =
        json!({"name": deleted.object.name(), "kind": types.plural, "uid": deleted.object.uid()});
    if !types.group.is_empty() {
        details["group"] = types.group.into();
    }
    Some(json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    }))
}
