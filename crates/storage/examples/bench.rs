//! Measures durable puts per second by number of writers, and reads of a large range.
//!
//! `cargo run --release -p knarr-storage --example bench [FOLDER [SECONDS]]`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use knarr_storage::{Embedded, Options, Precondition, RangeRequest, Store};

const VALUE_BYTES: usize = 1024;
const WRITERS: [u64; 4] = [1, 8, 64, 256];
const RANGE_KEYS: u64 = 100_000;
const LOADERS: u64 = 64;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = arguments.next().map_or(Ok(3), |seconds| seconds.parse())?;
    let dir = parent.join(format!("knarr-storage-bench-{}", std::process::id()));
    let outcome = run(&dir, Duration::from_secs(seconds)).await;
    std::fs::remove_dir_all(&dir)?;
    outcome
}

async fn run(dir: &Path, duration: Duration) -> Outcome<()> {
    if cfg!(debug_assertions) {
        println!("built without optimization: figures are not what a release build reaches");
    }
    println!("{:>8} {:>12} {:>12}", "writers", "puts/s", "mean ms");
    for writers in WRITERS {
        let store = Arc::new(Embedded::open(dir.join(format!("w{writers}")), Options::default())?);
        let rate = puts_per_second(&store, writers, duration).await?;
        println!("{writers:>8} {rate:>12.0} {:>12.3}", writers as f64 * 1000.0 / rate);
    }
    ranges(&dir.join("range")).await
}

async fn puts_per_second(store: &Arc<Embedded>, writers: u64, duration: Duration) -> Outcome<f64> {
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (store, stop, count) = (Arc::clone(store), Arc::clone(&stop), Arc::clone(&count));
            tokio::spawn(async move {
                for i in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    put(&store, format!("/registry/pods/{writer}/{}", i % 1000)).await?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, knarr_storage::Error>(())
            })
        })
        .collect();
    tokio::time::sleep(duration).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

async fn put(store: &Embedded, key: String) -> knarr_storage::Result<()> {
    let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
    store.put(key.into(), value, Precondition::Any, None).await.map(|_| ())
}

async fn ranges(dir: &Path) -> Outcome<()> {
    let store = Arc::new(Embedded::open(dir, Options::default())?);
    let start = Instant::now();
    let tasks: Vec<_> = (0..LOADERS)
        .map(|loader| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for i in (loader..RANGE_KEYS).step_by(LOADERS as usize) {
                    put(&store, format!("/registry/pods/{i:08}")).await?;
                }
                Ok::<_, knarr_storage::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    println!("load {RANGE_KEYS} keys: {:.0} puts/s", RANGE_KEYS as f64 / start.elapsed().as_secs_f64());
    let start = Instant::now();
    let all = store.range(RangeRequest::prefix("/registry/pods/")).await?;
    println!("range of {} keys: {:.1} ms", all.kvs.len(), start.elapsed().as_secs_f64() * 1000.0);

    let start = Instant::now();
    let mut request = RangeRequest::prefix("/registry/pods/").limit(500).at(all.revision);
    let mut pages = 0;
    loop {
        let page = store.range(request.clone()).await?;
        pages += 1;
        match page.kvs.last() {
            Some(last) if page.more => request.range = request.range.after(&last.key),
            _ => break,
        }
    }
    println!("{pages} pages of 500, counted: {:.1} ms", start.elapsed().as_secs_f64() * 1000.0);
    let start = Instant::now();
    for i in 0..RANGE_KEYS {
        store.get(format!("/registry/pods/{i:08}").as_bytes()).await?;
    }
    println!("get: {:.0}/s", RANGE_KEYS as f64 / start.elapsed().as_secs_f64());

    let file_bytes = store.status().await?.file_bytes;
    drop(all);
    store.close().await?;
    drop(store);
    let start = Instant::now();
    Embedded::open(dir, Options::default())?;
    println!("open with {} MiB: {:.0} ms", file_bytes >> 20, start.elapsed().as_secs_f64() * 1000.0);
    Ok(())
}
