//! Stack space for recursion: deep recursion runs on a thread with a large stack.

use std::thread;

const STACK: usize = 64 << 20;

/// The maximum height of trees that fit on any stack.
pub const SHALLOW: usize = 40;

/// Runs the work on this thread if it is shallow, otherwise on a thread with a large stack.
pub fn roomy<T: Send>(depth: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    if depth <= SHALLOW {
        return Some(work());
    }
    thread::scope(|scope| {
        let thread =
            thread::Builder::new().name("cel".to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        thread.ok()?.join().ok()
    })
}

/// Returns the maximum nesting of a text: nested brackets, and chained conditionals.
pub fn nesting(source: &str) -> usize {
    let (mut depth, mut deepest, mut questions) = (0_usize, 0, 0);
    for c in source.chars() {
        match c {
            '(' | '[' | '{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '?' => questions += 1,
            _ => {}
        }
    }
    deepest + questions
}
