//! `knarr image`: manages the node's images without a running server.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use knarr_runtime::images::{
    Credential, Image, ImageStore, ImportOptions, Keyring, Progress, PullOptions, Reference,
};
use serde_json::json;

use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::{example_images, preflight};

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr image ls\n  knarr image import app.tar\n  \
    knarr image pull registry.example.com/app:1.0 --username me --password-stdin\n  knarr image examples")]
pub struct ImageArgs {
    /// The server's data folder
    #[arg(long, global = true, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Import images from OCI or docker archives
    Import {
        /// Archives as written by `docker save` or `skopeo copy … oci-archive:`; `-` reads standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Name of an image that has none in the archive
        #[arg(long)]
        name: Option<String>,
    },
    /// List images
    #[command(visible_alias = "list")]
    Ls {
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Remove images by name or id
    Rm {
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Pull images from their registries
    Pull {
        #[arg(required = true)]
        images: Vec<String>,
        /// User name for the registry
        #[arg(long)]
        username: Option<String>,
        /// Read the password from standard input
        #[arg(long, requires = "username")]
        password_stdin: bool,
        /// Use plain HTTP for this registry (`host[:port]`); always used for loopback registries
        #[arg(long, value_name = "REGISTRY")]
        insecure_registry: Vec<String>,
    },
    /// Write images to an OCI archive
    Export {
        #[arg(required = true)]
        images: Vec<String>,
        /// File to write
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Build the images of the examples from what this machine has
    Examples,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

pub fn run(args: ImageArgs) -> Result<()> {
    preflight::root("work with images")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run_async(args))
}

async fn run_async(args: ImageArgs) -> Result<()> {
    let store = ImageStore::open(Layout::create(&args.data_dir)?.images()).await?;
    match args.command {
        Command::Import { files, name } => import(&store, files, name).await,
        Command::Ls { output } => list(&store, output).await,
        Command::Rm { images } => remove(&store, images).await,
        Command::Pull { images, username, password_stdin, insecure_registry } => {
            let credential =
                username.map(|name| read_password(password_stdin).map(|p| Credential::basic(&name, &p)));
            pull(&store, images, credential.transpose()?, insecure_registry).await
        }
        Command::Export { images, output } => {
            let file = std::fs::File::create(&output)
                .with_context(|| format!("cannot write {}", output.display()))?;
            let file = store.export(&images, file).await?;
            file.sync_all().with_context(|| format!("cannot write {}", output.display()))
        }
        Command::Examples => {
            for name in example_images::build(&store).await? {
                println!("{name}");
            }
            Ok(())
        }
    }
}

async fn import(store: &ImageStore, files: Vec<PathBuf>, name: Option<String>) -> Result<()> {
    let name = name.map(|n| n.parse::<Reference>().with_context(|| format!("image name {n}"))).transpose()?;
    for file in files {
        let options = ImportOptions { name: name.clone(), ..ImportOptions::default() };
        let images = if file.as_os_str() == "-" {
            store.import_from(std::io::stdin(), options).await?
        } else {
            store.import(&file, options).await?
        };
        for image in images {
            println!("imported {}", names_of(&image).join(", "));
        }
    }
    Ok(())
}

async fn list(store: &ImageStore, output: Output) -> Result<()> {
    let images = store.list().await?;
    if output == Output::Json {
        let list: Vec<_> = images
            .iter()
            .map(|i| {
                json!({"id": i.id.to_string(), "repoTags": i.repo_tags, "repoDigests": i.repo_digests,
                    "size": i.size, "created": i.created})
            })
            .collect();
        println!("{:#}", json!({ "images": list }));
        return Ok(());
    }
    let mut rows = vec![["IMAGE".to_owned(), "ID".to_owned(), "SIZE".to_owned()]];
    for image in &images {
        let id = image.id.to_string();
        let id = id.trim_start_matches("sha256:").chars().take(12).collect::<String>();
        for name in names_of(image) {
            rows.push([name, id.clone(), human_size(image.size)]);
        }
    }
    print_table(&rows);
    Ok(())
}

fn names_of(image: &Image) -> Vec<String> {
    if image.repo_tags.is_empty() { image.repo_digests.clone() } else { image.repo_tags.clone() }
}

fn print_table(rows: &[[String; 3]]) {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    for row in rows {
        println!("{:<a$}   {:<b$}   {}", row[0], row[1], row[2], a = width(0), b = width(1));
    }
}

fn human_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.2} GB")
}

async fn remove(store: &ImageStore, images: Vec<String>) -> Result<()> {
    let mut failed = 0;
    for name in images {
        match store.remove(&name).await {
            Ok(removed) => removed.untagged.iter().for_each(|name| println!("removed {name}")),
            Err(error) => {
                eprintln!("error: {}", error.chain());
                failed += 1;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} could not be removed");
    }
    Ok(())
}

fn read_password(from_stdin: bool) -> Result<String> {
    if !from_stdin {
        bail!("a user name needs a password: give it with --password-stdin");
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the password")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

async fn pull(
    store: &ImageStore,
    images: Vec<String>,
    credential: Option<Credential>,
    insecure_registries: Vec<String>,
) -> Result<()> {
    for name in images {
        let reference: Reference = name.parse().with_context(|| format!("image name {name}"))?;
        let mut keyring = Keyring::new();
        if let Some(credential) = &credential {
            keyring.add(reference.host(), credential.clone());
        }
        let options = PullOptions {
            keyring,
            insecure_registries: insecure_registries.clone(),
            progress: progress_printer(),
            ..PullOptions::default()
        };
        let image = store.pull(&reference, &options).await.map_err(|e| anyhow::anyhow!("{}", e.chain()))?;
        println!("pulled {} ({})", names_of(&image).join(", "), human_size(image.size));
    }
    Ok(())
}

/// Returns a printer for a terminal; it prints one line for each tenth of a layer. `None` without a terminal.
fn progress_printer() -> Option<knarr_runtime::images::ProgressFn> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let shown = Mutex::new(std::collections::BTreeMap::new());
    Some(Arc::new(move |progress: &Progress| {
        let percent = progress.done_bytes * 100 / progress.total_bytes.max(1);
        let step = percent / 10;
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.insert(progress.layer.to_string(), step) != Some(step) {
            let layer: String = progress.layer.hex().chars().take(12).collect();
            eprintln!("{layer}  {percent:>3}%  of {}", human_size(progress.total_bytes));
        }
    }))
}
