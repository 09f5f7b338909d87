//! The spec as a whole: group, scope, versions, and what all versions have in common.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::structural::Schema;
use serde_json::Value;

use super::{Options, conversion, names as own_names, schema, version};
use crate::apiextensions::definition::{Definition, Version};

/// The definition in the shape of upstream's internal type, whose paths errors show: fields that are equal in all
/// versions are moved from the versions to the top level.
pub struct Internal<'a> {
    pub object: &'a Value,
    pub definition: &'a Definition,
    pub same_schema: bool,
    pub same_subresources: bool,
    pub same_columns: bool,
    pub same_selectable: bool,
}

impl<'a> Internal<'a> {
    pub fn of(object: &'a Value, definition: &'a Definition) -> Self {
        let versions =
            object.pointer("/spec/versions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let same = |name: &str| {
            let nothing = |v: &&Value| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty);
            let mut fields = versions.iter().map(|v| v.get(name).filter(nothing));
            let first = fields.next();
            first.is_some_and(|first| fields.all(|f| f == first))
        };
        Self {
            object,
            definition,
            same_schema: same("schema"),
            same_subresources: same("subresources"),
            same_columns: same("additionalPrinterColumns"),
            same_selectable: same("selectableFields"),
        }
    }

    fn raw(&self, pointer: &str) -> Value {
        self.object.pointer(pointer).cloned().unwrap_or_default()
    }
}

pub fn validate(internal: &Internal<'_>, options: &Options) -> ErrorList {
    let definition = internal.definition;
    let path = Path::new("spec");
    let mut errors = ErrorList::new();
    group(&definition.group, &path.child("group"), &mut errors);
    scope(&internal.raw("/spec/scope"), &path.child("scope"), &mut errors);
    let structural = options.structural
        || !definition.preserve_unknown_fields
        || definition.versions.iter().filter_map(|v| v.schema.as_ref()).any(|s| s.any(&wants_structure));
    require_schemas(internal, options, &path, &mut errors);
    versions(internal, options, structural, &path, &mut errors);
    required_names(definition, &path.child("names"), &mut errors);
    errors.extend(own_names::validate(&definition.names, &path.child("names")));
    shared(internal, options, structural, &path, &mut errors);
    let at = path.child("conversion");
    if definition.conversion["strategy"] != "None" && definition.preserve_unknown_fields {
        let strategy = definition.conversion["strategy"].clone();
        let why = "must be None if spec.preserveUnknownFields is true";
        errors.push(Error::invalid(&at.child("strategy"), strategy, why));
    }
    errors.extend(conversion::validate(&definition.conversion, options, &at));
    errors
}

fn group(group: &str, path: &Path, errors: &mut ErrorList) {
    let problems = names::dns1123_subdomain(group);
    if group.is_empty() {
        errors.push(Error::required(path, ""));
    } else if !problems.is_empty() {
        errors.push(Error::invalid(path, group, problems.join(",")));
    } else if !group.contains('.') {
        errors.push(Error::invalid(path, group, "should be a domain with at least one dot"));
    }
}

fn scope(scope: &Value, path: &Path, errors: &mut ErrorList) {
    match scope.as_str().unwrap_or("") {
        "" => errors.push(Error::required(path, "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(Error::not_supported(path, other, &["Cluster", "Namespaced"])),
    }
}

/// Returns whether the schema has defaults or Kubernetes' extensions, which need a structural schema.
fn wants_structure(schema: &Schema) -> bool {
    schema.default.is_some()
        || schema.embedded_resource
        || schema.preserve_unknown_fields
        || schema.int_or_string
        || !schema.list_map_keys.is_empty()
        || schema.list_type.is_some()
        || !schema.rules.is_empty()
}

fn require_schemas(internal: &Internal<'_>, options: &Options, path: &Path, errors: &mut ErrorList) {
    let definition = internal.definition;
    for (i, version) in definition.versions.iter().enumerate().filter(|(_, v)| v.schema.is_none()) {
        let at = path.child("versions").index(i).child("schema").child("openAPIV3Schema");
        if options.openapi_schema {
            errors.push(Error::required(&at, ""));
        } else if !definition.preserve_unknown_fields && version.served {
            errors.push(Error::required(&at, "because otherwise all fields are pruned"));
        }
    }
    let defaults = definition.versions.iter().filter_map(|v| v.schema.as_ref());
    if definition.preserve_unknown_fields && defaults.into_iter().any(|s| s.any(&|s| s.default.is_some())) {
        let why = "must be false in order to use defaults in the schema";
        errors.push(Error::invalid(&path.child("preserveUnknownFields"), true, why));
    }
}

fn versions(
    internal: &Internal<'_>,
    options: &Options,
    structural: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    let all = &internal.definition.versions;
    let mut unique = true;
    for (i, version) in all.iter().enumerate() {
        unique &= all[..i].iter().all(|v| v.name != version.name);
        let at = path.child("versions").index(i);
        let problems = names::dns1035_label(&version.name);
        if !problems.is_empty() {
            errors.push(Error::invalid(&at.child("name"), version.name.as_str(), problems.join(",")));
        }
        errors.extend(version::deprecation(version, &at));
        if let (Some(schema), Some(json), false) =
            (&version.schema, &version.schema_json, internal.same_schema)
        {
            let unchanged = options.unchanged.contains(&version.name);
            let demands = schema::Demands { status: version.status, structural, unchanged, options };
            errors.extend(schema::validate(schema, json, &demands, &at.child("schema")));
        }
        if !internal.same_subresources {
            errors.extend(version::subresources(version, &at.child("subresources")));
        }
        if !internal.same_columns {
            errors.extend(version::columns(version, &at.child("additionalPrinterColumns")));
        }
        if !internal.same_selectable {
            errors.extend(version::selectable(version, &at.child("selectableFields")));
        }
    }
    let shown = internal.raw("/spec/versions");
    let at = path.child("versions");
    if !unique {
        errors.push(Error::invalid(&at, shown.clone(), "must contain unique version names"));
    }
    if all.iter().filter(|v| v.storage).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(Error::invalid(&at, shown, why));
    }
}

fn required_names(definition: &Definition, path: &Path, errors: &mut ErrorList) {
    let names = &definition.names;
    for (field, name) in [
        ("plural", &names.plural),
        ("singular", &names.singular),
        ("kind", &names.kind),
        ("listKind", &names.list_kind),
    ] {
        if name.is_empty() {
            errors.push(Error::required(&path.child(field), ""));
        }
    }
}

/// Validates the fields that all versions share, once, at the top level.
fn shared(internal: &Internal<'_>, options: &Options, structural: bool, path: &Path, errors: &mut ErrorList) {
    let versions = &internal.definition.versions;
    let Some(first): Option<&Version> = versions.first() else { return };
    if let (Some(schema), Some(json), true) = (&first.schema, &first.schema_json, internal.same_schema) {
        let status = versions.iter().any(|v| v.status);
        let unchanged = options.unchanged.contains(&first.name);
        let demands = schema::Demands { status, structural, unchanged, options };
        errors.extend(schema::validate(schema, json, &demands, &path.child("validation")));
    }
    if internal.same_subresources {
        errors.extend(version::subresources(first, &path.child("subresources")));
    }
    if internal.same_columns {
        errors.extend(version::columns(first, &path.child("additionalPrinterColumns")));
    }
    if internal.same_selectable {
        errors.extend(version::selectable(first, &path.child("selectableFields")));
    }
}
