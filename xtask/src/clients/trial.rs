//! Runs one client's script in the sandbox, in its own namespace.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::facts::Client;
use super::outcome::{End, Row, judge, steps};
use super::process;
use super::registries::Program;
use crate::bench::cluster::Cluster;
use crate::http::JSON;

/// How long the namespace's service account may take, which must exist before its pods.
const ACCOUNT: Duration = Duration::from_secs(30);

pub fn of(
    client: &Client,
    program: &Program,
    cluster: &Cluster,
    logs: &Path,
    limit: Duration,
) -> Result<Row> {
    let namespace = namespace(&client.name);
    make(&namespace, cluster)?;
    let home = cluster.sandbox.path(&namespace);
    std::fs::create_dir_all(&home)?;
    let log = logs.join(format!("{}.log", client.name));
    let _ = std::fs::remove_file(&log);
    let mut command = cluster.sandbox.command("env");
    let path = std::env::var("PATH").unwrap_or_default();
    // nsenter(1) changes to the root of the sandbox's mounts: the script's own folder is entered after that.
    command.arg(format!("--chdir={}", home.display()));
    command.arg(format!("PATH={}:{path}", program.path.display())).args(&program.words);
    command.env("KUBECONFIG", cluster.data_dir().join("admin.kubeconfig"));
    command.env("KNARR_NAMESPACE", &namespace).env("KNARR_EXAMPLES", crate::root().join("examples"));
    command.env("KNARR_FILES", &program.files);
    // The machine's own settings are neither used nor changed.
    command.env("HOME", &home).env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUNBUFFERED", "1");
    process::lead(&mut command);
    eprintln!("{} {}: tried", client.name, program.version);
    let begun = Instant::now();
    let end = process::run(command, &log, limit, &format!("{}: tried", client.name))?;
    let output = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    let row = Row {
        client: client.name.clone(),
        version: program.version.clone(),
        tried: steps(&output),
        outcome: judge(end, &output),
        seconds: begun.elapsed().as_secs(),
    };
    eprintln!("{} {}: {} {}", row.client, row.version, row.outcome.word(), row.outcome.reason());
    if end != End::Success {
        eprintln!("{output}");
    }
    Ok(row)
}

/// Returns a valid name of a namespace.
fn namespace(client: &str) -> String {
    format!("try-{}", client.replace('_', "-"))
}

fn make(name: &str, cluster: &Cluster) -> Result<()> {
    let mut connection = cluster.access()?.connect()?;
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    connection.json("POST", "/api/v1/namespaces", Some(&body))?;
    let begun = Instant::now();
    let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
    while connection.request("GET", &account, JSON, None)?.code != 200 {
        if begun.elapsed() > ACCOUNT {
            bail!("namespace {name} has no service account after {ACCOUNT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_have_names_that_may_be() {
        assert_eq!(namespace("kubernetes_asyncio"), "try-kubernetes-asyncio");
    }
}
