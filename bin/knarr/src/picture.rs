//! The objects of a cluster that scheduling depends on, read from the live cluster or from a file, for
//! `explain` and `simulate`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use knarr_client::http::HttpTransport;
use knarr_client::kubeconfig::Access;
use knarr_client::{Client, Error as ClientError, ListOptions};
use knarr_scheduler::config::Configuration;
use knarr_scheduler::what_if::{self, WhatIf};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::layout::{DEFAULT_DATA_DIR, Layout};

#[derive(Args)]
pub struct PictureArgs {
    /// Kubeconfig of a user who may list nodes and pods [default: the server's own in its data folder]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Use a saved cluster: the output of `knarr simulate --save`, or of `kubectl get --all-namespaces -o
    /// json` for all kinds that docs/scheduling-questions.md lists
    #[arg(long, value_name = "FILE", conflicts_with = "save")]
    snapshot: Option<PathBuf>,
    /// Save all objects that scheduling depends on, for `--snapshot`
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Configuration of the scheduler, a `KubeSchedulerConfiguration`
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,
    /// Namespace of objects that name none
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// A kind of request that the server's scheduling API answers.
pub struct Question {
    kind: &'static str,
    plural: &'static str,
}

pub const EXPLANATION: Question = Question { kind: "PodExplanation", plural: "podexplanations" };
pub const SIMULATION: Question = Question { kind: "Simulation", plural: "simulations" };

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

impl PictureArgs {
    pub fn take(&self) -> Result<WhatIf> {
        let configuration = match &self.scheduler_config {
            None => Configuration::default(),
            Some(file) => {
                Configuration::from_yaml(&text(file)?).with_context(|| file.display().to_string())?
            }
        };
        let objects = match &self.snapshot {
            Some(file) => objects(file)?,
            None => self.live()?,
        };
        if let Some(file) = &self.save {
            save(file, &objects)?;
        }
        Ok(WhatIf::new(&configuration, &objects)?)
    }

    /// Asks the server, which knows its scheduler's view of node health. Returns `None` if it does not answer
    /// such requests of this user, or if the request is not about the cluster as it runs now.
    pub fn ask<T: DeserializeOwned>(&self, question: &Question, spec: &Value) -> Result<Option<T>> {
        if self.snapshot.is_some() || self.save.is_some() || self.scheduler_config.is_some() {
            return Ok(None);
        }
        let (client, runtime) = self.connect()?;
        let api = "scheduling.knarr.io/v1alpha1";
        let asked = json!({"apiVersion": api, "kind": question.kind, "spec": spec});
        let path = format!("/apis/{api}/namespaces/{}/{}", self.namespace, question.plural);
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(asked.to_string().into())?;
        match runtime.block_on(client.transport().send(request)) {
            Ok(answer) => {
                let answer: Value = serde_json::from_slice(answer.body())?;
                Ok(Some(
                    serde_json::from_value(answer["status"].clone())
                        .context("the answer is not understood")?,
                ))
            }
            Err(error) if error.is_not_found() => Ok(None),
            // The request is invalid on the server and here.
            Err(error) if error.status().is_some_and(|status| status.code() == 400) => Err(error.into()),
            Err(error) if error.status().is_some() => {
                eprintln!("warning: computed here, because the server does not answer: {error}");
                Ok(None)
            }
            Err(error) => Err(error).context("cannot ask the server"),
        }
    }

    fn live(&self) -> Result<Vec<Value>> {
        let (client, runtime) = self.connect()?;
        let (objects, warnings) = runtime.block_on(read(&client))?;
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        Ok(objects)
    }

    fn connect(&self) -> Result<(Client, tokio::runtime::Runtime)> {
        let own = || Layout::at(Path::new(DEFAULT_DATA_DIR)).admin_kubeconfig();
        let file = self.kubeconfig.clone().unwrap_or_else(own);
        let access = Access::load(&file)
            .with_context(|| format!("cannot use {}: --kubeconfig names another one", file.display()))?;
        let transport = HttpTransport::new(&access).context("cannot use the kubeconfig")?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let client = Client::new(Arc::new(transport), clock, "knarr");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok((client, runtime))
    }
}

/// Reads all objects that scheduling depends on. Also returns warnings: kinds that the user may not list are
/// left out, except for nodes and pods.
pub async fn read(client: &Client) -> Result<(Vec<Value>, Vec<String>)> {
    let (mut objects, mut warnings) = (Vec::new(), Vec::new());
    for (at, resource) in what_if::READ.iter().enumerate() {
        let list = match client.transport().list(resource, None, &ListOptions::default()).await {
            Ok(list) => list,
            // Kinds that are served on request only may be missing. For an unknown path, a server returns no
            // reason in its Status.
            Err(error) if at >= 2 && not_served(&error) && resource.version != "v1" => continue,
            Err(error) if at >= 2 && error.status().is_some() => {
                warnings.push(format!("{} are left out: {error}", resource.plural));
                continue;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot list {}", resource.plural));
            }
        };
        for item in list.items {
            let mut object: Value = serde_json::from_slice(&item.json())?;
            object["apiVersion"] = resource.api_version().into();
            object["kind"] = resource.kind.into();
            objects.push(object);
        }
    }
    Ok((objects, warnings))
}

fn not_served(error: &ClientError) -> bool {
    error.status().is_some_and(|status| status.code() == 404)
}

/// Writes the objects in the form that `objects` reads.
fn save(file: &Path, objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(file, list.to_string()).with_context(|| format!("cannot write {}", file.display()))
}

/// Reads the objects of a file; `-` is standard input.
pub fn objects(file: &Path) -> Result<Vec<Value>> {
    let read = what_if::read(&text(file)?);
    read.map_err(|why| anyhow::anyhow!("{}: {why}", file.display()))
}

fn text(file: &Path) -> Result<String> {
    let read = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    read.with_context(|| format!("cannot read {}", file.display()))
}

/// Prints rows with aligned columns, as kubectl does.
pub fn print_table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("   ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_read_again() {
        let file = std::env::temp_dir().join(format!("knarr-picture-{}.json", std::process::id()));
        let all =
            [json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "a"}}), json!({"kind": "Pod"})];
        save(&file, &all).unwrap();
        assert_eq!(objects(&file).unwrap(), all);
        std::fs::remove_file(&file).unwrap();
    }
}
