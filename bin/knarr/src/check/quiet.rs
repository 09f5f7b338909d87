//! Runs steps on the store's file, in which redb panics on some damage: that becomes a finding, without a
//! panic message. Other panics are reported as usual.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use anyhow::{Result, bail};

thread_local! {
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs a step without showing this thread's panics; a panic is returned as an error.
pub fn quietly<T>(step: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if QUIET.get() {
                tracing::debug!("{panic}");
            } else {
                before(panic);
            }
        }));
    });
    QUIET.set(true);
    let done = catch_unwind(AssertUnwindSafe(step));
    QUIET.set(false);
    match done {
        Ok(done) => Ok(done),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
            bail!("the store's file cannot be looked into: {text}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_within_and_shown_without() {
        assert!(quietly(|| QUIET.get()).unwrap());
        let error = quietly(|| -> () { panic!("odd page {}", 7) }).unwrap_err();
        assert_eq!(error.to_string(), "the store's file cannot be looked into: odd page 7");
        assert!(!QUIET.get());
    }
}
