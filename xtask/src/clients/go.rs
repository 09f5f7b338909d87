//! Builds Go clients: the commands of their modules, or this repository's programs with their modules.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::facts::Client;

/// The folder, inside a client's own, for the module files that the table names.
pub const FILES: &str = "files";
/// The Go version of the programs here: what the modules in the table need.
const GO: &str = "1.26.0";
/// Copies files of a module from Go's module cache; the arguments are the module and the files.
const COPY: &str = r#"set -eu
from=$(go list -mod=mod -m -f '{{.Dir}}' "$0")
for file; do
    mkdir -p "files/$(dirname "$file")"
    cp -r --no-preserve=mode "$from/$file" "files/$(dirname "$file")"
done"#;
/// Builds commands in Go's module cache; the arguments are the module, the folder for the programs, and the
/// commands.
const IN_PLACE: &str = r#"set -eu
cd "$(go list -m -f '{{.Dir}}' "$0")"
go build -o "$@""#;

/// Returns the steps that build the client's commands, in an empty folder.
pub fn commands(client: &Client, folder: &Path) -> Vec<Command> {
    let commands: Vec<&str> = client.command.split_whitespace().collect();
    let module = module(client);
    let steps = if client.in_place {
        let mut build = shell(IN_PLACE, folder);
        build.arg(&module).arg(folder.join("bin/")).args(commands);
        vec![step(&["mod", "download", &module], folder), build]
    } else if client.with.is_empty() {
        let mut install = step(&["install"], folder);
        install.args(commands.iter().map(|command| format!("{command}@{}", client.version)));
        install.env("GOBIN", folder.join("bin"));
        vec![install]
    } else {
        // Requires newer modules than the client does itself.
        let required = client.packages().map(|(module, version)| format!("-require={module}@{version}"));
        let mut edit = step(&["mod", "edit"], folder);
        edit.args(required);
        let mut build = step(&["build", "-mod=mod", "-o"], folder);
        build.arg(folder.join("bin").join(&client.name)).args(commands);
        vec![step(&["mod", "init", &client.name], folder), edit, build]
    };
    steps.into_iter().chain(copy(client, folder)).collect()
}

/// Returns the steps that build the program of the client's name with the modules of the table.
pub fn program(client: &Client, folder: &Path, source: &Path) -> Result<Vec<Command>> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(source)?.flatten() {
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    fs::write(folder.join("go.mod"), go_mod(client))?;
    let mut build = step(&["build", "-mod=mod", "-o"], folder);
    build.arg(folder.join("bin").join(&client.name)).arg(".");
    Ok(std::iter::once(build).chain(copy(client, folder)).collect())
}

fn module(client: &Client) -> String {
    format!("{}@{}", client.package, client.version)
}

fn step(words: &[&str], folder: &Path) -> Command {
    let mut command = Command::new("go");
    command.args(words).current_dir(folder);
    command
}

fn shell(script: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(folder);
    command
}

/// Returns the step that copies the files of the module that the table names, if it names any.
fn copy(client: &Client, folder: &Path) -> Option<Command> {
    let mut copy = shell(COPY, folder);
    copy.arg(module(client)).args(&client.files);
    (!client.files.is_empty()).then_some(copy)
}

fn go_mod(client: &Client) -> String {
    let required: String =
        client.packages().map(|(module, version)| format!("require {module} {version}\n")).collect();
    let module = if client.module.is_empty() { &client.name } else { &client.module };
    format!("module {module}\n\ngo {GO}\n\n{required}")
}

#[cfg(test)]
mod tests {
    use super::super::facts::Registry;
    use super::super::registries::tests::client;
    use super::*;

    fn words(client: &Client) -> Vec<String> {
        let line = |command: &Command| {
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        commands(client, Path::new("/cache/c")).iter().map(line).collect()
    }

    #[test]
    fn commands_are_built_with_the_modules_of_the_table() {
        let command =
            |with: &[&str]| Client { command: "m.example/c/cmd/c".to_owned(), ..client(Registry::Go, with) };
        assert_eq!(words(&command(&[])), ["install m.example/c/cmd/c@v1.2.3"]);
        assert_eq!(
            words(&command(&["m.example/d@v4.5.6"])),
            [
                "mod init c",
                "mod edit -require=m.example/c@v1.2.3 -require=m.example/d@v4.5.6",
                "build -mod=mod -o /cache/c/bin/c m.example/c/cmd/c",
            ]
        );
        let in_place = Client { in_place: true, command: "./cmd/c ./cmd/d".to_owned(), ..command(&[]) };
        assert_eq!(
            words(&in_place),
            [
                "mod download m.example/c@v1.2.3".to_owned(),
                format!("-c {IN_PLACE} m.example/c@v1.2.3 /cache/c/bin/ ./cmd/c ./cmd/d"),
            ]
        );
        let files = Client { files: vec!["deploy/crds".to_owned()], ..command(&[]) };
        assert_eq!(words(&files)[1..], [format!("-c {COPY} m.example/c@v1.2.3 deploy/crds")]);
    }

    #[test]
    fn our_programs_require_what_the_table_says() {
        let one = client(Registry::Go, &["m.example/d@v4.5.6"]);
        assert_eq!(
            go_mod(&one),
            "module c\n\ngo 1.26.0\n\nrequire m.example/c v1.2.3\nrequire m.example/d v4.5.6\n"
        );
        let below = Client { module: "m.example/c/tried".to_owned(), ..one };
        assert!(go_mod(&below).starts_with("module m.example/c/tried\n"));
    }
}
