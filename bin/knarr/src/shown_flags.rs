//! The flags of this process as `/flagz` shows them: all flags of its subcommand, with their given or default
//! values.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::OnceLock;

use clap::{Arg, ArgAction, ArgMatches, Args, Command};

/// Shown in place of a secret value.
const CLASSIFIED: &str = "CLASSIFIED";
/// Last words of the names of flags with secret values. Names of flags that hold file names end in another
/// word.
const SECRET: [&str; 4] = ["passphrase", "password", "secret", "token"];

static NOTED: OnceLock<ShownFlags> = OnceLock::new();

/// Names, without dashes, and values.
#[derive(Debug, Clone, Default)]
pub struct ShownFlags(Vec<(String, String)>);

impl ShownFlags {
    /// Returns the flags that [`ShownFlags::note`] recorded.
    pub fn of_process() -> Self {
        NOTED.get().cloned().unwrap_or_default()
    }

    /// Records the flags of this process, which has these commands. Called once, at the start.
    pub fn note(command: Command) {
        NOTED.get_or_init(|| Self::read(command, std::env::args_os()));
    }

    /// Reads the flags of the subcommand that `arguments` select.
    fn read(command: Command, arguments: impl IntoIterator<Item = OsString>) -> Self {
        // Arguments that cannot be parsed have started nothing.
        let Ok(matches) = command.clone().try_get_matches_from(arguments) else { return Self::default() };
        let Some((name, matches)) = matches.subcommand() else { return Self::default() };
        let flags = command.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
        Self(flags.filter_map(|flag| Some((flag.get_long()?.to_owned(), shown(flag, matches)))).collect())
    }

    /// Returns the flags of `A`.
    pub fn of<A: Args>(&self) -> Vec<(String, String)> {
        let names = names::<A>();
        self.0.iter().filter(|(name, _)| names.contains(name)).cloned().collect()
    }

    /// Returns all flags except those of `A`.
    pub fn without<A: Args>(&self) -> Vec<(String, String)> {
        let names = names::<A>();
        self.0.iter().filter(|(name, _)| !names.contains(name)).cloned().collect()
    }

    pub fn all(self) -> Vec<(String, String)> {
        self.0
    }
}

fn names<A: Args>() -> BTreeSet<String> {
    let command = A::augment_args(Command::new(""));
    command.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect()
}

fn shown(flag: &Arg, matches: &ArgMatches) -> String {
    let given = matches.try_get_raw(flag.get_id().as_str()).ok().flatten();
    let values: Vec<_> = given.into_iter().flatten().map(|value| value.to_string_lossy()).collect();
    let value = values.join(",");
    if is_secret(flag.get_long().unwrap_or(""), &value) {
        return CLASSIFIED.to_owned();
    }
    // Lists have the form that upstream's flags show.
    if matches!(flag.get_action(), ArgAction::Append) { format!("[{value}]") } else { value }
}

/// Returns whether a value is secret, by the name of the flag or because it is a URL with a password.
fn is_secret(name: &str, value: &str) -> bool {
    let is_url_with_user = value.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#', ',']).next().unwrap_or("");
        authority.contains('@')
    });
    let last = name.rsplit('-').next().unwrap_or("");
    !value.is_empty() && (SECRET.contains(&last) || is_url_with_user)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;
    use crate::node::NodeArgs;

    fn read(words: &[&str]) -> ShownFlags {
        ShownFlags::read(Cli::command(), words.iter().map(OsString::from))
    }

    fn value<'a>(flags: &'a [(String, String)], name: &str) -> Option<&'a str> {
        flags.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    #[test]
    fn flags_are_shown_with_their_values() {
        let words = [
            "knarr",
            "server",
            "--event-ttl=5m",
            "--max-requests-inflight",
            "7",
            "--audit-log-compress",
            "--node-label=a=b",
            "--node-label=c=d",
            "--etcd-servers=http://root:hunter2@10.0.0.5:2379",
        ];
        let flags = read(&words);
        let (server, node) = (flags.without::<NodeArgs>(), flags.of::<NodeArgs>());
        for (flags, name, expected) in [
            (&server, "event-ttl", Some("5m")),
            (&server, "max-requests-inflight", Some("7")),
            (&server, "audit-log-compress", Some("true")),
            (&server, "disable-node", Some("false")),
            (&server, "request-timeout", Some("1m0s")),
            (&server, "authorization-mode", Some("[Node,RBAC]")),
            (&server, "audit-log-path", Some("")),
            (&server, "etcd-servers", Some(CLASSIFIED)),
            (&server, "kubelet-port", None),
            (&server, "help", None),
            (&node, "kubelet-port", Some("10250")),
            (&node, "node-label", Some("[a=b,c=d]")),
            (&node, "registry-mirror", Some("[]")),
            (&node, "event-ttl", None),
        ] {
            assert_eq!(value(flags, name), expected, "{name}");
        }
    }

    #[test]
    fn each_component_has_flags() {
        let component = read(&["knarr", "scheduler", "--kubeconfig=/k", "--leader-elect=false"]).all();
        assert_eq!(value(&component, "kubeconfig"), Some("/k"));
        assert_eq!(value(&component, "leader-elect"), Some("false"));
        assert_eq!(value(&component, "secure-port"), Some(""));
        let agent = read(&["knarr", "agent", "--kubeconfig", "/k"]).all();
        assert_eq!(value(&agent, "cluster-dns"), Some("10.43.0.10"));
        assert!(read(&["knarr", "agent", "--no-such-flag"]).all().is_empty());
    }

    #[test]
    fn secrets_are_not_shown() {
        for (name, value, secret) in [
            ("etcd-password", "x", true),
            ("token", "x", true),
            ("token", "", false),
            ("token-auth-file", "/tokens", false),
            ("authentication-token-webhook-cache-ttl", "2m0s", false),
            ("etcd-servers", "http://a:1,https://u:p@b:2", true),
            ("registry-mirror", "docker.io=https://u:p@mirror.example/x", true),
            ("registry-mirror", "docker.io=https://mirror.example/a@b", false),
        ] {
            assert_eq!(is_secret(name, value), secret, "{name}={value}");
        }
    }
}
