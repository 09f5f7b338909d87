//! Named formats of strings.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_apimachinery::names;

use super::url::Url;
use crate::time;

/// A named format of strings.
pub struct Format {
    /// The name for `format.named()`.
    pub key: &'static str,
    pub name: &'static str,
    /// The length of upstream's pattern for it, from which costs are calculated.
    pub pattern_size: u64,
    pub validate: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

pub const FORMATS: &[Format] = &[
    Format { key: "dns1123Label", name: "DNS1123Label", pattern_size: 30, validate: names::dns1123_label },
    Format {
        key: "dns1123Subdomain",
        name: "DNS1123Subdomain",
        pattern_size: 60,
        validate: names::dns1123_subdomain,
    },
    Format { key: "dns1035Label", name: "DNS1035Label", pattern_size: 30, validate: names::dns1035_label },
    Format { key: "qualifiedName", name: "QualifiedName", pattern_size: 60, validate: names::label_key },
    Format {
        key: "dns1123LabelPrefix",
        name: "DNS1123LabelPrefix",
        pattern_size: 30,
        validate: |s| names::dns1123_label(&names::mask_trailing_dash(s)),
    },
    Format {
        key: "dns1123SubdomainPrefix",
        name: "DNS1123SubdomainPrefix",
        pattern_size: 60,
        validate: |s| names::dns1123_subdomain(&names::mask_trailing_dash(s)),
    },
    Format {
        key: "dns1035LabelPrefix",
        name: "DNS1035LabelPrefix",
        pattern_size: 30,
        validate: |s| names::dns1035_label(&names::mask_trailing_dash(s)),
    },
    Format { key: "labelValue", name: "LabelValue", pattern_size: 40, validate: names::label_value },
    Format {
        key: "uri",
        name: "URI",
        pattern_size: 1103,
        validate: |s| {
            Url::parse_request(s).err().map(|why| format!("parse {s:?}: {why}")).into_iter().collect()
        },
    },
    Format {
        key: "uuid",
        name: "uuid",
        pattern_size: 81,
        validate: |s| unless(is_uuid(s), "does not match the UUID format"),
    },
    Format {
        key: "byte",
        name: "byte",
        pattern_size: 84,
        validate: |s| unless(STANDARD.decode(s).is_ok(), "invalid base64"),
    },
    Format {
        key: "date",
        name: "date",
        pattern_size: 73,
        validate: |s| unless(time::parse_date(s).is_some(), "invalid date"),
    },
    Format {
        key: "datetime",
        name: "datetime",
        pattern_size: 73,
        validate: |s| unless(time::parse_timestamp(s).is_ok(), "invalid datetime"),
    },
];

fn unless(right: bool, problem: &str) -> Vec<String> {
    if right { Vec::new() } else { vec![problem.to_owned()] }
}

fn is_uuid(s: &str) -> bool {
    let mut rest = s;
    for (n, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if n > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some(part) = rest.get(..length) else { return false };
        if !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        rest = &rest[length..];
    }
    rest.is_empty()
}

#[test]
fn uuids_may_lack_their_dashes() {
    assert!(is_uuid("123E4567-e89b12d3-a456-426614174000") && !is_uuid("123"));
}
