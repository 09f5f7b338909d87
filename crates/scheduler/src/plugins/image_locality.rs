//! ImageLocality: prefers nodes that have the pod's images, large images above all.

use std::collections::HashMap;
use std::sync::Arc;

use crate::framework::points::NodeView;
use crate::framework::{Descriptor, MAX_NODE_SCORE, NodeScore, Parts, Plugin, Scope, Score, Shape};
use crate::snapshot::{NodeIdx, Snapshot};

pub const NAME: &str = "ImageLocality";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 1,
    args: None,
    build: |_| {
        let plugin = Arc::new(ImageLocality);
        Ok(Parts { score: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

/// Images below this many bytes in sum make no difference.
const MIN_BYTES: i64 = 23 << 20;
/// Per container; more makes no further difference.
const MAX_BYTES: i64 = 1000 << 20;

struct ImageLocality;

/// The scores of nodes that have some image.
struct Local(HashMap<NodeIdx, i64>);

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        NAME
    }
}

/// An image's name with its tag.
fn with_tag(image: &str) -> String {
    let tagged = image.rfind(':').is_some_and(|colon| colon > image.rfind('/').unwrap_or(0));
    if tagged { image.to_owned() } else { format!("{image}:latest") }
}

/// The images of containers and of volumes.
fn images(shape: &Shape) -> impl Iterator<Item = &String> {
    let spec = shape.spec().into_iter();
    spec.flat_map(|s| {
        let containers =
            s.init_containers.iter().flatten().chain(&s.containers).filter_map(|c| c.image.as_ref());
        containers.chain(s.volumes.iter().flatten().filter_map(|v| v.image.as_ref()?.reference.as_ref()))
    })
}

impl Score for ImageLocality {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    /// Images come to nodes one by one; how many nodes there are changes the structure, which is told otherwise.
    fn version(&self, cluster: &Snapshot, shape: &Shape) -> u64 {
        images(shape).filter_map(|image| cluster.image(&with_tag(image))).map(|image| image.version).sum()
    }

    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let images: Vec<&String> = images(shape).collect();
        let total = cluster.len().max(1) as f64;
        let mut sums: HashMap<NodeIdx, i64> = HashMap::new();
        for image in images.iter().filter_map(|image| cluster.image(&with_tag(image))) {
            // An image that few nodes have counts less, so that these do not attract every pod.
            let spread = image.sizes.len() as f64 / total;
            for (node, size) in &image.sizes {
                *sums.entry(*node).or_insert(0) += (*size as f64 * spread) as i64;
            }
        }
        let max = MAX_BYTES * images.len().max(1) as i64;
        let score = |sum: i64| MAX_NODE_SCORE * (sum.clamp(MIN_BYTES, max) - MIN_BYTES) / (max - MIN_BYTES);
        sums.retain(|_, sum| {
            *sum = score(*sum);
            *sum > 0
        });
        (!sums.is_empty()).then(|| Box::new(Local(sums)) as _)
    }
}

impl NodeScore for Local {
    fn score(&self, node: &NodeView) -> i64 {
        self.0.get(&node.at).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod, scores};

    #[test]
    fn names_get_their_default_tag() {
        let table = [
            ("web", "web:latest"),
            ("web:v1", "web:v1"),
            ("host:5000/web", "host:5000/web:latest"),
            ("h:1/w:2", "h:1/w:2"),
        ];
        for (image, expected) in table {
            assert_eq!(with_tag(image), expected);
        }
    }

    #[test]
    fn the_node_with_the_image_scores_by_size_and_spread() {
        let nodes = vec![node("has").image("web:v1", 512 << 20), node("has-not")];
        // Half of the nodes have it: 256 MiB count. (256 - 23) / (1000 - 23).
        assert_eq!(scores(DESCRIPTOR, pod("p").container_image("web:v1"), nodes, vec![]), [23, 0]);
    }
}
