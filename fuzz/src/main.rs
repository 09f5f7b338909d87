//! `knarr-fuzz NAME SECONDS [SEED]`: fuzzes one decoder for a while; lists the decoders without arguments.
//! `knarr-fuzz --write-corpus FOLDER NAME`: writes the inputs that a target begins with.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use knarr_fuzz::memory::Counting;
use knarr_fuzz::{Target, fuzz, targets};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    match knarr_fuzz::on_a_stack(run) {
        Ok(code) => code,
        Err(error) => {
            println!("cannot start a thread: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |i: usize, otherwise: u64| arguments.get(i).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let all = targets();
    if let [flag, folder, name] = &arguments[..]
        && flag == "--write-corpus"
    {
        return write_corpus(&all, Path::new(folder), name);
    }
    let Some(target) = arguments.first().and_then(|name| all.iter().find(|t| t.name == name)) else {
        all.iter().for_each(|t| println!("{}", t.name));
        return if arguments.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    let end = SystemClock.monotonic() + Duration::from_secs(number(1, 10));
    let seed = number(2, 0);
    match fuzz(target, seed, &SystemClock, |_| SystemClock.monotonic() < end) {
        Ok(rounds) => {
            println!("{}: {rounds} inputs, seed {seed}", target.name);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!(
                "{}: {}, seed {seed}, input {:?}",
                target.name,
                failure.why,
                String::from_utf8_lossy(&failure.input)
            );
            ExitCode::FAILURE
        }
    }
}

/// Writes one file per input, named by its index.
fn write_corpus(all: &[Target], folder: &Path, name: &str) -> ExitCode {
    let inputs = all.iter().filter(|target| target.name == name).flat_map(|target| &target.corpus);
    for (at, input) in inputs.enumerate() {
        let path = folder.join(format!("seed-{at:03}"));
        if let Err(error) = std::fs::write(&path, input) {
            println!("cannot write {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
