//! One version: deprecation, subresources, columns, selectable fields.

use std::collections::BTreeSet;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::structural::Schema;

use crate::apiextensions::definition::Version;

const MAX_SELECTABLE: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];

pub fn deprecation(version: &Version, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let Some(warning) = &version.deprecation_warning else { return errors };
    let mut wrong = |why: String| {
        errors.push(Error::invalid(&path.child("deprecationWarning"), warning.as_str(), why));
    };
    if !version.deprecated {
        wrong("can only be set for deprecated versions".to_owned());
        return errors;
    }
    if warning.len() > 256 {
        wrong("must be <= 256 characters long".to_owned());
    }
    if warning.is_empty() {
        wrong("must not be an empty string".to_owned());
    }
    let odd = |c: char| c.is_control() || (c.is_whitespace() && c != ' ');
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| odd(*c)) {
        wrong(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {i}"
        ));
    }
    errors
}

pub fn subresources(version: &Version, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let Some(scale) = &version.scale else { return errors };
    for (field, value, prefix) in [
        ("scale.specReplicasPath", &scale.spec_replicas_path, "spec"),
        ("scale.statusReplicasPath", &scale.status_replicas_path, "status"),
    ] {
        let at = path.child(field);
        if value.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if !value.starts_with('.') {
            errors.push(Error::invalid(&at, value.as_str(), "must be a simple json path starting with ."));
        } else if !value.starts_with(&format!(".{prefix}.")) {
            errors.push(Error::invalid(
                &at,
                value.as_str(),
                format!("should be a json path under .{prefix}"),
            ));
        }
    }
    if let Some(selector) = &scale.label_selector_path {
        let at = path.child("scale.labelSelectorPath");
        if !selector.starts_with('.') {
            errors.push(Error::invalid(&at, selector.as_str(), "must be a simple json path starting with ."));
        } else if !selector.starts_with(".spec.") && !selector.starts_with(".status.") {
            let why = "should be a json path under either .spec or .status";
            errors.push(Error::invalid(&at, selector.as_str(), why));
        }
    }
    errors
}

pub fn columns(version: &Version, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (i, column) in version.columns.iter().enumerate() {
        let at = path.index(i);
        let types = format!("must be one of {}", COLUMN_TYPES.join(","));
        if column.name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        }
        if column.ty.is_empty() {
            errors.push(Error::required(&at.child("type"), types));
        } else if !COLUMN_TYPES.contains(&column.ty.as_str()) {
            errors.push(Error::invalid(&at.child("type"), column.ty.as_str(), types));
        }
        if !column.format.is_empty() && !COLUMN_FORMATS.contains(&column.format.as_str()) {
            let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(Error::invalid(&at.child("format"), column.format.as_str(), why));
        }
        let path = at.child("JSONPath");
        if column.json_path.is_empty() {
            errors.push(Error::required(&path, ""));
        } else if !column.json_path.starts_with('.') {
            let why = "must be a simple json path starting with .";
            errors.push(Error::invalid(&path, column.json_path.as_str(), why));
        }
    }
    errors
}

pub fn selectable(version: &Version, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if version.selectable_fields.is_empty() {
        return errors;
    }
    let Some(schema) = &version.schema else {
        let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
        errors.push(Error::invalid(path, "", why));
        return errors;
    };
    let mut seen = BTreeSet::new();
    for (i, json_path) in version.selectable_fields.iter().enumerate() {
        let at = path.index(i).child("jsonPath");
        if json_path.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        let found = match field_path(json_path, schema, false) {
            Ok(found) => found,
            Err(why) => {
                let why = format!("is an invalid path: {why}");
                errors.push(Error::invalid(&at, json_path.as_str(), why));
                continue;
            }
        };
        if json_path.starts_with(".metadata") && matches!(json_path.as_bytes().get(9), None | Some(b'.')) {
            errors.push(Error::invalid(&at, json_path.as_str(), "must not point to fields in metadata"));
        }
        if !matches!(found.ty.as_str(), "string" | "boolean" | "integer") {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings \
                       with formats are allowed.";
            errors.push(Error::invalid(&at, json_path.as_str(), why));
        }
        if !seen.insert(json_path.clone()) {
            errors.push(Error::duplicate(&at, json_path.as_str()));
        }
    }
    if seen.len() > MAX_SELECTABLE {
        errors.push(Error::too_many(path, seen.len(), MAX_SELECTABLE));
    }
    errors
}

/// Returns the schema of a path such as `.spec.foo['bar']`.
pub fn field_path<'s>(path: &str, schema: &'s Schema, brackets: bool) -> Result<&'s Schema, String> {
    const END: &str = "unexpected end of JSON path";
    let step = |schema: &'s Schema, name: &str| -> Result<&'s Schema, String> {
        let below = if schema.properties.is_empty() {
            schema.additional_schema()
        } else {
            schema.properties.get(name)
        };
        below.ok_or_else(|| "does not refer to a valid field".to_owned())
    };
    let (mut at, mut rest) = (schema, path);
    while let Some(first) = rest.chars().next() {
        match first {
            '.' => {
                let name = &rest[1..];
                let end = name.find(['.', '[', ']']).unwrap_or(name.len());
                if name.is_empty() {
                    return Err(END.to_owned());
                }
                at = step(at, &name[..end])?;
                rest = &name[end..];
            }
            '[' if !brackets => return Err("array notation is not allowed".to_owned()),
            '[' => {
                let inner = &rest[1..];
                let quoted = inner.strip_prefix('\'').and_then(|q| {
                    let end = (0..q.len()).find(|i| q[*i..].starts_with('\'') && !q[..*i].ends_with('\\'))?;
                    Some((&q[..end], &q[end + 1..]))
                });
                let Some((name, after)) = quoted else {
                    let end = inner.find(['.', '[', ']']).unwrap_or(inner.len());
                    if inner.is_empty() {
                        return Err(END.to_owned());
                    }
                    return Err(format!("expected single quoted string but got {}", &inner[..end.max(1)]));
                };
                at = step(at, &name.replace("\\'", "'").replace("\\\\", "\\"))?;
                rest = after.strip_prefix(']').ok_or_else(|| match after.chars().next() {
                    None => END.to_owned(),
                    Some(c) => format!("expected ] but got {c}"),
                })?;
            }
            _ => {
                let end = rest.find(['.', '[', ']']).unwrap_or(rest.len()).max(1);
                return Err(format!("expected [ or . but got: {}", rest.get(..end).unwrap_or(rest)));
            }
        }
    }
    Ok(at)
}
