//! The parameters of operations: upstream's names and types, with descriptions.

use serde_json::{Value, json};

/// A query parameter.
pub struct Parameter {
    pub name: &'static str,
    ty: &'static str,
    description: &'static str,
}

const fn p(name: &'static str, ty: &'static str, description: &'static str) -> Parameter {
    Parameter { name, ty, description }
}

pub const PRETTY: Parameter =
    p("pretty", "string", "Whether the answer is indented; browsers, curl and wget get it so by default.");

pub const LIST: &[Parameter] = &[
    p(
        "allowWatchBookmarks",
        "boolean",
        "Whether a watch may have events of type BOOKMARK, which carry only a resourceVersion.",
    ),
    p(
        "continue",
        "string",
        "The token from the metadata of the page before; asks for the next page of a list.",
    ),
    p("fieldSelector", "string", "Selects objects by their fields; all unless set."),
    p("labelSelector", "string", "Selects objects by their labels; all unless set."),
    p(
        "limit",
        "integer",
        "The most objects of a page; metadata.continue of the answer asks for the next page.",
    ),
    p("resourceVersion", "string", "How new a list has to be, or from where a watch goes on."),
    p("resourceVersionMatch", "string", "How resourceVersion applies to a list: Exact or NotOlderThan."),
    p(
        "sendInitialEvents",
        "boolean",
        "Whether a watch begins with the objects that exist, followed by a BOOKMARK event that says so. It needs \
         resourceVersionMatch=NotOlderThan.",
    ),
    p("shardSelector", "string", "Selects objects by ranges of a hash (feature gate ShardedListAndWatch)."),
    p("timeoutSeconds", "integer", "After how many seconds the list or watch ends."),
    p("watch", "boolean", "Whether the answer is a stream of changes instead of a list."),
];

pub const WRITE: &[Parameter] = &[
    p("dryRun", "string", "With All, the request is checked and answered, and nothing is stored."),
    p(
        "fieldManager",
        "string",
        "Who makes the change, for metadata.managedFields: at most 128 printable characters. Apply patches need one.",
    ),
    p(
        "fieldValidation",
        "string",
        "What becomes of unknown and duplicate fields: Ignore, Warn (the default) or Strict, which refuses them.",
    ),
];

pub const FORCE: Parameter = p(
    "force",
    "boolean",
    "Whether an apply patch takes fields over that others manage; only for apply patches.",
);

pub const DELETE: &[Parameter] = &[
    p("dryRun", "string", "With All, the request is checked and answered, and nothing is deleted."),
    p(
        "gracePeriodSeconds",
        "integer",
        "After how many seconds the object goes; 0 deletes it at once. The kind's own default unless set.",
    ),
    p(
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Whether an object that cannot be read from the store is removed all the same, without regard to its finalizers.",
    ),
    p("orphanDependents", "boolean", "Deprecated in favour of propagationPolicy: whether dependents stay."),
    p("propagationPolicy", "string", "What becomes of dependents: Orphan, Background or Foreground."),
];

/// The query parameters of `/log` of pods.
pub const LOG: &[Parameter] = &[
    p("container", "string", "The container; needed where the pod has several."),
    p("follow", "boolean", "Whether the answer goes on with what the container writes."),
    p(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Whether the certificate of the node's kubelet is not verified: the log may then come from somebody else.",
    ),
    p("limitBytes", "integer", "After how many bytes the answer ends."),
    p("previous", "boolean", "Whether the log is that of the run of the container before."),
    p("sinceSeconds", "integer", "Only lines of the last so many seconds."),
    p("stream", "string", "All (the default), Stdout or Stderr."),
    p("tailLines", "integer", "Only the last so many lines."),
    p("timestamps", "boolean", "Whether each line begins with its time."),
];

const STDERR: Parameter = p("stderr", "boolean", "Whether standard error is sent.");
const STDIN: Parameter = p("stdin", "boolean", "Whether standard input is taken; not unless set.");
const STDOUT: Parameter = p("stdout", "boolean", "Whether standard output is sent.");
const TTY: Parameter = p("tty", "boolean", "Whether there is a terminal; not unless set.");
const CONTAINER: Parameter = p("container", "string", "The container; needed where the pod has several.");
const PATH: Parameter = p("path", "string", "The path that is asked for.");

const ATTACH: &[Parameter] = &[CONTAINER, STDERR, STDIN, STDOUT, TTY];
const EXEC: &[Parameter] = &[
    p("command", "string", "One argument of the command, which no shell reads; given once for each."),
    CONTAINER,
    STDERR,
    STDIN,
    STDOUT,
    TTY,
];
const PORT_FORWARD: &[Parameter] = &[p("ports", "integer", "The ports, for WebSockets.")];

/// Returns the query parameters of connections by the kind of their options; `None` for other kinds.
pub fn of_connection(kind: &str) -> Option<&'static [Parameter]> {
    Some(match kind {
        "PodAttachOptions" => ATTACH,
        "PodExecOptions" => EXEC,
        "PodPortForwardOptions" => PORT_FORWARD,
        "NodeProxyOptions" | "PodProxyOptions" | "ServiceProxyOptions" => &[PATH],
        _ => return None,
    })
}

pub fn query<'a>(list: impl IntoIterator<Item = &'a Parameter>) -> Vec<Value> {
    list.into_iter()
        .map(|parameter| {
            json!({"name": parameter.name, "in": "query", "description": parameter.description,
                   "schema": {"type": parameter.ty, "uniqueItems": true}})
        })
        .collect()
}

/// Returns a path parameter.
pub fn in_path(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "path", "description": description, "required": true,
           "schema": {"type": "string", "uniqueItems": true}})
}
