//! Room for recursion: what goes deep runs on a thread with a large stack.

use std::thread;

const STACK: usize = 64 << 20;

/// Trees up to this height fit on any stack.
pub const SHALLOW: usize = 40;

/// Does the work here if it is shallow, else where there is room.
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

/// How deep a text may nest at most: brackets within brackets, and conditionals after each other.
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
