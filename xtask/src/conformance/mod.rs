//! `cargo xtask conformance`: Kubernetes' own conformance suite against a fresh cluster of two nodes.
//!
//! Nothing of the suite is kept in the repository: the suite, kubectl and the programs of its test images are built
//! from the published Go modules, the rest of the images is put together from Debian packages.

mod archive;
mod causes;
mod cluster;
mod images;
mod layers;
mod registry;
mod report;
mod suite;
mod table;
mod upstream;

use std::path::PathBuf;

use anyhow::{Context, Result};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask conformance --focus 'sig-node.*Probing'\n  cargo xtask conformance --list\n  \
    cargo xtask conformance --skip Serial --nodes 4"
)]
pub struct Args {
    /// Run only the specs whose name matches
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Leave out the specs whose name matches
    #[arg(long, value_name = "REGEX")]
    skip: Option<String>,
    /// Print the specs' names instead of running them
    #[arg(long)]
    list: bool,
    /// Specs that run at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    nodes: usize,
    /// Where builds, images, logs and results are kept
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Forget the results of earlier runs instead of replacing only those of the specs that run
    #[arg(long)]
    fresh: bool,
    /// Leave docs/CONFORMANCE.md as it is
    #[arg(long)]
    no_table: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let cache = args.cache.clone().unwrap_or_else(|| {
        std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| crate::root().join("target"), PathBuf::from)
            .join("conformance")
    });
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let cache = cache.canonicalize()?;
    let programs = upstream::Programs::build(&cache)?;
    let choice = suite::Choice { focus: args.focus.as_deref(), skip: args.skip.as_deref() };
    if args.list {
        let names = suite::list(&programs, &cache, choice)?;
        names.iter().for_each(|name| println!("{name}"));
        println!("{} specs", names.len());
        return Ok(());
    }
    let binary = crate::release_binary()?;
    let images = images::make(&programs, &cache)?;
    let cluster = cluster::Cluster::start(&binary, &images)?;
    let specs = suite::run(&programs, &cluster, &cache, choice, args.nodes)?;
    cluster.keep_logs(&cache)?;
    let known = cache.join("results.json");
    let mut results = if args.fresh { report::Results::default() } else { report::Results::open(&known)? };
    results.replace(&specs);
    results.save(&known)?;
    if !args.no_table {
        let path = crate::root().join("docs/CONFORMANCE.md");
        std::fs::write(&path, table::page(&results))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{}", report::summary(&specs));
    Ok(())
}
