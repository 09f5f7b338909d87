//! The runtime's threads, which give unused memory back to the system while they have nothing to do.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

/// A thread looks for memory to give back at most this often.
const EVERY: Duration = Duration::from_secs(20);

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The runtime of a process that runs for long.
pub fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().on_thread_park(give_back).build()
}

/// What other threads have freed of this thread's memory stays with it until it allocates again, or asks here. An idle
/// thread does not allocate: without this, a cluster at rest would hold what its busiest moment took.
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
