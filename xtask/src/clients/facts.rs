//! The table of clients, `xtask/clients/clients.json`: the source and version of each client.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Where a client is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registry {
    Pypi,
    Npm,
    Go,
    /// Installed on the machine, in a version that is not chosen here.
    Machine,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    pub name: String,
    pub registry: Registry,
    /// The registry's name of it: a package, a module, or a program of the machine.
    pub package: String,
    #[serde(default)]
    pub version: String,
    /// Further packages with their versions, as `NAME@VERSION`; a Go command is built with them in place of
    /// older ones.
    #[serde(default)]
    pub with: Vec<String>,
    /// The Go command in the module that is the client, or several with spaces between; if empty, the program
    /// in the folder of the client's name is built with the module.
    #[serde(default)]
    pub command: String,
    /// Whether the commands are built in the module itself, so that its `replace` directives hold.
    #[serde(default)]
    pub in_place: bool,
    /// The path of the program's module: a client's `internal` packages are only visible to modules below its
    /// own path.
    #[serde(default)]
    pub module: String,
    /// Files and folders of the module that the script uses, such as the client's CustomResourceDefinitions.
    #[serde(default)]
    pub files: Vec<String>,
    /// The script of this repository that uses the client.
    #[serde(default)]
    pub script: String,
}

impl Client {
    /// Returns the package and those with it, as name and version.
    pub fn packages(&self) -> impl Iterator<Item = (&str, &str)> {
        let with = self.with.iter().filter_map(|package| package.rsplit_once('@'));
        std::iter::once((self.package.as_str(), self.version.as_str())).chain(with)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    clients: Vec<Client>,
}

pub fn read(path: &Path) -> Result<Vec<Client>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let table: Table = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
    Ok(table.clients)
}

/// Returns the clients with these names, or all if there are no names.
pub fn chosen(clients: Vec<Client>, names: &[String]) -> Result<Vec<Client>> {
    if let Some(unknown) = names.iter().find(|name| clients.iter().all(|client| client.name != **name)) {
        let known: Vec<&str> = clients.iter().map(|client| client.name.as_str()).collect();
        bail!("no client is named {unknown}; there are {}", known.join(", "));
    }
    Ok(clients.into_iter().filter(|client| names.is_empty() || names.contains(&client.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<Client> {
        read(&crate::clients::folder().join("clients.json")).expect("the table")
    }

    #[test]
    fn every_client_has_a_version_and_something_that_uses_it() {
        for client in table() {
            let folder = crate::clients::folder();
            assert_eq!(client.version.is_empty(), client.registry == Registry::Machine, "{}", client.name);
            assert_eq!(client.packages().count(), 1 + client.with.len(), "{}: NAME@VERSION", client.name);
            let is_go = client.registry == Registry::Go;
            let ours = is_go && client.command.is_empty();
            assert_eq!(folder.join(&client.name).join("main.go").is_file(), ours, "{}", client.name);
            assert!(ours || !client.script.is_empty(), "{}", client.name);
            assert!(client.script.is_empty() || folder.join(&client.script).is_file(), "{}", client.name);
            assert!(ours || client.module.is_empty(), "{}", client.name);
            assert!(is_go || client.files.is_empty(), "{}", client.name);
            assert!(!client.in_place || client.with.is_empty() && !ours, "{}", client.name);
            assert!(client.with.is_empty() || !client.command.contains(' '), "{}: one command", client.name);
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        let one = table().remove(0).name;
        let names: Vec<String> =
            chosen(table(), std::slice::from_ref(&one)).expect("one").into_iter().map(|c| c.name).collect();
        assert_eq!(names, [one]);
        assert_eq!(chosen(table(), &[]).expect("all"), table());
        let error = chosen(table(), &["nobody".to_owned()]).expect_err("an unknown name").to_string();
        assert!(error.starts_with("no client is named nobody; there are "), "{error}");
    }
}
