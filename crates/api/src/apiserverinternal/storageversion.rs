//! StorageVersion: the versions in which each API server stores a resource.

use std::collections::BTreeSet;

use k8s_openapi::api::apiserverinternal::v1alpha1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::kind::Kind;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::StorageVersion::RESOURCE, "StorageVersionList", "storageversion", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("CommonEncodingVersion", "string", "The encoding version that all API servers share."),
    Column::new("StorageVersions", "string", "The encoding version of each API server."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::StorageVersion>().unwrap_or_default();
    let status = o.status.clone().unwrap_or_default();
    let servers = status.storage_versions.iter().flatten();
    let servers = servers.map(|s| format!("{}={}", s.api_server_id, s.encoding_version));
    vec![
        Value::from(object.name()),
        Value::from(status.common_encoding_version.as_deref().unwrap_or("<unset>")),
        Value::from(table::three_of(servers, "<unset>")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate_update(&self, new: &Object, _: &Object, subresource: Option<&str>) -> ErrorList {
        match (subresource, new.typed::<api::StorageVersion>()) {
            (Some("status"), Ok(new)) => validate_status(&new.status.clone().unwrap_or_default()),
            _ => ErrorList::new(),
        }
    }

    fn validate_name(&self, name: &str, _: bool) -> Vec<String> {
        let Some((group, resource)) = name.rsplit_once('.') else {
            return vec!["name must be in the form of <group>.<resource>".to_owned()];
        };
        let group = names::dns1123_subdomain(group).into_iter().map(|p| format!("the group segment {p}"));
        let resource =
            names::dns1035_label(resource).into_iter().map(|p| format!("the resource segment {p}"));
        group.chain(resource).collect()
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

fn validate_status(status: &api::StorageVersionStatus) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("status");
    let servers = status.storage_versions.as_deref().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (i, server) in servers.iter().enumerate() {
        let path = path.child("storageVersions").index(i);
        if !seen.insert(&server.api_server_id) {
            errors.push(Error::duplicate(&path.child("apiServerID"), server.api_server_id.as_str()));
        }
        validate_server(&mut errors, &path, server);
    }
    common_version(&mut errors, &path.child("commonEncodingVersion"), status);
    errors
}

fn validate_server(errors: &mut ErrorList, path: &Path, server: &api::ServerStorageVersion) {
    validate::dns_subdomain(errors, &path.child("apiServerID"), &server.api_server_id);
    let at = path.child("decodableVersions");
    if !server.decodable_versions.contains(&server.encoding_version) {
        let problem = format!("decodableVersions must include encodingVersion {}", server.encoding_version);
        errors.push(Error::invalid(&at, validate::shown(&server.decodable_versions), problem));
    }
    for (i, version) in server.served_versions.iter().flatten().enumerate() {
        if !server.decodable_versions.contains(version) {
            let decodable = server.decodable_versions.join(" ");
            let problem = format!(
                "individual served version : {version} must be included in decodableVersions : [{decodable}]"
            );
            let path = path.child("servedVersions").index(i);
            errors.push(Error::invalid(&path, version.as_str(), problem));
        }
    }
}

/// Validates `commonEncodingVersion`: the encoding version of all servers, if it is the same.
fn common_version(errors: &mut ErrorList, path: &Path, status: &api::StorageVersionStatus) {
    let mut versions = status.storage_versions.iter().flatten().map(|s| s.encoding_version.as_str());
    let first = versions.next();
    let actual = first.filter(|f| versions.all(|v| v == *f));
    let problem = match (actual, status.common_encoding_version.as_deref()) {
        (None, Some(_)) => "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet".to_owned(),
        (Some(actual), None) => format!("the common encoding version is {actual}"),
        (Some(actual), Some(given)) if actual != given => {
            format!("the actual common encoding version is {actual}")
        }
        _ => return,
    };
    errors.push(Error::invalid(path, validate::shown(&status.common_encoding_version), problem));
}
