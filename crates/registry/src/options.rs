//! Parses and validates the query parameters of reads and writes.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::selector::{FieldSelector, FieldTerm, Selector};
use knarr_apimachinery::status::StatusError;

use super::Request;
use super::served::Served;
use crate::cache::Selection;
use knarr_wire::input::content_type;
use knarr_wire::query::Query;

/// Parameters of a list or watch.
pub struct ListParams {
    pub selection: Selection,
    /// The part of the selection that can be evaluated only after conversion to the requested version.
    pub shown: Option<Selection>,
    pub limit: usize,
    pub continue_token: Option<String>,
    pub version: Version,
    pub version_match: Option<VersionMatch>,
    pub allow_bookmarks: bool,
    pub timeout_seconds: Option<u64>,
    pub send_initial_events: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionMatch {
    Exact,
    NotOlderThan,
}

/// The `resourceVersion` parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The most recent state.
    Unset,
    /// `0`: any state.
    Any,
    At(u64),
}

impl Version {
    pub fn parse(text: Option<&str>) -> Result<Self, StatusError> {
        match text.unwrap_or("") {
            "" => Ok(Self::Unset),
            "0" => Ok(Self::Any),
            text => text.parse().map(Self::At).map_err(|_| {
                let mut errors = ErrorList::new();
                let why = "strconv.ParseUint: parsing ".to_owned() + &format!("{text:?}: invalid syntax");
                errors.push(Error::invalid(&Path::new("resourceVersion"), text, why));
                StatusError::bad_request(errors.to_string())
            }),
        }
    }
}

impl ListParams {
    /// Parses and validates the parameters. `name` is the one object that the request was authorized for, empty if it
    /// was authorized for all.
    pub fn parse(served: &Served, name: &str, query: &Query, watch: bool) -> Result<Self, StatusError> {
        check(query, watch)?;
        let version_match = match query.non_empty("resourceVersionMatch") {
            Some("Exact") => Some(VersionMatch::Exact),
            Some("NotOlderThan") => Some(VersionMatch::NotOlderThan),
            _ => None,
        };
        let wrong_version = |e: StatusError| match watch {
            true => StatusError::new(500, "", e.message()),
            false => StatusError::bad_request(format!("invalid resource version: {}", e.message())),
        };
        let mut selection = selection(served, query)?;
        restrict_to(name, &mut selection.fields)?;
        let (selection, shown) = in_both_forms(served, selection)?;
        Ok(Self {
            selection,
            shown,
            limit: usize::try_from(query.number("limit")?.unwrap_or(0)).unwrap_or(0),
            continue_token: query.non_empty("continue").map(str::to_owned),
            version: Version::parse(query.get("resourceVersion")).map_err(wrong_version)?,
            version_match,
            allow_bookmarks: query.flag("allowWatchBookmarks"),
            timeout_seconds: query
                .number("timeoutSeconds")?
                .and_then(|n| u64::try_from(n).ok())
                .filter(|n| *n > 0),
            send_initial_events: query
                .non_empty("sendInitialEvents")
                .map(|_| query.flag("sendInitialEvents")),
        })
    }
}

/// Restricts the selection to the object of this name; fails if the field selector asks for another name.
fn restrict_to(name: &str, fields: &mut FieldSelector) -> Result<(), StatusError> {
    const NAME: &str = "metadata.name";
    if name.is_empty() {
        return Ok(());
    }
    if fields.is_everything() {
        *fields = FieldSelector::equals(NAME, name);
        return Ok(());
    }
    if fields.requires_exact(NAME) == Some(name) {
        return Ok(());
    }
    Err(StatusError::bad_request("fieldSelector metadata.name doesn't match requested name"))
}

/// Checks which parameters may be combined. Reports all errors at once.
///
/// Source: `k8s.io/apimachinery/pkg/apis/meta/internalversion/validation`.
fn check(query: &Query, watch: bool) -> Result<(), StatusError> {
    let mut errors = ErrorList::new();
    let path = Path::new("resourceVersionMatch");
    let matching = query.non_empty("resourceVersionMatch");
    let initial = query.non_empty("sendInitialEvents").is_some();
    let continued = query.non_empty("continue").is_some();
    let mut forbid = |why: &str| errors.push(Error::forbidden(&path, why));
    if watch {
        let newest = matching == Some("NotOlderThan");
        if initial && !newest {
            forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        }
        if matching.is_some() && !initial {
            forbid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
        }
        if let Some(other) = matching.filter(|_| !newest) {
            errors.push(Error::not_supported(&path, other, &["NotOlderThan"]));
        }
        if continued {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            errors.push(Error::forbidden(&path, why));
        }
    } else if let Some(matching) = matching {
        let version = query.non_empty("resourceVersion");
        if version.is_none() {
            forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if continued {
            forbid("resourceVersionMatch is forbidden when continue is provided");
        }
        if matching == "Exact" && version == Some("0") {
            forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            errors.push(Error::not_supported(&path, matching, &["Exact", "NotOlderThan", ""]));
        }
    }
    if !watch && initial {
        let why = "sendInitialEvents is forbidden for list";
        errors.push(Error::forbidden(&Path::new("sendInitialEvents"), why));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(StatusError::invalid("meta.k8s.io", "ListOptions", "", &errors))
}

/// Parses the selectors and converts them to the stored form.
pub fn selection(served: &Served, query: &Query) -> Result<Selection, StatusError> {
    let labels = Selector::parse(query.get("labelSelector").unwrap_or(""))
        .map_err(|e| StatusError::bad_request(e.to_string()))?;
    let text = query.get("fieldSelector").unwrap_or("");
    let fields = FieldSelector::parse(text).map_err(|e| StatusError::bad_request(e.to_string()))?;
    for term in fields.terms() {
        if !served.resource.selects(&term.field) {
            return Err(StatusError::bad_request(unknown_field(served, &term.field)));
        }
    }
    let fields = match served.resource.stored_as {
        None => fields,
        Some(as_) => {
            let renamed: Vec<String> = fields
                .terms()
                .iter()
                .map(|t| {
                    let field = (as_.stored_field)(&t.field).unwrap_or("metadata.name");
                    let operator = if t.negated { "!=" } else { "=" };
                    format!("{field}{operator}{}", escaped(&t.value))
                })
                .collect();
            FieldSelector::parse(&renamed.join(",")).map_err(|e| StatusError::bad_request(e.to_string()))?
        }
    };
    Ok(Selection { resource: served.stored.clone(), labels, fields })
}

/// Splits a selection in two: fields other than metadata of a converted object are only known after conversion.
fn in_both_forms(
    served: &Served,
    mut selection: Selection,
) -> Result<(Selection, Option<Selection>), StatusError> {
    let late = |term: &&FieldTerm| !term.field.starts_with("metadata.");
    if served.shows_as_held() || served.resource.stored_as.is_some() {
        return Ok((selection, None));
    }
    let (late, early): (Vec<_>, Vec<_>) = selection.fields.terms().iter().partition(late);
    if late.is_empty() {
        return Ok((selection, None));
    }
    let shown = Selection { fields: of_terms(&late)?, ..Selection::everything(served.resource.clone()) };
    selection.fields = of_terms(&early)?;
    Ok((selection, Some(shown)))
}

fn of_terms(terms: &[&FieldTerm]) -> Result<FieldSelector, StatusError> {
    let text =
        |t: &&FieldTerm| format!("{}{}{}", t.field, if t.negated { "!=" } else { "=" }, escaped(&t.value));
    let texts: Vec<String> = terms.iter().map(text).collect();
    FieldSelector::parse(&texts.join(",")).map_err(|e| StatusError::bad_request(e.to_string()))
}

/// Escapes a value for a field selector.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=")
}

fn unknown_field(served: &Served, field: &str) -> String {
    if served.resource.selectable.is_empty() && served.resource.custom().is_none() {
        format!("\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    } else {
        format!("field label not supported: {field}")
    }
}

/// How to treat fields that are unknown or duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Parameters of a create, update or patch.
#[derive(Debug, Clone)]
pub struct WriteParams {
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    pub force: Option<bool>,
    /// Whether the write is an apply, which updates managedFields itself.
    pub applied: bool,
}

/// The maximum length of a field manager's name, in bytes.
const MAX_MANAGER: usize = 128;

impl WriteParams {
    /// Parses and validates the parameters. `kind` names the options in errors: `CreateOptions`, `UpdateOptions`,
    /// `PatchOptions`.
    pub fn parse(request: &Request, kind: &str) -> Result<Self, StatusError> {
        let query = &request.query;
        let mut errors = ErrorList::new();
        let dry_run = dry_run(query.all("dryRun"), &mut errors);
        let field_validation = match query.get("fieldValidation").unwrap_or("") {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                let path = Path::new("fieldValidation");
                errors.push(Error::not_supported(&path, other, &["", "Ignore", "Strict", "Warn"]));
                FieldValidation::Strict
            }
        };
        let manager = query.non_empty("fieldManager").unwrap_or("");
        let path = Path::new("fieldManager");
        let applies =
            kind == "PatchOptions" && content_type(&request.headers).starts_with("application/apply-patch");
        if applies && manager.is_empty() {
            errors.push(Error::required(&path, "is required for apply patch"));
        }
        if manager.len() > MAX_MANAGER {
            errors.push(Error::too_long(&path, MAX_MANAGER));
        }
        for (position, character) in manager.char_indices().filter(|(_, c)| c.is_control()) {
            let why = format!("invalid character U+{:04X} (at position {position})", u32::from(character));
            errors.push(Error::invalid(&path, manager, why));
        }
        if !errors.is_empty() {
            return Err(StatusError::invalid("meta.k8s.io", kind, "", &errors));
        }
        let field_manager =
            if manager.is_empty() { request.user_agent_manager() } else { manager.to_owned() };
        Ok(Self {
            dry_run,
            field_manager,
            field_validation,
            force: query.optional_flag("force"),
            applied: false,
        })
    }
}

/// Returns whether `dryRun=All` is set.
pub fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut ErrorList) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        let given = serde_json::Value::from(values.clone());
        errors.push(Error::not_supported(&Path::new("dryRun"), given, &["All"]));
    }
    !values.is_empty()
}
