//! Fetches clients from the registries into the cache, each into its own folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::facts::{Client, Registry};
use super::outcome::{End, Outcome, not_fetched};
use super::{go, process};

/// The limit of one step: a first build on a slow machine takes long.
const LIMIT: Duration = Duration::from_secs(3600);
/// The file that lists what was installed into a folder, written once that is complete.
const INSTALLED: &str = "installed";

/// A client that is ready to be run.
pub struct Program {
    /// The program and its script.
    pub words: Vec<PathBuf>,
    /// Precedes the other folders in `PATH`.
    pub path: PathBuf,
    /// The folder of the module files that the table names.
    pub files: PathBuf,
    pub version: String,
}

pub enum Fetched {
    Program(Program),
    Not(Outcome),
}

/// Fetches a client into the folder of its name in the cache, if it is missing there.
pub fn fetch(client: &Client, cache: &Path) -> Fetched {
    let folder = cache.join(&client.name);
    let log = cache.join(format!("{}.fetch.log", client.name));
    let _ = fs::remove_file(&log);
    match fetched(client, &folder, &log) {
        Ok(Some(program)) => Fetched::Program(program),
        Ok(None) => Fetched::Not(not_fetched(&fs::read_to_string(&log).unwrap_or_default())),
        // The registry's client program is not on the machine.
        Err(error) if is_absent(&error) => Fetched::Not(Outcome::Unavailable(format!("{error:#}"))),
        Err(error) => Fetched::Not(Outcome::Failed(format!("{error:#}"))),
    }
}

fn is_absent(error: &anyhow::Error) -> bool {
    let io = error.root_cause().downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Runs the steps; `None` if one failed, and the log has the reason.
fn fetched(client: &Client, folder: &Path, log: &Path) -> Result<Option<Program>> {
    let scripts = super::folder();
    let script = scripts.join(&client.script);
    let bin = folder.join("bin");
    let program = |first: PathBuf, rest: Option<PathBuf>| Program {
        words: std::iter::once(first).chain(rest).collect(),
        path: bin.clone(),
        files: folder.join(go::FILES),
        version: client.version.clone(),
    };
    Ok(match client.registry {
        Registry::Pypi => {
            installed(client, folder, log, pypi)?.then(|| program(bin.join("python"), Some(script)))
        }
        Registry::Npm => {
            if !installed(client, folder, log, npm)? {
                return Ok(None);
            }
            // Node searches for modules beside the script.
            let copy = folder.join(&client.script);
            fs::copy(&script, &copy)?;
            Some(program("node".into(), Some(copy)))
        }
        Registry::Go => {
            let is_there = if client.command.is_empty() {
                // The compiler itself decides whether anything needs to be built.
                all(go::program(client, folder, &scripts.join(&client.name))?, client, log)?
            } else {
                installed(client, folder, log, go::commands)?
            };
            is_there.then(|| match interpreter(&client.script) {
                Some(interpreter) => program(interpreter.into(), Some(script)),
                None => program(bin.join(&client.name), None),
            })
        }
        Registry::Machine => {
            let output = Command::new(&client.package).arg("--version").output();
            let output = output.with_context(|| format!("no program {}", client.package))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = text.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
            Some(Program { version, ..program("sh".into(), Some(script)) })
        }
    })
}

/// Returns the machine's program that runs a script, if there is a script.
fn interpreter(script: &str) -> Option<&'static str> {
    match script.rsplit_once('.')?.1 {
        "py" => Some("python3"),
        _ => Some("sh"),
    }
}

/// Installs the packages into an empty folder unless these versions are installed; returns whether they are.
fn installed(
    client: &Client,
    folder: &Path,
    log: &Path,
    steps: fn(&Client, &Path) -> Vec<Command>,
) -> Result<bool> {
    let mut wanted: String = client.packages().map(|(name, version)| format!("{name} {version}\n")).collect();
    wanted.extend(client.files.iter().map(|file| format!("{file}\n")));
    let mark = folder.join(INSTALLED);
    if fs::read_to_string(&mark).is_ok_and(|text| text == wanted) {
        return Ok(true);
    }
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let done = all(steps(client, folder), client, log)?;
    if done {
        fs::write(mark, wanted)?;
    }
    Ok(done)
}

fn all(steps: Vec<Command>, client: &Client, log: &Path) -> Result<bool> {
    eprintln!("{} {}: from the registry", client.name, client.version);
    for step in steps {
        if process::run(step, log, LIMIT, &format!("{}: fetched and built", client.name))? != End::Success {
            return Ok(false);
        }
    }
    Ok(true)
}

fn pypi(client: &Client, folder: &Path) -> Vec<Command> {
    let mut environment = Command::new("python3");
    // A pip in each environment would take longer to install than the clients.
    environment.args(["-m", "venv", "--without-pip"]).arg(folder);
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "--python"]).arg(folder.join("bin/python")).args(["install", "--no-input"]);
    install.args(client.packages().map(|(name, version)| format!("{name}=={version}")));
    vec![environment, install]
}

fn npm(client: &Client, folder: &Path) -> Vec<Command> {
    let mut install = Command::new("npm");
    // Packages must not run programs of their own during the installation.
    install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--engine-strict", "--prefix"]);
    install.arg(folder).args(client.packages().map(|(name, version)| format!("{name}@{version}")));
    vec![install]
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn client(registry: Registry, with: &[&str]) -> Client {
        Client {
            name: "c".to_owned(),
            registry,
            package: "m.example/c".to_owned(),
            version: "v1.2.3".to_owned(),
            with: with.iter().map(|package| (*package).to_owned()).collect(),
            command: String::new(),
            in_place: false,
            module: String::new(),
            files: Vec::new(),
            script: String::new(),
        }
    }

    #[test]
    fn what_is_installed_is_not_fetched_again_unless_its_version_changes() {
        let folder = std::env::temp_dir().join(format!("knarr-clients-cache-{}", std::process::id()));
        let log = folder.with_extension("log");
        let touch: fn(&Client, &Path) -> Vec<Command> = |_, folder| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo x >>\"$0/count\""]).arg(folder);
            vec![command]
        };
        let fail: fn(&Client, &Path) -> Vec<Command> = |_, _| vec![Command::new("false")];
        let count = || fs::read_to_string(folder.join("count")).unwrap_or_default().lines().count();
        let one = client(Registry::Npm, &[]);
        assert!(!installed(&one, &folder, &log, fail).expect("steps"));
        assert!(installed(&one, &folder, &log, touch).expect("steps"));
        assert!(installed(&one, &folder, &log, touch).expect("steps"));
        assert_eq!(count(), 1);
        let two = client(Registry::Npm, &["d@2"]);
        assert!(!installed(&two, &folder, &log, fail).expect("steps"));
        assert!(installed(&two, &folder, &log, touch).expect("steps"));
        assert_eq!(count(), 1, "in an empty folder");
        fs::remove_dir_all(&folder).expect("folder");
        fs::remove_file(&log).expect("log");
    }

    #[test]
    fn scripts_are_run_by_what_they_are_written_for() {
        assert_eq!(interpreter("with_helm.sh"), Some("sh"));
        assert_eq!(interpreter("with_k9s.py"), Some("python3"));
        assert_eq!(interpreter(""), None);
    }

    #[test]
    fn a_program_that_the_machine_lacks_is_no_failure() {
        let cache = std::env::temp_dir();
        let absent = Client { package: "knarr-no-such-program".to_owned(), ..client(Registry::Machine, &[]) };
        let Fetched::Not(outcome) = fetch(&absent, &cache) else { panic!("a program that does not exist") };
        assert!(matches!(outcome, Outcome::Unavailable(_)), "{outcome:?}");
    }
}
