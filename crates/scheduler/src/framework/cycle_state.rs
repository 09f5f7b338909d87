//! State that a plugin writes in one extension point and reads in later ones of the same cycle.

use std::any::{Any, TypeId};
use std::collections::HashMap;

/// The state of one cycle, by type.
#[derive(Default)]
pub struct CycleState {
    /// Whether the durations of plugins are recorded in this cycle.
    pub sampled: bool,
    notes: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
}

impl CycleState {
    /// Creates the state of a new cycle.
    pub fn new(sampled: bool) -> Self {
        Self { sampled, ..Self::default() }
    }

    /// Stores a value of a plugin's own type. A second value of the type replaces the first.
    pub fn write<T: Any + Send + Sync>(&mut self, note: T) {
        self.notes.insert(TypeId::of::<T>(), Box::new(note));
    }

    /// Returns the value of this type, if a plugin has stored one.
    pub fn read<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.notes.get(&TypeId::of::<T>()).and_then(|n| n.downcast_ref())
    }
}
