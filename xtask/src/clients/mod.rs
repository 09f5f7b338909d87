//! `cargo xtask clients`: runs other projects' clients against a fresh server, and prints a table of the
//! results.

mod facts;
mod go;
mod outcome;
mod process;
mod registries;
mod report;
mod trial;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::bench::cluster::Cluster;
use facts::Client;
use outcome::{Outcome, Row};
use registries::Fetched;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask clients\n  cargo xtask clients --only helm --only client-go\n  \
    KNARR_BIN=/usr/bin/knarr cargo xtask clients -o json"
)]
pub struct Args {
    /// Only this client; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Folder to cache downloads from the registries in
    #[arg(long, value_name = "DIR", default_value = "target/clients")]
    cache: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Time after which a client has failed
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Returns the folder of the scripts and programs that use the clients, and of the table of versions.
fn folder() -> PathBuf {
    crate::root().join("xtask/clients")
}

pub fn run(args: &Args) -> Result<()> {
    let clients = facts::chosen(facts::read(&folder().join("clients.json"))?, &args.only)?;
    let binary = crate::release_binary()?;
    std::fs::create_dir_all(&args.cache)?;
    let cache = args.cache.canonicalize()?;
    // Downloads are done first, because from the start of the sandbox on this thread is in its network.
    let fetched: Vec<Fetched> = clients.iter().map(|client| registries::fetch(client, &cache)).collect();
    let rows = try_all(&binary, &cache, clients, fetched, Duration::from_secs(args.timeout))?;
    match args.output {
        Format::Table => print!("{}", report::table(&rows)),
        Format::Json => println!("{}", report::json(&rows)),
    }
    let failed: Vec<&str> =
        rows.iter().filter(|r| r.outcome.is_failure()).map(|r| r.client.as_str()).collect();
    if !failed.is_empty() {
        bail!("{} of {} clients failed: {}", failed.len(), rows.len(), failed.join(", "));
    }
    if !rows.iter().any(|row| row.outcome == Outcome::Works) {
        bail!("no client was tried");
    }
    Ok(())
}

fn try_all(
    binary: &Path,
    cache: &Path,
    clients: Vec<Client>,
    fetched: Vec<Fetched>,
    limit: Duration,
) -> Result<Vec<Row>> {
    let logs = cache.join("logs");
    std::fs::create_dir_all(&logs)?;
    let mut cluster = Cluster::new(binary)?;
    // The clients' results do not depend on the free space of the disk.
    cluster.start(&["--eviction-hard", "memory.available<100Mi"])?;
    let mut rows = Vec::new();
    for (client, fetched) in clients.into_iter().zip(fetched) {
        rows.push(match fetched {
            Fetched::Program(program) => trial::of(&client, &program, &cluster, &logs, limit)?,
            Fetched::Not(outcome) => Row::new(&client, outcome),
        });
    }
    std::fs::copy(cluster.sandbox.path("server.log"), logs.join("server.log"))?;
    eprintln!("what the clients and the server said: {}", logs.display());
    Ok(rows)
}
