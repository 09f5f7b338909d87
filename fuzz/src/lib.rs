//! Fuzzing of everything that reads untrusted bytes: nothing may panic, hang, or use memory without bound.
//!
//! Each [`Target`] is a decoder with a few good inputs, which are mutated with a seeded generator: runs with
//! the same seed are the same. The tests do a bounded number of rounds; `cargo xtask fuzz NAME --seconds N`
//! runs longer, and `cargo xtask fuzz --coverage` lets libFuzzer choose the inputs. Inputs of libFuzzer that
//! are worth keeping are in `corpus/`.

mod decoders;
mod expressions;
mod images;
pub mod memory;
mod mutate;
mod objects;
mod requests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fastrand::Rng;
use knarr_apimachinery::clock::Clock;

/// The longest time that one input may take, on a busy machine and without optimizations.
pub const LONGEST: Duration = Duration::from_secs(10);
/// Bytes that one input may make the program hold at a time, besides a multiple of its own size.
pub const MOST_BYTES: usize = 64 << 20;
/// That multiple of its own size.
pub const MOST_TIMES: usize = 2000;

/// The stack that one input may use: that of a worker of the server's runtime. Frames without optimizations
/// are several times as large.
pub const STACK_BYTES: usize = if cfg!(debug_assertions) { 16 << 20 } else { 2 << 20 };

/// Runs work on a stack of [`STACK_BYTES`].
pub fn on_a_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
        thread.join().or_else(|panicked| std::panic::resume_unwind(panicked))
    })
}

/// Decodes an input, good or bad.
pub type Run = Box<dyn Fn(&[u8])>;

/// One decoder.
pub struct Target {
    pub name: &'static str,
    /// Good inputs to begin with.
    pub corpus: Vec<Vec<u8>>,
    pub run: Run,
}

/// Returns all targets, in the order of their names.
pub fn targets() -> Vec<Target> {
    let mut all = decoders::all();
    all.extend(expressions::all());
    all.extend(images::all());
    all.extend(objects::all());
    all.extend(requests::all());
    all.sort_by_key(|t| t.name);
    all
}

/// A rule that an input has broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub why: String,
    pub input: Vec<u8>,
}

/// Runs one input, and checks the rules.
pub fn check(target: &Target, input: &[u8], clock: &dyn Clock) -> Result<(), Failure> {
    let failure = |why: String| Err(Failure { why, input: input.to_vec() });
    let before = memory::reset_peak();
    let started = clock.monotonic();
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        return failure("panicked".into());
    }
    let took = clock.monotonic().saturating_sub(started);
    let held = memory::peak().saturating_sub(before);
    if took > LONGEST {
        return failure(format!("took {took:?}"));
    }
    if held > MOST_BYTES + input.len() * MOST_TIMES {
        return failure(format!("held {held} bytes"));
    }
    Ok(())
}

/// Runs the corpus, then mutations of it, until `go_on` returns false.
pub fn fuzz(
    target: &Target,
    seed: u64,
    clock: &dyn Clock,
    mut go_on: impl FnMut(u64) -> bool,
) -> Result<u64, Failure> {
    // Memory that is allocated only once does not count for an input.
    (target.run)(&[]);
    for input in &target.corpus {
        check(target, input, clock)?;
    }
    let mut rng = Rng::with_seed(seed);
    let mut rounds = 0;
    while go_on(rounds) {
        let input = mutate::mutated(&target.corpus, &mut rng);
        check(target, &input, clock)?;
        rounds += 1;
    }
    Ok(rounds)
}
