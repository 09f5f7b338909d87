//! What a plugin notes when it reserves something for a pod and reads at its later extension points.

use std::any::{Any, TypeId};
use std::collections::HashMap;

/// One cycle's notes, by type.
#[derive(Default)]
pub struct CycleState {
    /// The times of plugins are recorded in this cycle.
    pub sampled: bool,
    notes: HashMap<TypeId, Box<dyn Any + Send + Sync>>,
}

impl CycleState {
    pub fn new(sampled: bool) -> Self {
        Self { sampled, ..Self::default() }
    }

    /// Keeps a plugin's own type; a second note of the type replaces the first.
    pub fn write<T: Any + Send + Sync>(&mut self, note: T) {
        self.notes.insert(TypeId::of::<T>(), Box::new(note));
    }

    pub fn read<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.notes.get(&TypeId::of::<T>()).and_then(|n| n.downcast_ref())
    }
}
