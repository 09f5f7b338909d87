//! ImageLocality: prefers nodes that have the pod's images, above all large images.

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

/// Images with less than this many bytes in total score 0.
const MIN_BYTES: i64 = 23 << 20;
/// The total per container above which the score grows no more.
const MAX_BYTES: i64 = 1000 << 20;

struct ImageLocality;

/// The scores of the nodes that have at least one of the images.
struct Local(HashMap<NodeIdx, i64>);

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        NAME
    }
}

/// Returns the image's name with a tag.
fn with_tag(image: &str) -> String {
    let tagged = image.rfind(':').is_some_and(|colon| colon > image.rfind('/').unwrap_or(0));
    if tagged { image.to_owned() } else { format!("{image}:latest") }
}

/// The images of containers and of image volumes.
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

    /// Covers images that are added to nodes. The number of nodes is part of the structure, whose changes are logged
    /// anyway.
    fn version(&self, cluster: &Snapshot, shape: &Shape) -> u64 {
        images(shape).filter_map(|image| cluster.image(&with_tag(image))).map(|image| image.version).sum()
    }

    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let images: Vec<&String> = images(shape).collect();
        let total = cluster.len().max(1) as f64;
        let mut sums: HashMap<NodeIdx, i64> = HashMap::new();
        for image in images.iter().filter_map(|image| cluster.image(&with_tag(image))) {
            // An image counts in proportion to the nodes that have it, so that few nodes with an image do not attract
            // every pod.
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
        // Half of the nodes have it, so 256 of 512 MiB count. (256 - 23) / (1000 - 23).
        assert_eq!(scores(DESCRIPTOR, pod("p").container_image("web:v1"), nodes, vec![]), [23, 0]);
    }
}
