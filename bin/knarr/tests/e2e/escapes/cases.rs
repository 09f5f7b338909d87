//! How a hostile pod is written: whom it runs as, what its containers try, and how each of them has to end.

use serde_json::{Value, json};

use super::attacker::IMAGE;

/// Where each container leaves its words.
const RESULT: &str = "/result";

/// Whom a pod runs as.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// As a user, else as root.
    pub user: bool,
    /// With users of its own (`hostUsers: false`).
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

/// What the cases need to know.
pub struct Setting {
    /// A folder of the host that no pod is given.
    pub marker: String,
    /// MAJOR:MINOR of a disk.
    pub disk: String,
    /// How often a race is tried.
    pub tries: usize,
}

/// How a container has to end.
#[derive(Debug, Clone)]
pub enum End {
    /// It is not started, and the reason has these words.
    Refused(&'static str),
    /// It ends with these words.
    Says(&'static str),
    /// One or the other: it is not started, or it ends with these words.
    Contained(&'static str),
    /// It ends well. It prepares what others use.
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

    /// `attack WHAT NAME MARKER ARGUMENTS`, its output as the container's last words.
    pub fn attacks(self, name: &str, what: &str, arguments: &str, end: End) -> Self {
        self.attacks_with(name, what, arguments, end, json!({}))
    }

    /// The same with more fields of the container.
    pub fn attacks_with(self, name: &str, what: &str, arguments: &str, end: End, fields: Value) -> Self {
        let script =
            format!("exec attack {what} {}-{name} {} {arguments} >{RESULT}", self.name, self.setting_marker);
        let command = json!(["/bin/sh", "-c", script]);
        self.runs(name, &command, end, fields)
    }

    /// Any command, with more fields of the container.
    pub fn runs(mut self, name: &str, command: &Value, end: End, fields: Value) -> Self {
        let container = container(name, command, fields);
        self.list("containers").push(container);
        self.ends.push((name.to_owned(), end));
        self
    }

    /// A container that runs for as long as the pod.
    pub fn stays(mut self, name: &str, script: &str, fields: Value) -> Self {
        let container = container(name, &json!(["/bin/sh", "-c", script]), fields);
        self.list("containers").push(container);
        self
    }

    /// A shell script that comes before the containers.
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

/// One mount of a volume.
pub fn mount(volume: &str, path: &str) -> Value {
    json!({"name": volume, "mountPath": path})
}
