//! Impersonation headers: acting as somebody else, where authorization allows it.

use std::collections::BTreeMap;

use http::HeaderMap;
use knarr_apimachinery::status::StatusError;

use super::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, UserInfo};
use crate::authz::Attributes;
use crate::http::query::decode;

/// The user that the headers ask for, with one permission to check for each thing impersonated.
pub struct Impersonation {
    pub user: UserInfo,
    /// `(resource, API group, namespace, name, subresource)` of each thing on which `impersonate` is needed.
    pub needs: Vec<Need>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Need {
    pub group: &'static str,
    pub resource: &'static str,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

impl Need {
    fn new(resource: &'static str, name: &str) -> Self {
        let group = if matches!(resource, "uids" | "userextras") { "authentication.k8s.io" } else { "" };
        Self { group, resource, subresource: String::new(), namespace: String::new(), name: name.into() }
    }

    pub fn attributes(&self) -> Attributes {
        Attributes {
            verb: "impersonate".into(),
            group: self.group.into(),
            version: "v1".into(),
            resource: self.resource.into(),
            subresource: self.subresource.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            ..Attributes::default()
        }
    }
}

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

/// Reads the headers; `None` when there are none.
pub fn requested(headers: &HeaderMap) -> Result<Option<Impersonation>, StatusError> {
    let values = |name: &str| -> Vec<String> {
        let all = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
        all.map(str::to_owned).filter(|v| !v.is_empty()).collect()
    };
    let (name, groups, uid) = (values(USER).pop(), values(GROUP), values(UID).pop());
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for header in headers.keys() {
        if let Some(key) = header.as_str().strip_prefix(EXTRA) {
            extra.entry(decode(key, false)).or_default().extend(values(header.as_str()));
        }
    }
    let Some(name) = name else {
        if groups.is_empty() && extra.is_empty() && uid.is_none() {
            return Ok(None);
        }
        return Err(StatusError::internal(
            "requested [{Group  system:masters  } ] without impersonating a user name",
        ));
    };
    let mut needs = Vec::new();
    match name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        Some((namespace, account)) => {
            let mut need = Need::new("serviceaccounts", account);
            need.namespace = namespace.into();
            needs.push(need);
        }
        None => needs.push(Need::new("users", &name)),
    }
    needs.extend(groups.iter().map(|g| Need::new("groups", g)));
    for (key, values) in &extra {
        needs.extend(values.iter().map(|v| Need { subresource: key.clone(), ..Need::new("userextras", v) }));
    }
    needs.extend(uid.iter().map(|u| Need::new("uids", u)));
    let mut user = UserInfo { name, uid: uid.unwrap_or_default(), groups, extra };
    if user.groups.is_empty()
        && let Some((namespace, _)) =
            user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    {
        user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let default = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if !user.in_group(AUTHENTICATED) && !user.in_group(UNAUTHENTICATED) {
        user.groups.push(default.into());
    }
    Ok(Some(Impersonation { user, needs }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_headers() {
        assert!(requested(&HeaderMap::new()).unwrap().is_none());
        let mut headers = HeaderMap::new();
        headers.insert(GROUP, "g".parse().unwrap());
        assert!(requested(&headers).is_err());
        headers.insert(USER, "ann".parse().unwrap());
        headers.insert("impersonate-extra-scopes%2fa", "x".parse().unwrap());
        let found = requested(&headers).unwrap().unwrap();
        assert_eq!(found.user.name, "ann");
        assert_eq!(found.user.groups, ["g", AUTHENTICATED]);
        assert_eq!(found.user.extra["scopes/a"], ["x"]);
        let needs: Vec<_> = found.needs.iter().map(|n| (n.resource, n.name.as_str())).collect();
        assert_eq!(needs, [("users", "ann"), ("groups", "g"), ("userextras", "x")]);
    }
}
