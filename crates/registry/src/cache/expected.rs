//! Decoded objects of pending writes. When a watch event carries the same bytes, they need not be parsed again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use knarr_api::object::Object;

/// The maximum number of pending objects. The store only returns the same bytes if it runs in this process; with
/// another store, no pending object is ever taken.
const LIMIT: usize = 64;
/// The maximum size of the pending objects together, in bytes.
const LIMIT_BYTES: usize = 1024 * 1024;

#[derive(Default)]
pub struct Expected(Mutex<VecDeque<Arc<Object>>>);

impl Expected {
    fn held(&self) -> MutexGuard<'_, VecDeque<Arc<Object>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, object: Arc<Object>) {
        let mut held = self.held();
        held.push_back(object);
        let mut bytes: usize = held.iter().map(|object| object.text().len()).sum();
        while held.len() > LIMIT || bytes > LIMIT_BYTES {
            bytes -= held.pop_front().map_or(bytes, |object| object.text().len());
        }
    }

    /// Removes all pending objects.
    pub fn clear(&self) {
        self.held().clear();
    }

    /// Removes and returns the object that owns this very buffer. While the object is held, its buffer cannot be
    /// reused for other bytes.
    pub fn take(&self, stored: &Bytes) -> Option<Arc<Object>> {
        let mut held = self.held();
        let place = held.iter().position(|object| object.shares(stored))?;
        held.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_is_found_once() {
        let expected = Expected::default();
        let texts: Vec<Bytes> = (0..=LIMIT).map(|i| Bytes::from(format!("{{\"a\":{i}}}"))).collect();
        for text in &texts {
            expected.add(Arc::new(Object::from_stored(text.clone(), 0, &[]).unwrap()));
        }
        // One object more than the limit.
        assert!(expected.take(&texts[0]).is_none());
        assert!(expected.take(&Bytes::copy_from_slice(&texts[1])).is_none());
        assert!(expected.take(&texts[2]).unwrap().shares(&texts[2]));
        assert!(expected.take(&texts[2]).is_none());
    }

    #[test]
    fn large_objects_do_not_pile_up() {
        let expected = Expected::default();
        let text = Bytes::from(format!("{{\"a\":\"{}\"}}", "x".repeat(LIMIT_BYTES / 3)));
        (0..9).for_each(|_| expected.add(Arc::new(Object::from_stored(text.clone(), 0, &[]).unwrap())));
        assert_eq!(expected.held().len(), 2);
        expected.clear();
        assert!(expected.take(&text).is_none());
    }
}
