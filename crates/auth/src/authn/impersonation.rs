//! Impersonation: acting as another user, in the first mode for which the requester is authorized.
//!
//! In the legacy mode, `impersonate` on a user suffices for all actions. In the constrained modes, a second
//! permission limits the actions while impersonating. Source: KEP-5284.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};
use knarr_apimachinery::status::StatusError;

use super::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED, UserInfo, header_text};
use crate::authz::{Attributes, forbidden};

/// One mode in which the requester may be authorized to act as the wanted user.
pub struct Mode {
    pub name: &'static str,
    /// The verb that authorized it, for the audit log; empty in the legacy mode.
    pub constraint: String,
    /// The user whose permissions are checked: the requester, without details in some modes.
    pub requester: UserInfo,
    /// The required permissions; all of them must be granted.
    pub needs: Vec<Need>,
    pub user: UserInfo,
}

pub enum Need {
    One(Box<Attributes>),
    /// Either the first, or all of the others.
    AnyOrEach(Box<Attributes>, Vec<Attributes>),
    Refused(StatusError),
}

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const SELF_GROUP: &str = "authentication.k8s.io";
/// From this number of checks on, a single check for all of them is tried first.
const MANY: usize = 4;

/// Reads and removes the impersonation headers; `None` if there are none.
///
/// Values are UTF-8, as upstream accepts them. An undecodable value is an error: without it the request would have
/// another user with other permissions.
pub fn requested(headers: &mut HeaderMap) -> Result<Option<UserInfo>, StatusError> {
    let values = |name: &str| header_text::all(headers, name).map_err(StatusError::bad_request);
    let first = |name: &str| Ok::<_, StatusError>(values(name)?.into_iter().next().unwrap_or_default());
    let (name, uid, groups) = (first(USER)?, first(UID)?, values(GROUP)?);
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut gone: Vec<HeaderName> = Vec::new();
    for header in headers.keys() {
        let text = header.as_str();
        if let Some(key) = text.strip_prefix(EXTRA) {
            let key = header_text::extra_key(text, key).map_err(StatusError::bad_request)?;
            extra.entry(key).or_default().extend(values(text)?);
            gone.push(header.clone());
        } else if matches!(text, USER | UID | GROUP) {
            gone.push(header.clone());
        }
    }
    if name.is_empty() {
        if uid.is_empty() && groups.is_empty() && extra.is_empty() {
            return Ok(None);
        }
        return Err(StatusError::bad_request(format!(
            "requested &user.DefaultInfo{{Name:\"\", UID:{uid:?}, Groups:{}, Extra:{}}} without impersonating a user name",
            go_strings(&groups),
            if extra.is_empty() { "map[string][]string(nil)".to_owned() } else { go_map(&extra) },
        )));
    }
    for header in gone {
        headers.remove(header);
    }
    Ok(Some(UserInfo { name, uid, groups, extra }))
}

fn go_strings(values: &[String]) -> String {
    if values.is_empty() {
        return "[]string(nil)".into();
    }
    let quoted: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
    format!("[]string{{{}}}", quoted.join(", "))
}

fn go_map(map: &BTreeMap<String, Vec<String>>) -> String {
    let entries: Vec<String> = map.iter().map(|(k, v)| format!("{k:?}:{}", go_strings(v))).collect();
    format!("map[string][]string{{{}}}", entries.join(", "))
}

/// Returns the applicable modes, in the order in which they are tried. `request` is the action as the impersonated
/// user.
pub fn modes(wanted: &UserInfo, requester: &UserInfo, request: &Attributes) -> Vec<Mode> {
    let node = node_of(&wanted.name);
    let account = account_of(&wanted.name);
    let name_only = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
    let mut modes = Vec::new();
    let associated = account_of(&requester.name).is_some()
        && node.is_some()
        && requester
            .extra
            .get(NODE_NAME)
            .is_some_and(|v| v.len() == 1 && v.first().map(String::as_str) == node);
    if name_only && associated {
        let mut mode = constrained("associated-node", wanted, requester, request);
        let keys = requester.extra.keys().cloned().collect();
        mode.requester.extra =
            BTreeMap::from([("authentication.kubernetes.io/associated-node-keys".to_owned(), keys)]);
        for need in &mut mode.needs {
            if let Need::One(need) = need
                && need.verb == "impersonate:associated-node"
            {
                need.name = "*".into();
            }
        }
        modes.push(mode);
    }
    if name_only && node.is_some() {
        modes.push(constrained("arbitrary-node", wanted, requester, request));
    }
    if name_only && account.is_some() {
        modes.push(constrained("serviceaccount", wanted, requester, request));
    }
    if node.is_none() && account.is_none() {
        modes.push(constrained("user-info", wanted, requester, request));
    }
    modes.push(legacy(wanted, requester));
    modes
}

fn legacy(wanted: &UserInfo, requester: &UserInfo) -> Mode {
    let mut user = wanted.clone();
    let mut needs = vec![need_of_name(wanted, "impersonate", "", &mut user, false)];
    needs.extend(need_of_uid(wanted, "impersonate"));
    needs.extend(wanted.groups.iter().map(|g| need("impersonate", "", "groups", g)));
    needs.extend(extras(wanted, "impersonate").into_iter().map(|a| Need::One(Box::new(a))));
    Mode {
        name: "legacy",
        constraint: String::new(),
        requester: requester.clone(),
        needs,
        user: with_usual_group(user),
    }
}

fn constrained(mode: &'static str, wanted: &UserInfo, requester: &UserInfo, request: &Attributes) -> Mode {
    let verb = format!("impersonate:{mode}");
    let mut user = wanted.clone();
    let on = Attributes { verb: format!("impersonate-on:{mode}:{}", request.verb), ..request.clone() };
    let mut needs = vec![Need::One(Box::new(on))];
    needs.push(need_of_name(wanted, &verb, SELF_GROUP, &mut user, true));
    needs.extend(need_of_uid(wanted, &verb));
    needs.extend(need_of_groups(requester, wanted, &verb));
    needs.extend(need_of_extra(requester, wanted, &verb));
    Mode { name: mode, constraint: verb, requester: requester.clone(), needs, user: with_usual_group(user) }
}

fn attributes(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
    Attributes {
        verb: verb.into(),
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        name: name.into(),
        ..Attributes::default()
    }
}

fn need(verb: &str, group: &str, resource: &str, name: &str) -> Need {
    Need::One(Box::new(attributes(verb, group, resource, name)))
}

/// Adds the groups that follow from the name, and returns the required permission.
fn need_of_name(wanted: &UserInfo, verb: &str, group: &str, user: &mut UserInfo, constrained: bool) -> Need {
    let mut need = attributes(verb, group, "users", &wanted.name);
    if constrained && let Some(node) = node_of(&wanted.name) {
        need.resource = "nodes".into();
        need.name = node.into();
        user.groups = vec!["system:nodes".into()];
    }
    if let Some((namespace, name)) = account_of(&wanted.name) {
        need.resource = "serviceaccounts".into();
        need.namespace = namespace.into();
        need.name = name.into();
        if wanted.groups.is_empty() {
            user.groups =
                vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
        }
    }
    Need::One(Box::new(need))
}

fn need_of_uid(wanted: &UserInfo, verb: &str) -> Option<Need> {
    (!wanted.uid.is_empty()).then(|| need(verb, SELF_GROUP, "uids", &wanted.uid))
}

fn need_of_groups(requester: &UserInfo, wanted: &UserInfo, verb: &str) -> Option<Need> {
    if wanted.groups.is_empty() {
        return None;
    }
    let of = |name: &str| attributes(verb, SELF_GROUP, "groups", name);
    if wanted.groups.iter().any(String::is_empty) {
        let why = "impersonating the empty string group is not allowed";
        return Some(Need::Refused(forbidden(requester, &of(""), why)));
    }
    if wanted.in_group(MASTERS) {
        let why = "impersonating the system:masters group is not allowed";
        return Some(Need::Refused(forbidden(requester, &of(MASTERS), why)));
    }
    let each: Vec<Attributes> = wanted.groups.iter().map(|g| of(g)).collect();
    Some(any_or_each(of("*"), each))
}

fn any_or_each(any: Attributes, each: Vec<Attributes>) -> Need {
    if each.len() >= MANY {
        return Need::AnyOrEach(Box::new(any), each);
    }
    let none = Attributes { verb: String::new(), ..Attributes::default() };
    Need::AnyOrEach(Box::new(none), each)
}

fn extras(wanted: &UserInfo, verb: &str) -> Vec<Attributes> {
    let mut all = Vec::new();
    for (key, values) in &wanted.extra {
        for value in values {
            let mut need = attributes(verb, SELF_GROUP, "userextras", value);
            need.subresource.clone_from(key);
            all.push(need);
        }
    }
    all
}

fn need_of_extra(requester: &UserInfo, wanted: &UserInfo, verb: &str) -> Option<Need> {
    if wanted.extra.is_empty() {
        return None;
    }
    for (key, values) in &wanted.extra {
        let why = if key.is_empty() {
            "impersonating the empty string key in extra is not allowed".to_owned()
        } else if *key != key.to_lowercase() {
            format!("impersonating a non-lowercase key in extra is not allowed: {key:?}")
        } else if key.split_once('/').is_none_or(|(domain, path)| domain.is_empty() || path.is_empty()) {
            format!(
                "impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {key:?}: must be a domain-prefixed path (such as \"acme.io/foo\")"
            )
        } else if values.is_empty() {
            "impersonating empty values in extra is not allowed".to_owned()
        } else if values.iter().any(String::is_empty) {
            "impersonating the empty string value in extra is not allowed".to_owned()
        } else {
            continue;
        };
        let of = attributes(verb, SELF_GROUP, "userextras", "");
        return Some(Need::Refused(forbidden(requester, &of, &why)));
    }
    let mut any = attributes(verb, SELF_GROUP, "userextras", "*");
    any.subresource = "*".into();
    let each = extras(wanted, verb);
    if wanted.extra.len() >= MANY {
        return Some(Need::AnyOrEach(Box::new(any), each));
    }
    Some(any_or_each(any, each))
}

fn with_usual_group(mut user: UserInfo) -> UserInfo {
    let group = if user.name == ANONYMOUS {
        UNAUTHENTICATED
    } else if user.in_group(UNAUTHENTICATED) {
        return user;
    } else {
        AUTHENTICATED
    };
    if !user.in_group(group) {
        user.groups.push(group.into());
    }
    user
}

fn account_of(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix("system:node:").filter(|n| knarr_apimachinery::names::dns1123_subdomain(n).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(need: &Need) -> String {
        let one = |a: &Attributes| {
            format!("{} {}/{} {} {}", a.verb, a.group, a.full_resource(), a.namespace, a.name)
        };
        match need {
            Need::One(a) => one(a),
            Need::AnyOrEach(any, each) => {
                let each: Vec<String> = each.iter().map(one).collect();
                format!(
                    "{} or [{}]",
                    if any.verb.is_empty() { String::new() } else { one(any) },
                    each.join("; ")
                )
            }
            Need::Refused(error) => format!("refused: {}", error.message()),
        }
    }

    fn wanted(name: &str, groups: &[&str]) -> UserInfo {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        UserInfo { name: name.into(), groups, ..UserInfo::default() }
    }

    #[test]
    fn reads_headers_and_removes_them() {
        assert!(requested(&mut HeaderMap::new()).unwrap().is_none());
        let mut headers = HeaderMap::new();
        headers.insert(GROUP, "g".parse().unwrap());
        assert_eq!(
            requested(&mut headers).unwrap_err().message(),
            "requested &user.DefaultInfo{Name:\"\", UID:\"\", Groups:[]string{\"g\"}, Extra:map[string][]string(nil)} without impersonating a user name"
        );
        headers.insert(USER, "ann".parse().unwrap());
        headers.insert("impersonate-extra-scopes%2fa", "x".parse().unwrap());
        let found = requested(&mut headers).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.groups.as_slice()), ("ann", &["g".to_owned()][..]));
        assert_eq!(found.extra["scopes/a"], ["x"]);
        assert!(headers.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_refused_and_never_left_out() {
        let bytes = |bytes: &[u8]| http::HeaderValue::from_bytes(bytes).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(USER, bytes("jürgen".as_bytes()));
        headers.append(GROUP, bytes("größe".as_bytes()));
        headers.append("impersonate-extra-t%c3%bcr", bytes("zü".as_bytes()));
        let found = requested(&mut headers).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.groups.as_slice()), ("jürgen", &["größe".to_owned()][..]));
        assert_eq!(found.extra["tür"], ["zü"]);
        for (name, value) in
            [(USER, &b"j\xff"[..]), (UID, b"\xff"), (GROUP, b"\xff"), ("impersonate-extra-a", b"\xff")]
        {
            // Alone, and together with a valid user.
            for user in [None, Some("ann")] {
                let mut headers = HeaderMap::new();
                if let Some(user) = user.filter(|_| name != USER) {
                    headers.insert(USER, user.parse().unwrap());
                }
                headers.append(HeaderName::from_static(name), bytes(value));
                let error = requested(&mut headers).unwrap_err();
                assert_eq!(
                    (error.code(), error.message()),
                    (400, &*format!("header {name} is not valid UTF-8"))
                );
            }
        }
        let mut headers = HeaderMap::new();
        headers.insert(USER, "ann".parse().unwrap());
        headers.insert("impersonate-extra-a%ff", "x".parse().unwrap());
        assert_eq!(requested(&mut headers).unwrap_err().code(), 400);
    }

    #[test]
    fn each_mode_has_its_needs() {
        let request = Attributes { verb: "list".into(), resource: "pods".into(), ..Attributes::default() };
        let requester = UserInfo::new("system:serviceaccount:a:agent", &[]);
        let names = |w: &UserInfo, r: &UserInfo| -> Vec<&str> {
            modes(w, r, &request).iter().map(|m| m.name).collect()
        };
        assert_eq!(names(&wanted("ann", &["g"]), &requester), ["user-info", "legacy"]);
        assert_eq!(names(&wanted("system:node:n1", &[]), &requester), ["arbitrary-node", "legacy"]);
        assert_eq!(
            names(&wanted("system:serviceaccount:x:y", &[]), &requester),
            ["serviceaccount", "legacy"]
        );
        assert_eq!(names(&wanted("system:serviceaccount:x:y", &["g"]), &requester), ["legacy"]);
        let mut on_node = requester.clone();
        on_node.extra.insert(NODE_NAME.into(), vec!["n1".into()]);
        let all = modes(&wanted("system:node:n1", &[]), &on_node, &request);
        assert_eq!(
            all.iter().map(|m| m.name).collect::<Vec<_>>(),
            ["associated-node", "arbitrary-node", "legacy"]
        );
        let needs: Vec<String> = all[0].needs.iter().map(show).collect();
        assert_eq!(
            needs,
            [
                "impersonate-on:associated-node:list /pods  ",
                "impersonate:associated-node authentication.k8s.io/nodes  *"
            ]
        );
        assert_eq!(all[0].user.groups, ["system:nodes", AUTHENTICATED]);
        let old = modes(&wanted("system:serviceaccount:x:y", &[]), &requester, &request).pop().unwrap();
        assert_eq!(old.needs.iter().map(show).collect::<Vec<_>>(), ["impersonate /serviceaccounts x y"]);
        assert_eq!(old.user.groups[0], "system:serviceaccounts");
    }

    #[test]
    fn nobody_becomes_a_master_in_a_constrained_mode() {
        let request = Attributes::default();
        let all = modes(&wanted("ann", &[MASTERS]), &UserInfo::new("bob", &[]), &request);
        assert!(all[0].needs.iter().any(|n| matches!(n, Need::Refused(_))));
        assert!(!all[1].needs.iter().any(|n| matches!(n, Need::Refused(_))));
    }
}
