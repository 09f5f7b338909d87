//! PrioritySort: pods of higher priority first, then in the order of arrival.

use std::sync::Arc;

use crate::framework::profile::Descriptor;
use crate::framework::{Plugin, PodInfo, QueueSort};

pub const NAME: &str = "PrioritySort";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    register: |points, _| {
        let plugin = Arc::new(PrioritySort);
        points.all.push(plugin.clone());
        points.queue_sort = Some(plugin);
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
