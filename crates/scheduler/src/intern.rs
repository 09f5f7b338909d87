//! Interning: equal values are stored once and shared.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

struct Known<K, V> {
    by_key: HashMap<K, Weak<V>>,
    next_id: u64,
    /// The number of entries at which dead ones are removed.
    sweep_at: usize,
}

/// A process-wide pool. A value lives as long as an `Arc` to it exists.
pub struct Pool<K, V>(LazyLock<Mutex<Known<K, V>>>);

impl<K: Eq + Hash, V> Pool<K, V> {
    /// Creates an empty pool.
    pub const fn new() -> Self {
        Self(LazyLock::new(|| Mutex::new(Known { by_key: HashMap::new(), next_id: 1, sweep_at: 1024 })))
    }

    /// Returns the value of this key. `make` receives an id that no other value of the pool ever had.
    pub fn intern(&self, key: K, make: impl FnOnce(u64) -> V) -> Arc<V> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.by_key.get(&key).and_then(Weak::upgrade) {
            return value;
        }
        let id = known.next_id;
        known.next_id += 1;
        let value = Arc::new(make(id));
        known.by_key.insert(key, Arc::downgrade(&value));
        if known.by_key.len() >= known.sweep_at {
            known.by_key.retain(|_, value| value.strong_count() > 0);
            known.sweep_at = (known.by_key.len() * 2).max(1024);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shared_while_they_live_and_forgotten_after() {
        static POOL: Pool<u32, u64> = Pool::new();
        let (a, b) = (POOL.intern(1, |id| id), POOL.intern(1, |id| id));
        assert!(Arc::ptr_eq(&a, &b));
        drop((a, b));
        assert_eq!(*POOL.intern(1, |id| id), 2, "made anew");
        for key in 0..5000 {
            POOL.intern(key, |id| id);
        }
        assert!(POOL.0.lock().unwrap().by_key.len() <= 1024);
    }
}
