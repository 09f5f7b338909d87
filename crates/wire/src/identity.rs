//! The user of a request: name, groups and further attributes from an authenticator.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
pub const ANONYMOUS: &str = "system:anonymous";
pub const MASTERS: &str = "system:masters";

impl UserInfo {
    /// Creates a user with these groups and `system:authenticated`.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        Self { name: name.to_owned(), groups, ..Self::default() }.authenticated()
    }

    /// Returns the user of requests without credentials.
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Adds the group `system:authenticated`, unless the user is anonymous.
    pub fn authenticated(mut self) -> Self {
        if !self.in_group(AUTHENTICATED) && !self.in_group(UNAUTHENTICATED) {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Returns the user as `authentication.k8s.io/v1` `UserInfo`.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        if !self.name.is_empty() {
            map.insert("username".into(), self.name.clone().into());
        }
        if !self.uid.is_empty() {
            map.insert("uid".into(), self.uid.clone().into());
        }
        if !self.groups.is_empty() {
            map.insert("groups".into(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            map.insert("extra".into(), json!(self.extra));
        }
        Value::Object(map)
    }
}
