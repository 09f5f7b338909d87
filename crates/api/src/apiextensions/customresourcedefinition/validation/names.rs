//! The names of a custom resource.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::apiextensions::definition::Names;

/// Validates the names.
pub fn validate(given: &Names, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut check = |at: Path, name: &str, is_kind: bool| {
        let problems = names::dns1035_label(&if is_kind { name.to_lowercase() } else { name.to_owned() });
        if name.is_empty() || problems.is_empty() {
            return;
        }
        let prefix = if is_kind { "may have mixed case, but should otherwise match: " } else { "" };
        errors.push(Error::invalid(&at, name, format!("{prefix}{}", problems.join(","))));
    };
    check(path.child("plural"), &given.plural, false);
    check(path.child("singular"), &given.singular, false);
    check(path.child("kind"), &given.kind, true);
    check(path.child("listKind"), &given.list_kind, true);
    for (field, list) in [("shortNames", &given.short_names), ("categories", &given.categories)] {
        for (i, name) in list.iter().enumerate() {
            let problems = names::dns1035_label(name);
            if !problems.is_empty() {
                let at = path.child(field).index(i);
                errors.push(Error::invalid(&at, name.as_str(), problems.join(",")));
            }
        }
    }
    if !given.kind.is_empty() && given.kind == given.list_kind {
        let why = "kind and listKind may not be the same";
        errors.push(Error::invalid(&path.child("listKind"), given.list_kind.as_str(), why));
    }
    errors
}
