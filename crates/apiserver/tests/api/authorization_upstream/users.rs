//! The users: those of both servers' token files, and those who impersonate others.

use super::requests::Question;

/// One line of the token file; the token is the label.
pub struct Account {
    pub label: &'static str,
    pub name: &'static str,
    pub groups: &'static [&'static str],
}

const fn account(label: &'static str, name: &'static str, groups: &'static [&'static str]) -> Account {
    Account { label, name, groups }
}

/// The accounts that the roles and bindings of [`super::access`] name.
pub const ACCOUNTS: &[Account] = &[
    account("root", "root", &["system:masters"]),
    account("nobody", "nobody", &[]),
    account("viewer", "viewer", &[]),
    account("editor", "editor", &["editors"]),
    account("alpha-admin", "alpha-admin", &[]),
    account("cluster-admin", "cluster-admin", &["cluster-admins"]),
    account("named", "named", &[]),
    account("parts", "parts", &[]),
    account("getter", "getter", &[]),
    account("creator", "creator", &[]),
    account("lister", "lister", &[]),
    account("only-lists", "only-lists", &[]),
    account("only-watches", "only-watches", &[]),
    account("urls", "urls", &[]),
    account("apps", "apps", &[]),
    account(
        "runner",
        "system:serviceaccount:alpha:runner",
        &["system:serviceaccounts", "system:serviceaccounts:alpha"],
    ),
    account(
        "other",
        "system:serviceaccount:beta:other",
        &["system:serviceaccounts", "system:serviceaccounts:beta"],
    ),
    account("n1", "system:node:n1", &["system:nodes"]),
    account("n2", "system:node:n2", &["system:nodes"]),
    account("n3", "system:node:n3", &["system:nodes"]),
    account("unnamed-node", "system:node:", &["system:nodes"]),
    account("node-without-group", "system:node:n1", &[]),
    account("group-without-node", "somebody", &["system:nodes"]),
    account("controller-manager", "system:kube-controller-manager", &[]),
    account("scheduler", "system:kube-scheduler", &[]),
    account("kube-proxy", "system:kube-proxy", &[]),
    account("monitoring", "monitoring", &["system:monitoring"]),
    account(
        "gc",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
    ),
    account(
        "namespace-controller",
        "system:serviceaccount:kube-system:namespace-controller",
        &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
    ),
    account("constrained", "constrained", &["constrained"]),
];

/// A placeholder for a token that each server issues itself: of the account `alpha/runner`, bound to its pod on the
/// node `n1`.
pub const BOUND: &str = "bound";

/// A user with a token and additional headers, and the fraction of the requests that it sends.
pub struct Asker {
    pub label: String,
    pub token: Option<String>,
    pub headers: &'static [(&'static str, &'static str)],
    /// The user sends one request of this number.
    pub every: u64,
}

impl Asker {
    /// Returns the token for a server that has issued `bound`.
    pub fn token<'a>(&'a self, bound: &'a str) -> Option<&'a str> {
        self.token.as_deref().map(|token| if token == BOUND { bound } else { token })
    }

    /// Returns whether this user sends the request. The choice depends on the request's text and is the same in every
    /// run. All users send the writes with valid bodies.
    pub fn asks(&self, question: &Question) -> bool {
        if question.body.is_some() {
            return true;
        }
        let text = format!("{} {} {}", self.label, question.method, question.target);
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        (hash >> 32) % self.every == 0
    }
}

/// The impersonating users, one for each group. Each has a name of its own: upstream first tries the mode of
/// impersonation that was allowed to the user the last time, and the modes may lead to different groups.
const ACTING: &[(&str, &[(&str, &str)])] = &[
    ("system:masters", &[("Impersonate-User", "viewer")]),
    ("system:masters", &[("Impersonate-User", "nobody"), ("Impersonate-Group", "editors")]),
    ("system:masters", &[("Impersonate-User", "system:anonymous")]),
    ("system:masters", &[("Impersonate-User", "system:node:n1")]),
    ("system:masters", &[("Impersonate-User", "system:node:n1"), ("Impersonate-Group", "system:nodes")]),
    ("system:masters", &[("Impersonate-User", "system:serviceaccount:alpha:runner")]),
    ("system:masters", &[("Impersonate-User", "nobody"), ("Impersonate-Group", "system:masters")]),
    ("none", &[("Impersonate-User", "nobody")]),
    ("cluster-admins", &[("Impersonate-User", "viewer")]),
    ("cluster-admins", &[("Impersonate-User", "x"), ("Impersonate-Group", "system:masters")]),
    ("cluster-admins", &[("Impersonate-User", "system:node:n1")]),
    ("impersonators", &[("Impersonate-User", "viewer")]),
    ("impersonators", &[("Impersonate-User", "editor")]),
    ("impersonators", &[("Impersonate-User", "viewer"), ("Impersonate-Group", "editors")]),
    ("impersonators", &[("Impersonate-User", "viewer"), ("Impersonate-Group", "others")]),
    (
        "impersonators",
        &[("Impersonate-User", "viewer"), ("Impersonate-Group", "editors"), ("Impersonate-Group", "others")],
    ),
    ("impersonators", &[("Impersonate-User", "viewer"), ("Impersonate-Uid", "7")]),
    ("impersonators", &[("Impersonate-User", "viewer"), ("Impersonate-Uid", "8")]),
    ("impersonators", &[("Impersonate-User", "viewer"), ("Impersonate-Extra-scopes", "a")]),
    ("impersonators", &[("Impersonate-User", "viewer"), ("Impersonate-Extra-scopes", "b")]),
    ("impersonators", &[("Impersonate-User", "viewer"), ("Impersonate-Extra-Scopes%2fX", "a")]),
    ("impersonators", &[("Impersonate-User", "system:serviceaccount:alpha:runner")]),
    ("impersonators", &[("Impersonate-User", "system:serviceaccount:beta:runner")]),
    ("impersonators", &[("Impersonate-User", "system:serviceaccount:alpha")]),
    ("impersonators", &[("Impersonate-Group", "editors")]),
    ("impersonators", &[("Impersonate-Extra-scopes", "a")]),
    ("impersonators", &[("Impersonate-User", "")]),
    ("constrained", &[("Impersonate-User", "viewer")]),
    ("constrained", &[("Impersonate-User", "editor"), ("Impersonate-Group", "editors")]),
    ("constrained", &[("Impersonate-User", "editor"), ("Impersonate-Group", "others")]),
    ("constrained", &[("Impersonate-User", "editor"), ("Impersonate-Group", "system:masters")]),
    ("constrained", &[("Impersonate-User", "cluster-admin")]),
    ("constrained", &[("Impersonate-User", "viewer"), ("Impersonate-Uid", "7")]),
    ("constrained", &[("Impersonate-User", "viewer"), ("Impersonate-Extra-example.com%2fscopes", "a")]),
    ("constrained", &[("Impersonate-User", "viewer"), ("Impersonate-Extra-scopes", "a")]),
    ("constrained", &[("Impersonate-User", "system:serviceaccount:alpha:runner")]),
    ("constrained", &[("Impersonate-User", "system:serviceaccount:beta:other")]),
    (
        "constrained",
        &[
            ("Impersonate-User", "system:serviceaccount:alpha:runner"),
            ("Impersonate-Group", "system:serviceaccounts"),
        ],
    ),
    ("constrained", &[("Impersonate-User", "system:node:n1")]),
    ("constrained", &[("Impersonate-User", "system:node:n2")]),
    ("constrained", &[("Impersonate-User", "system:node:n1"), ("Impersonate-Group", "system:nodes")]),
];

/// The impersonation headers of the bearer of the bound token.
const BOUND_AS: &[&[(&str, &str)]] = &[
    &[],
    &[("Impersonate-User", "system:node:n1")],
    &[("Impersonate-User", "system:node:n2")],
    &[("Impersonate-User", "system:node:n1"), ("Impersonate-Group", "system:nodes")],
    &[("Impersonate-User", "viewer")],
];

/// Returns all users. Those that impersonate others, or differ little from another user, send only a fraction of the
/// requests.
pub fn askers() -> Vec<Asker> {
    let seldom =
        ["unnamed-node", "node-without-group", "group-without-node", "n3", "gc", "namespace-controller"];
    let mut all = vec![
        Asker { label: "anonymous".into(), token: None, headers: &[], every: 1 },
        Asker { label: "wrong token".into(), token: Some("wrong".into()), headers: &[], every: 4 },
    ];
    all.extend(ACCOUNTS.iter().map(|a| Asker {
        label: a.label.into(),
        token: Some(a.label.into()),
        headers: &[],
        every: if seldom.contains(&a.label) { 4 } else { 1 },
    }));
    all.extend(ACTING.iter().enumerate().map(|(at, (group, headers))| {
        let shown: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let label = format!("one of {group} ({})", shown.join(", "));
        Asker { label, token: Some(format!("acting-{at}")), headers, every: 16 }
    }));
    all.extend(BOUND_AS.iter().map(|headers| {
        let shown: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let label = format!("bound to a pod ({})", shown.join(", "));
        Asker { label, token: Some(BOUND.into()), headers, every: 8 }
    }));
    all
}

/// Returns the token file that both servers read.
pub fn token_file() -> String {
    // An empty column would be a group without a name.
    let line = |token: &str, name: &str, groups: &str| match groups {
        "" => format!("{token},{name},uid-{token}\n"),
        _ => format!("{token},{name},uid-{token},\"{groups}\"\n"),
    };
    let accounts = ACCOUNTS.iter().map(|a| line(a.label, a.name, &a.groups.join(",")));
    let acting = ACTING.iter().enumerate().map(|(at, (group, _))| {
        let name = format!("acting-{at}");
        line(&name, &name, group)
    });
    accounts.chain(acting).collect()
}
