//! ImageLocality: prefers nodes that have the pod's images, large images above all.

use std::sync::Arc;

use crate::cache::Nodes;
use crate::framework::profile::Descriptor;
use crate::framework::{CycleState, MAX_NODE_SCORE, NodeInfo, Plugin, PodInfo, Score};

pub const NAME: &str = "ImageLocality";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 1,
    register: |points, weight| {
        let plugin = Arc::new(ImageLocality);
        points.all.push(plugin.clone());
        points.score.push((plugin, weight));
    },
};

/// Images below this many bytes in sum make no difference.
const MIN_BYTES: i64 = 23 << 20;
/// Per container; more makes no further difference.
const MAX_BYTES: i64 = 1000 << 20;

struct ImageLocality;

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

impl Score for ImageLocality {
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, nodes: &Nodes) -> i64 {
        let Some(spec) = pod.spec() else { return 0 };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let in_volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref()?.reference.as_ref());
        let images: Vec<&String> = containers.filter_map(|c| c.image.as_ref()).chain(in_volumes).collect();
        let total = nodes.len().max(1) as f64;
        let sum: i64 = images
            .iter()
            .map(|image| {
                let name = with_tag(image);
                let size = node.images.get(&name).copied().unwrap_or(0);
                // An image that few nodes have counts less, so that these do not attract every pod.
                (size as f64 * (nodes.nodes_with_image(&name) as f64 / total)) as i64
            })
            .sum();
        let max = MAX_BYTES * images.len().max(1) as i64;
        MAX_NODE_SCORE * (sum.clamp(MIN_BYTES, max) - MIN_BYTES) / (max - MIN_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::plugins::testing::{node, pod};

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
        let mut cache = Cache::default();
        cache.set_node(node("has").image("web:v1", 512 << 20).into());
        cache.set_node(node("has-not").into());
        let pod = PodInfo::new(pod("p").container_image("web:v1").into());
        let score = |name: &str| {
            let node = cache.nodes().get(name).unwrap();
            ImageLocality.score(&CycleState::default(), &pod, node, cache.nodes())
        };
        assert_eq!(score("has-not"), 0);
        // Half of the nodes have it: 256 MiB count. (256 - 23) / (1000 - 23).
        assert_eq!(score("has"), 23);
    }
}
