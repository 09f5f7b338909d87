//! A value whose `Send` and `Sync` the compiler proves once, where it is made.
//!
//! Each future that holds a reference to the server's state has to be shown to be `Send`, and the compiler walks all
//! of the state's types anew for each: in this crate that took most of the time of a build's check.

use std::ops::Deref;

/// Holds a `T` that is `Send` and `Sync`; looks through to it.
pub struct ThreadSafe<T>(T);

impl<T: Send + Sync> ThreadSafe<T> {
    pub fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for ThreadSafe<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

// SAFETY: the field is private and `new`, the only way to make one, asks for `T: Send + Sync`.
unsafe impl<T> Send for ThreadSafe<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for ThreadSafe<T> {}
