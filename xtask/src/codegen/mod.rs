//! `cargo xtask codegen`: writes the field-schema table from the published Kubernetes modules.
//!
//! It reads three sources: the Go structs (JSON names, types, protobuf numbers), the published OpenAPI
//! documents (required, defaults, list types, merge keys) and the OpenAPI Go source (enums). If two of them
//! disagree on a field, nothing is written.

mod emit;
mod enums;
mod gosrc;
mod model;
mod modules;
mod openapi;
mod roots;

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The Kubernetes release whose facts are written. Go modules of the API packages, then of the server.
const API_VERSION: &str = "v0.37.2";
const SERVER_VERSION: &str = "v1.37.0";

#[derive(clap::Args)]
pub struct Args {
    /// File to write the table to
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/apimachinery/src/schema/generated.rs"))]
    out: PathBuf,
    /// Only check that the table is up to date
    #[arg(long)]
    check: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let modules = modules::fetch(API_VERSION, SERVER_VERSION)?;
    let published = openapi::read(&modules.server)?;
    let enums = enums::read(&modules.server)?;
    let mut sources = gosrc::Sources::new(&modules);
    let table = model::build(&mut sources, &published, &enums)?;
    let text = emit::emit(&table, API_VERSION, SERVER_VERSION);
    if args.check {
        let old = std::fs::read_to_string(&args.out).context("reading the table")?;
        anyhow::ensure!(old == text, "{} is out of date: run `cargo xtask codegen`", args.out.display());
        return Ok(());
    }
    std::fs::write(&args.out, &text).with_context(|| format!("writing {}", args.out.display()))?;
    println!(
        "{}: {} structs, {} fields, {} kinds",
        args.out.display(),
        table.structs.len(),
        table.structs.values().map(|s| s.fields.len()).sum::<usize>(),
        table.kinds.len()
    );
    Ok(())
}
