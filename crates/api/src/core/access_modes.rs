//! Access modes, which claims and volumes have in common.

use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::validate;

/// Returns the modes that are set: `RWO,ROX,RWX,RWOP`.
pub(crate) fn access_modes(modes: &[String]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let found = SHORT.iter().filter(|(mode, _)| modes.iter().any(|m| m == mode));
    found.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Validates the access modes of a claim or a volume.
pub(crate) fn validate_access_modes(errors: &mut ErrorList, path: &Path, modes: &[String]) {
    for mode in modes {
        validate::supported_value(errors, path, mode, ACCESS_MODES);
    }
    let known = |mode: &&String| ACCESS_MODES.contains(&mode.as_str());
    let single = modes.iter().any(|m| m == "ReadWriteOncePod");
    if single && modes.iter().filter(known).any(|m| m != "ReadWriteOncePod") {
        errors.push(Error::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}
