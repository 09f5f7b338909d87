//! The runtime's threads, which release unused memory to the system when they are idle.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

/// The minimum time between two attempts of a thread to release memory.
const EVERY: Duration = Duration::from_secs(20);

/// How long tasks of a component may outlive it.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Builds the runtime of a long-running process.
pub fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().on_thread_park(give_back).build()
}

/// Runs a component to its end. Tasks that are left then, for instance in a read of a file system that does not answer,
/// do not block the exit for longer than a moment.
pub fn run_to_end<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime()?;
    let ended = runtime.block_on(work);
    runtime.shutdown_timeout(LEFT_BEHIND);
    ended
}

/// Releases unused memory to the system. Memory of this thread that other threads have freed stays with it
/// until it allocates again or collects here. An idle thread does not allocate: without this, an idle cluster
/// would hold the memory of its busiest moment.
fn give_back() {
    let now = Instant::now();
    if LAST.get().is_some_and(|last| now.duration_since(last) < EVERY) {
        return;
    }
    LAST.set(Some(now));
    // SAFETY: the allocator's own function, which any thread may call at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn its_threads_rest_and_work() {
        let runtime = super::runtime().unwrap();
        let sum = runtime.block_on(async {
            let tasks: Vec<_> = (0..64u64)
                .map(|i| {
                    tokio::spawn(async move {
                        tokio::task::yield_now().await;
                        vec![i; 1000].iter().sum::<u64>()
                    })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await.unwrap();
            }
            sum
        });
        assert_eq!(sum, (0..64).sum::<u64>() * 1000);
    }
}
