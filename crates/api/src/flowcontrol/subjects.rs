//! The subjects of a FlowSchema: whose requests it matches.

use k8s_openapi::api::flowcontrol::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::naming;
use crate::validate;

const KINDS: [&str; 3] = ["Group", "ServiceAccount", "User"];

pub fn validate(errors: &mut ErrorList, path: &Path, subject: &api::Subject) {
    let present = [
        ("ServiceAccount", "serviceAccount", subject.service_account.is_some()),
        ("User", "user", subject.user.is_some()),
        ("Group", "group", subject.group.is_some()),
    ];
    let kind = subject.kind.as_str();
    match kind {
        "ServiceAccount" => service_account(errors, &path.child("serviceAccount"), subject),
        "User" => named(errors, path, "user", kind, subject.user.as_ref().map(|u| u.name.as_str())),
        "Group" => named(errors, path, "group", kind, subject.group.as_ref().map(|g| g.name.as_str())),
        _ => {
            errors.push(validate::not_supported(&path.child("kind"), kind, &KINDS));
            return;
        }
    }
    for (other, field, there) in present {
        if other != kind && there {
            let problem = format!("{field} is forbidden when subject kind is not '{other}'");
            errors.push(Error::forbidden(&path.child(field), problem));
        }
    }
}

fn named(errors: &mut ErrorList, path: &Path, field: &str, kind: &str, name: Option<&str>) {
    let path = path.child(field);
    match name {
        None => {
            errors.push(Error::required(&path, format!("{field} is required when subject kind is '{kind}'")))
        }
        Some(name) => drop(validate::required(errors, &path.child("name"), name)),
    }
}

fn service_account(errors: &mut ErrorList, path: &Path, subject: &api::Subject) {
    let Some(account) = &subject.service_account else {
        let problem = "serviceAccount is required when subject kind is 'ServiceAccount'";
        errors.push(Error::required(path, problem));
        return;
    };
    let (at, name) = (path.child("name"), account.name.as_str());
    if validate::required(errors, &at, name) && name != "*" {
        validate::problems(errors, &at, name, naming::subdomain(name, false));
    }
    let (at, namespace) = (path.child("namespace"), account.namespace.as_str());
    if namespace.is_empty() {
        errors.push(Error::required(&at, "must specify namespace for service account"));
    } else {
        validate::dns_label(errors, &at, namespace);
    }
}
