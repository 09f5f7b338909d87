//! The definition of a hostile pod: its user, what its containers attempt, and how each of them has to end.

use serde_json::{Value, json};

use super::attacker::IMAGE;

/// The file in which each container leaves its termination message.
const RESULT: &str = "/result";

/// The users that a pod runs as.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// As a user, otherwise as root.
    pub user: bool,
    /// In its own user namespace (`hostUsers: false`).
    pub own_users: bool,
}

pub const VARIANTS: [Variant; 4] = [
    Variant { user: false, own_users: false },
    Variant { user: true, own_users: false },
    Variant { user: false, own_users: true },
    Variant { user: true, own_users: true },
];

impl Variant {
    pub fn name(self) -> String {
        let who = if self.user { "user" } else { "root" };
        let users = if self.own_users { "own" } else { "host" };
        format!("{who}-{users}")
    }
}

/// The facts that the cases need.
pub struct Setting {
    /// A folder of the host that no pod mounts.
    pub marker: String,
    /// MAJOR:MINOR of a disk.
    pub disk: String,
    /// How often a race is attempted.
    pub tries: usize,
}

/// How a container has to end.
#[derive(Debug, Clone)]
pub enum End {
    /// It is not started, and the reason contains this text.
    Refused(&'static str),
    /// It ends with this termination message.
    Says(&'static str),
    /// Either: it is not started, or it ends with this termination message.
    Contained(&'static str),
    /// It succeeds. It prepares files for others.
    Prepares,
}

/// One pod, and how its containers have to end.
pub struct Attack {
    pub name: String,
    pub pod: Value,
    pub ends: Vec<(String, End)>,
    /// For container names and the marker.
    setting_marker: String,
}

impl Attack {
    pub fn new(class: &str, variant: Variant, setting: &Setting) -> Self {
        let name = format!("{class}-{}", variant.name());
        let mut spec = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "hostUsers": !variant.own_users,
            "containers": [],
            "initContainers": [],
            "volumes": [],
        });
        if variant.user {
            spec["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        Self { name, pod, ends: Vec::new(), setting_marker: setting.marker.clone() }
    }

    pub fn volume(mut self, name: &str) -> Self {
        self.list("volumes").push(json!({"name": name, "emptyDir": {}}));
        self
    }

    /// Adds a container that runs `attack WHAT NAME MARKER ARGUMENTS`, with the output as its termination
    /// message.
    pub fn attacks(self, name: &str, what: &str, arguments: &str, end: End) -> Self {
        self.attacks_with(name, what, arguments, end, json!({}))
    }

    /// Adds such a container with additional fields.
    pub fn attacks_with(self, name: &str, what: &str, arguments: &str, end: End, fields: Value) -> Self {
        let script =
            format!("exec attack {what} {}-{name} {} {arguments} >{RESULT}", self.name, self.setting_marker);
        let command = json!(["/bin/sh", "-c", script]);
        self.runs(name, &command, end, fields)
    }

    /// Adds a container with any command and additional fields.
    pub fn runs(mut self, name: &str, command: &Value, end: End, fields: Value) -> Self {
        let container = container(name, command, fields);
        self.list("containers").push(container);
        self.ends.push((name.to_owned(), end));
        self
    }

    /// Adds a container that runs as long as the pod.
    pub fn stays(mut self, name: &str, script: &str, fields: Value) -> Self {
        let container = container(name, &json!(["/bin/sh", "-c", script]), fields);
        self.list("containers").push(container);
        self
    }

    /// Adds an init container that runs a shell script.
    pub fn prepares(mut self, script: &str, fields: Value) -> Self {
        let container = container("prepares", &json!(["/bin/sh", "-c", script]), fields);
        self.list("initContainers").push(container);
        self.ends.push(("prepares".to_owned(), End::Prepares));
        self
    }

    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.pod["spec"][field] = value;
        self
    }

    fn list(&mut self, field: &str) -> &mut Vec<Value> {
        self.pod["spec"][field].as_array_mut().expect("a list")
    }
}

fn container(name: &str, command: &Value, fields: Value) -> Value {
    let mut container = json!({
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": command,
        "terminationMessagePath": RESULT,
    });
    for (field, value) in fields.as_object().expect("fields") {
        container[field] = value.clone();
    }
    container
}

/// Returns a volume mount.
pub fn mount(volume: &str, path: &str) -> Value {
    json!({"name": volume, "mountPath": path})
}
