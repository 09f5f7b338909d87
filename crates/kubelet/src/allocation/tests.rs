//! Decisions about resizes: which are allocated, in which order, and the conditions of the others.

use serde_json::{Value, json};

use super::*;
use crate::config::PodDirs;

fn pod(uid: &str, cpu: &str, extra: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid, "generation": 1},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    Arc::new(Pod::decode(pod.to_string().as_bytes()).unwrap())
}

/// The same pod with another CPU request.
fn resized(pod: &Arc<Pod>, cpu: &str) -> Arc<Pod> {
    let mut pod = (**pod).clone();
    pod.metadata.generation = pod.metadata.generation.map(|n| n + 1);
    let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
    let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(cpu.to_owned());
    resources.requests.as_mut().unwrap().insert("cpu".to_owned(), quantity);
    Arc::new(pod)
}

fn cpu(pod: &Pod) -> &str {
    &pod.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap().requests.as_ref().unwrap()["cpu"].0
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

struct Lab {
    node: Node,
    taken: Taken,
    allocations: Allocations,
}

impl Lab {
    /// A node of four CPUs.
    fn new(pods: &[&Arc<Pod>]) -> Self {
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}});
        let node = Node::decode(node.to_string().as_bytes()).unwrap();
        let mut lab = Self { node, taken: Taken::default(), allocations: Allocations::default() };
        for pod in pods {
            lab.allocations.admit(pod);
            lab.taken.add(pod);
        }
        lab
    }

    /// Decides about all pending resizes; returns `uid: outcome` of each.
    fn decide(&mut self, second: i64) -> Vec<String> {
        let decided = self.allocations.decide(&self.node, &mut self.taken, at(second));
        let outcomes = decided.into_iter().map(|Decided { pod, outcome }| {
            let outcome = match outcome {
                Outcome::Allocated => "allocated".to_owned(),
                Outcome::Pending { rejection, infeasible, news } => {
                    let word = if infeasible { "infeasible" } else { "deferred" };
                    format!(
                        "{word}{} {}: {}",
                        if news { "!" } else { "" },
                        rejection.reason,
                        rejection.message
                    )
                }
            };
            format!("{}: {outcome}", pod.uid())
        });
        outcomes.collect()
    }

    /// Returns `type reason generation since` of each condition.
    fn conditions(&self, uid: &str) -> Vec<String> {
        let of = |c: PodCondition| {
            let since = c.last_transition_time.map(|t| t.0.as_second() - at(0).as_second());
            let (reason, generation) = (c.reason.unwrap_or_default(), c.observed_generation.unwrap_or(0));
            format!("{} {} {reason} {generation} {}", c.type_, c.status, since.unwrap_or(-1))
        };
        self.allocations.conditions(uid).into_iter().map(of).collect()
    }
}

#[test]
fn a_resize_gets_what_is_left_waits_or_never_fits() {
    let (a, b) = (pod("a", "1", json!({})), pod("b", "2", json!({})));
    let mut lab = Lab::new(&[&a, &b]);
    assert!(!lab.allocations.want(&a) && lab.decide(0).is_empty());

    let more = resized(&a, "2");
    assert!(lab.allocations.want(&more));
    assert_eq!(cpu(&lab.allocations.of(&more)), "1", "the allocation changes only by a decision");
    assert_eq!(lab.decide(0), ["a: allocated"]);
    assert_eq!(cpu(&lab.allocations.of(&more)), "2");
    assert_eq!(lab.conditions("a"), ["PodResizeInProgress True  2 0"]);
    assert_eq!(lab.allocations.finish(&a), None, "a pass that began before does not end the resize");
    assert_eq!(lab.conditions("a").len(), 1);
    assert_eq!(lab.allocations.finish(&more), Some(2));
    assert_eq!((lab.allocations.finish(&more), lab.conditions("a").len()), (None, 0));

    let too_much = resized(&more, "2500m");
    assert!(lab.allocations.want(&too_much));
    let why = "Node didn't have enough resource: cpu, requested: 2500, used: 2000, capacity: 4000";
    assert_eq!(lab.decide(5), [format!("a: deferred! OutOfcpu: {why}")]);
    assert_eq!(cpu(&lab.allocations.of(&too_much)), "2");
    assert!(!lab.allocations.want(&too_much), "the same resize is not decided again");
    assert_eq!(lab.decide(9), [format!("a: deferred OutOfcpu: {why}")]);
    assert_eq!(lab.conditions("a"), ["PodResizePending True Deferred 3 5"]);

    let far_too_much = resized(&too_much, "5");
    assert!(lab.allocations.want(&far_too_much));
    let why = "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000";
    assert_eq!(lab.decide(20), [format!("a: infeasible! Infeasible: {why}")]);
    assert_eq!(lab.conditions("a"), ["PodResizePending True Infeasible 4 20"]);

    // The resize is reverted: the spec has the allocated amount, in another unit.
    assert!(!lab.allocations.want(&resized(&far_too_much, "2000m")));
    assert!(lab.conditions("a").is_empty() && lab.decide(30).is_empty());
}

#[test]
fn what_shrinks_gives_back_when_it_is_carried_out() {
    let (a, b) = (pod("a", "3", json!({})), pod("b", "1", json!({})));
    let mut lab = Lab::new(&[&a, &b]);
    let (less, more) = (resized(&a, "1"), resized(&b, "2"));
    lab.allocations.want(&less);
    lab.allocations.want(&more);
    let decided = lab.decide(0);
    assert_eq!(decided[0], "a: allocated", "a resize that asks for no more is first");
    assert!(decided[1].starts_with("b: deferred! OutOfcpu"), "{decided:?}");
    assert!(lab.decide(1)[0].starts_with("b: deferred "));
    // The kubelet does this when the containers have their new limits.
    lab.taken.add(&less);
    assert_eq!(lab.decide(2), ["b: allocated"]);
}

#[test]
fn the_order_of_those_who_wait() {
    let guaranteed = json!({"containers": [{"name": "c", "resources": {
        "requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"cpu": "100m", "memory": "1Mi"}}}]});
    let pods = [
        pod("late", "100m", json!({})),
        pod("early", "100m", json!({})),
        pod("guaranteed", "100m", guaranteed),
        pod("important", "100m", json!({"priority": 7})),
        pod("shrinks", "500m", json!({"priority": -1})),
    ];
    let hog = pod("hog", "3100m", json!({}));
    let mut lab = Lab::new(&pods.iter().chain([&hog]).collect::<Vec<_>>());
    let order = |outcomes: Vec<String>| -> Vec<String> {
        outcomes.into_iter().filter_map(|t| t.split_once(':').map(|(uid, _)| uid.to_owned())).collect()
    };
    // The QoS class is that of the resized pod, whose limits follow its requests.
    let wants = |pod: &Arc<Pod>| {
        let mut pod = (*resized(pod, "2")).clone();
        let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
        if let Some(limits) = &mut resources.limits {
            limits.clone_from(resources.requests.as_ref().unwrap());
        }
        Arc::new(pod)
    };
    lab.allocations.want(&wants(&pods[1]));
    lab.decide(0);
    lab.allocations.want(&wants(&pods[0]));
    lab.decide(10);
    lab.allocations.want(&wants(&pods[2]));
    lab.allocations.want(&wants(&pods[3]));
    lab.allocations.want(&resized(&pods[4], "400m"));
    assert_eq!(order(lab.decide(20)), ["shrinks", "important", "guaranteed", "early", "late"]);
    // There is room for the first one only.
    lab.taken.remove("hog");
    lab.allocations.forget("hog");
    let outcomes = lab.decide(30);
    let allocated: Vec<&String> = outcomes.iter().filter(|t| t.ends_with(": allocated")).collect();
    assert_eq!(allocated, ["important: allocated"], "{outcomes:?}");
    // A pod that has ended does not wait any more.
    lab.allocations.end("guaranteed");
    assert_eq!(order(lab.decide(40)), ["early", "late"]);
    assert!(lab.conditions("guaranteed").is_empty());
    // A pod that is to stop does not wait either, although its status still has the condition.
    lab.allocations.withdraw("early");
    assert_eq!(order(lab.decide(50)), ["late"]);
    assert_eq!(lab.conditions("early"), ["PodResizePending True Deferred 2 0"]);
}

#[test]
fn a_failure_is_said_once() {
    let a = pod("a", "1", json!({}));
    let mut lab = Lab::new(&[&a]);
    assert_eq!(lab.allocations.fail("a", "broken", at(0)), None, "nothing is under way");
    lab.allocations.want(&resized(&a, "2"));
    lab.decide(0);
    assert_eq!(lab.allocations.fail("a", "broken", at(1)), Some(2));
    assert_eq!(lab.allocations.fail("a", "broken", at(2)), None);
    assert_eq!(lab.conditions("a"), ["PodResizeInProgress True Error 2 1"]);
    assert_eq!(lab.allocations.conditions("a")[0].message.as_deref(), Some("broken"));
}

/// No container is to be replaced.
fn none() -> BTreeSet<String> {
    BTreeSet::new()
}

#[test]
fn records_say_which_containers_are_to_be_replaced() {
    let dirs = PodDirs::new(std::env::temp_dir().join(format!("knarr-kubelet-{:016x}", fastrand::u64(..))));
    let a = pod("a", "1", json!({}));
    let mut lab = Lab::new(&[&a]);
    let plain = lab.allocations.unrecorded("a", &none()).unwrap();
    lab.allocations.set_recorded("a", &plain);
    let replaced = BTreeSet::from(["c-1".to_owned()]);
    let record = lab.allocations.unrecorded("a", &replaced).unwrap();
    assert_eq!(lab.allocations.replaced("a"), none(), "not before the record is written");
    write(&dirs, "a", &record, true).unwrap();
    lab.allocations.set_recorded("a", &record);
    assert_eq!(lab.allocations.replaced("a"), replaced);
    assert_eq!(lab.allocations.unrecorded("a", &replaced), None);
    assert_eq!(lab.allocations.unrecorded("a", &none()), Some(plain));

    let mut lab = Lab::new(&[]);
    let read = read(&dirs, "a").unwrap();
    std::fs::remove_dir_all(dirs.root()).unwrap();
    lab.allocations.take_up(&a, read);
    assert_eq!(lab.allocations.replaced("a"), replaced);
}

#[test]
fn records_survive_and_conditions_are_taken_up() {
    let dirs = PodDirs::new(std::env::temp_dir().join(format!("knarr-kubelet-{:016x}", fastrand::u64(..))));
    let a = pod("a", "1", json!({"resources": {"limits": {"memory": "1Gi"}}}));
    assert_eq!(read(&dirs, "a").unwrap(), None);
    let mut lab = Lab::new(&[&a]);
    let allocated = lab.allocations.unrecorded("a", &none()).unwrap();
    write(&dirs, "a", &allocated, false).unwrap();
    lab.allocations.set_recorded("a", &allocated);
    assert_eq!(lab.allocations.unrecorded("a", &none()), None);

    // While the server is stopped, the pod is resized beyond the node's capacity.
    let mut more = (*resized(&a, "3")).clone();
    let pending =
        json!({"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]});
    more.status = Some(serde_json::from_value(pending).unwrap());
    let more = Arc::new(more);
    let hog = pod("hog", "2", json!({}));
    let mut lab = Lab::new(&[&hog]);
    lab.allocations.take_up(&more, read(&dirs, "a").unwrap());
    lab.taken.add(&lab.allocations.of(&more));
    assert_eq!(lab.taken.amounts()["cpu"], 3000);
    assert_eq!(lab.allocations.conditions("a").len(), 1);
    lab.allocations.want(&more);
    assert!(lab.decide(0)[0].starts_with("a: deferred"));
    assert_eq!(cpu(&lab.allocations.of(&more)), "1");
    assert_eq!(lab.allocations.unrecorded("a", &none()), None);

    lab.taken.remove("hog");
    assert_eq!(lab.decide(1), ["a: allocated"]);
    let next = lab.allocations.unrecorded("a", &none()).unwrap();
    lab.allocations.set_recorded("a", &allocated);
    assert_eq!(lab.allocations.unrecorded("a", &none()), Some(next.clone()), "an older record is ignored");
    write(&dirs, "a", &next, true).unwrap();
    assert_eq!(read(&dirs, "a").unwrap(), Some(next));
    std::fs::write(dirs.pod_dir("a").join("allocated_resources"), "{").unwrap();
    let broken = read(&dirs, "a");
    std::fs::remove_dir_all(dirs.root()).unwrap();
    assert!(matches!(broken, Err(record::RecordError::Parse { .. })), "{broken:?}");
}

/// After a power loss the record may be missing, while the API still has the status.
#[test]
fn without_a_record_a_pod_has_what_its_status_says() {
    let a = pod("a", "1", json!({}));
    let mut more = (*resized(&a, "3")).clone();
    let container = json!({
        "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}},
    });
    more.status = Some(serde_json::from_value(json!({"containerStatuses": [container]})).unwrap());
    let mut lab = Lab::new(&[]);
    lab.allocations.take_up(&more, None);
    assert_eq!(cpu(&lab.allocations.of(&more)), "1");
    assert!(lab.allocations.want(&Arc::new(more)), "the rest is to be decided");
}
