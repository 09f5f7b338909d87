//! A cycle without caches: evaluates every plugin for every node. Shows what the scheduler would do and why.

use crate::framework::points::NodeView;
use crate::framework::work::Work;
use crate::framework::{PodInfo, Profile, Status};
use crate::schedule_one::check_node;
use crate::snapshot::{NodeIdx, Snapshot};

/// One plugin's scores, one per feasible node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scores {
    pub plugin: &'static str,
    pub weight: i64,
    /// The score as the plugin returned it.
    pub raw: Vec<i64>,
    /// The normalized score, from 0 to 100.
    pub normalized: Vec<i64>,
}

/// The results of all plugins for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explained {
    /// Set when a plugin rejected the pod for every node.
    pub rejected: Option<Status>,
    /// The nodes that do not fit, each with the first plugin that rejected it and its status.
    pub unfit: Vec<(NodeIdx, &'static str, Status)>,
    pub feasible: Vec<NodeIdx>,
    pub scores: Vec<Scores>,
    /// The weighted sums, one per feasible node.
    pub totals: Vec<i64>,
}

/// Evaluates every node of the snapshot for the pod.
pub fn explain(profile: &Profile, cluster: &Snapshot, pod: &PodInfo) -> Explained {
    let mut work = Work::prepare(profile, cluster, &pod.shape);
    if let Some((_, status)) = &work.rejected {
        return Explained { rejected: Some(status.clone()), ..Explained::default() };
    }
    let mut explained = Explained::default();
    for at in cluster.live().iter() {
        let node = NodeView { cluster, at, row: cluster.row(at) };
        match work.left_out(at).or_else(|| check_node(&work, &node)) {
            Some((plugin, status)) => explained.unfit.push((at, plugin, status)),
            None => explained.feasible.push(at),
        }
    }
    explained.totals = vec![0; explained.feasible.len()];
    for active in &mut work.scores {
        active.score.begin(cluster, &explained.feasible);
        let view = |at: &NodeIdx| NodeView { cluster, at: *at, row: cluster.row(*at) };
        let raw: Vec<i64> = explained.feasible.iter().map(|at| active.score.score(&view(at))).collect();
        let mut normalized = raw.clone();
        active.score.normalize(cluster, &explained.feasible, &mut normalized);
        for (total, score) in explained.totals.iter_mut().zip(&normalized) {
            *total += score * active.weight;
        }
        explained.scores.push(Scores { plugin: active.plugin, weight: active.weight, raw, normalized });
    }
    explained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Cache;
    use crate::framework::Scope;
    use crate::plugins::testing::{NodeBuilder, PodBuilder, node, pod, soft_spread, spread};
    use fastrand::Rng;
    use std::sync::Arc;

    const ZONE: &str = "topology.kubernetes.io/zone";
    const HOST: &str = "kubernetes.io/hostname";

    fn any_node(rng: &mut Rng, n: usize) -> NodeBuilder {
        let name = format!("n{n}");
        let cpus = ["2", "4", "8"][rng.usize(..3)];
        let mut node = node(&name).capacity(cpus, "8Gi", rng.i64(2..12)).label(HOST, &name);
        if rng.u8(..10) > 0 {
            node = node.label(ZONE, &format!("z{}", rng.u8(..3)));
        }
        if rng.u8(..4) == 0 {
            node = node.label("disk", ["ssd", "hdd"][rng.usize(..2)]);
        }
        match rng.u8(..12) {
            0 => node = node.taint("dedicated", "x", "NoSchedule"),
            1 => node = node.taint("slow", "", "PreferNoSchedule"),
            2 => node = node.unschedulable(true),
            _ => {}
        }
        if rng.u8(..3) == 0 {
            node = node.image("web:v1", i64::from(rng.u8(..8)) << 27);
        }
        node
    }

    fn any_pod(rng: &mut Rng, n: usize) -> PodBuilder {
        let apps = ["web", "db", "cache"];
        let app = apps[rng.usize(..3)];
        let other = apps[rng.usize(..3)];
        let key = [ZONE, HOST, "disk"][rng.usize(..3)];
        let mut pod = pod(&format!("p{n}")).label("app", app);
        if rng.u8(..5) == 0 {
            pod = pod.namespace("other");
        }
        if rng.bool() {
            pod = pod.cpu(["100m", "500m", "1500m"][rng.usize(..3)]).memory(["64Mi", "1Gi"][rng.usize(..2)]);
        }
        pod = match rng.u8(..12) {
            0 => pod.affinity(&[("app", other)], key),
            1 => pod.anti_affinity(&[("app", other)], key),
            2 => pod.prefers(rng.i32(1..100), &[("app", other)], key),
            3 => pod.avoids(rng.i32(1..100), &[("app", other)], key),
            4 => pod.spread(vec![spread(key, rng.i32(1..3), &[("app", app)])]),
            5 => pod.spread(vec![soft_spread(key, rng.i32(1..3), &[("app", app)])]),
            6 => pod.spread(vec![spread(ZONE, 1, &[("app", app)]), soft_spread(HOST, 1, &[("app", app)])]),
            7 => pod.required_affinity("disk", ["In", "NotIn"][rng.usize(..2)], &["ssd"]),
            8 => pod.preferred_affinity(rng.i32(1..100), "disk", "ssd"),
            9 => pod.host_port("", "TCP", 80 + i32::from(rng.u8(..2))),
            10 => pod.toleration("dedicated", "Exists", "", "").container_image("web:v1"),
            _ => pod.node_selector(ZONE, "z1"),
        };
        if rng.u8(..6) == 0 { pod.affinity(&[("app", app)], ZONE) } else { pod }
    }

    type OfPlugin = (&'static str, Vec<i64>);

    /// Returns the result of the cached work: the feasible nodes, each plugin's scores, and the totals.
    fn kept(work: &mut Work, cluster: &Snapshot) -> (Vec<NodeIdx>, Vec<OfPlugin>, Vec<i64>) {
        if work.rejected.is_some() {
            return Default::default();
        }
        let view = |at| NodeView { cluster, at, row: cluster.row(at) };
        let local = work.local(cluster).clone();
        let feasible: Vec<_> = local.iter().filter(|at| work.passes_cluster(&view(*at))).collect();
        let mut scores = Vec::new();
        for active in &mut work.scores {
            let mut of_plugin = Vec::new();
            active.scores(cluster, &feasible, &mut of_plugin);
            active.score.normalize(cluster, &feasible, &mut of_plugin);
            scores.push((active.plugin, of_plugin));
        }
        let totals = work.totals(cluster, &feasible);
        (feasible, scores, totals)
    }

    /// Changes the cluster at random, and compares the cached work of some shapes with `explain` after each change.
    fn compare(seed: u64) {
        let mut rng = Rng::with_seed(seed);
        let profile = crate::plugins::default_profile("default-scheduler", &Arc::default()).unwrap();
        let mut cache = Cache::default();
        (0..12).for_each(|n| cache.set_node(any_node(&mut rng, n).into()));
        let shapes: Vec<PodInfo> = (0..10).map(|n| PodInfo::new(&any_pod(&mut rng, n).build())).collect();
        let mut works: Vec<Work> =
            shapes.iter().map(|p| Work::new(&profile, cache.snapshot(), &p.shape)).collect();
        let mut there: Vec<(String, PodBuilder)> = Vec::new();
        for step in 0..60 {
            match rng.u8(..10) {
                0 => cache.set_node(any_node(&mut rng, step % 14).into()),
                1 => cache.remove_node(&format!("n{}", rng.u8(..14))),
                2 | 3 if !there.is_empty() => {
                    let (uid, _) = there.swap_remove(rng.usize(..there.len()));
                    cache.remove_pod(&uid);
                }
                4 => cache.set_namespace("other", Some([("k".to_owned(), step.to_string())].into())),
                _ => {
                    let uid = format!("there-{step}");
                    let one = any_pod(&mut rng, step).on(&format!("n{}", rng.u8(..12)));
                    let mut placed = one.clone().build();
                    placed.metadata.uid = Some(uid.clone());
                    cache.set_pod(&placed);
                    there.push((uid, one));
                }
            }
            for (info, work) in shapes.iter().zip(&mut works) {
                if rng.u8(..3) == 0 {
                    continue;
                }
                let cluster = cache.snapshot();
                work.catch_up(&profile, cluster, &info.shape);
                let plain = explain(&profile, cluster, info);
                let (feasible, scores, totals) = kept(work, cluster);
                assert_eq!(feasible, plain.feasible, "seed {seed} step {step} pod {:?}", info.pod());
                let plain_scores: Vec<_> =
                    plain.scores.iter().map(|s| (s.plugin, s.normalized.clone())).collect();
                assert_eq!(scores, plain_scores, "seed {seed} step {step} pod {:?}", info.pod());
                assert_eq!(totals, plain.totals, "seed {seed} step {step}");
            }
        }
        assert!(works.iter().any(|w| w.filters.iter().any(|f| f.scope == Scope::Cluster)));
    }

    #[test]
    fn what_is_kept_equals_the_plain_path() {
        (0..25).for_each(compare);
    }
}
