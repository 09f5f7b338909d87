//! TTL: annotates nodes with how long kubelets may cache Secrets and ConfigMaps, which depends on the cluster's size.

use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Node;
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Patch, Result};
use serde_json::json;

use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "ttl-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const WORKERS: usize = 5;
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// The steps: minimum and maximum number of nodes, and seconds. They overlap so that the value does not flap.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

/// Returns the step for this number of nodes if the current step is `step`.
fn next_step(mut step: usize, nodes: usize) -> usize {
    while step + 1 < STEPS.len() && nodes > STEPS[step].1 {
        step += 1;
    }
    while step > 0 && nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

struct Controller {
    cx: Arc<Context>,
    nodes: Lister<Node>,
    queue: Arc<WorkQueue<String>>,
    step: Mutex<usize>,
}

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&cx.clock));
    let nodes = cx.informers.informer::<Node>();
    let on_node = Arc::clone(&queue);
    nodes.add_handler(move |event| {
        let annotation = |n: &Node| n.metadata.annotations.as_ref().and_then(|a| a.get(ANNOTATION).cloned());
        let concerns = match event {
            Event::Updated { old, new } => annotation(old) != annotation(new),
            Event::Added(_) | Event::Deleted(_) => true,
        };
        if concerns {
            on_node.add(event.object().name().to_owned());
        }
    });
    if !nodes.wait_synced().await {
        return;
    }
    let stop = cx.stop.clone();
    let lister = nodes.lister();
    let step = Mutex::new(next_step(0, lister.len()));
    let controller = Arc::new(Controller { cx, nodes: lister, queue: Arc::clone(&queue), step });
    let reconcile = move |name: String| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&name).await }
    };
    queue.run(DESCRIPTOR.name, WORKERS, stop, reconcile).await;
}

impl Controller {
    /// Returns the seconds for the current number of nodes. When they change, all nodes are requeued.
    fn seconds(&self) -> u32 {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        let next = next_step(*step, self.nodes.len());
        if next != *step {
            *step = next;
            self.nodes.list().iter().for_each(|node| self.queue.add(node.name().to_owned()));
        }
        STEPS[next].2
    }

    async fn reconcile(&self, name: &str) -> Result<()> {
        let wanted = self.seconds().to_string();
        let Some(node) = self.nodes.get("", name) else { return Ok(()) };
        if node.metadata.annotations.as_ref().and_then(|a| a.get(ANNOTATION)) == Some(&wanted) {
            return Ok(());
        }
        let patch = Patch::Strategic(json!({"metadata": {"annotations": {ANNOTATION: wanted}}}));
        match self.cx.client.patch::<Node>("", name, None, &patch).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    #[test]
    fn steps_overlap() {
        for (step, nodes, expected) in [
            (0, 1, 0),
            (0, 100, 0),
            (0, 101, 1),
            (1, 90, 1),
            (1, 89, 0),
            (0, 5000, 4),
            (4, 1800, 4),
            (4, 1799, 3),
            (4, 0, 0),
        ] {
            assert_eq!(next_step(step, nodes), expected, "{step} {nodes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_annotated() {
        let world = World::new(&[Node::RESOURCE]);
        world.start(&DESCRIPTOR);
        let node =
            |name: String| -> Node { serde_json::from_value(json!({"metadata": {"name": name}})).unwrap() };
        world.api.add(&node("first".to_owned()));
        world.pass(1.0).await;
        let annotated =
            || world.api.get::<Node>("", "first").unwrap().metadata.annotations.unwrap()[ANNOTATION].clone();
        assert_eq!(annotated(), "0");
        (0..100).for_each(|n| drop(world.api.add(&node(format!("n{n}")))));
        world.pass(1.0).await;
        assert_eq!(annotated(), "15");
    }
}
