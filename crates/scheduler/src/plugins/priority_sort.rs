//! PrioritySort: pods with higher priority first, then in the order of arrival.

use std::sync::Arc;

use crate::framework::{Descriptor, Parts, Plugin, PodInfo, QueueSort};

pub const NAME: &str = "PrioritySort";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |_| {
        let plugin = Arc::new(PrioritySort);
        Ok(Parts { queue_sort: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        NAME
    }
}

impl QueueSort for PrioritySort {
    fn key(&self, pod: &PodInfo, arrival: u64) -> (i64, u64) {
        (-i64::from(pod.priority()), arrival)
    }
}
