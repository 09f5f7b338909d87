//! Tests of disks against the limits of nodes.

use super::*;
use crate::plugins::testing::{PodBuilder, node, object, pod, verdicts_of};
use serde_json::{Value, json};

const DRIVER: &str = "csi.example.com";

fn catalog(extra: impl FnOnce(&Catalog)) -> Arc<Catalog> {
    let catalog = Catalog::default();
    for n in 0..4 {
        let csi = json!({"driver": DRIVER, "volumeHandle": format!("h{n}")});
        catalog.put::<PersistentVolume>(object(
            json!({"metadata": {"name": format!("v{n}")}, "spec": {"csi": csi}}),
        ));
        catalog.put::<PersistentVolumeClaim>(object(
            json!({"metadata": {"name": format!("c{n}"), "namespace": "default"},
            "spec": {"volumeName": format!("v{n}")}}),
        ));
    }
    catalog.put::<PersistentVolumeClaim>(object(
        json!({"metadata": {"name": "late", "namespace": "default"}, "spec": {"storageClassName": "late"}}),
    ));
    catalog.put::<StorageClass>(object(json!({"metadata": {"name": "late"}, "provisioner": DRIVER})));
    let limit =
        |driver: &str, count: Value| json!({"name": driver, "nodeID": "x", "allocatable": {"count": count}});
    let drivers = json!([limit(DRIVER, json!(2)), limit("ebs.csi.aws.com", json!(1))]);
    catalog.put::<CSINode>(object(json!({"metadata": {"name": "limited"}, "spec": {"drivers": drivers}})));
    extra(&catalog);
    Arc::new(catalog)
}

/// Returns the messages for the limited node and for one without a CSINode.
fn say(pod: PodBuilder, there: Vec<PodBuilder>, extra: impl FnOnce(&Catalog)) -> (String, String) {
    let nodes = vec![node("limited"), node("other")];
    let there = there.into_iter().map(|p| (0, p)).collect();
    let said = verdicts_of(DESCRIPTOR, &catalog(extra), pod, nodes, there);
    (said[0].message(), said[1].message())
}

fn aws(id: &str) -> Value {
    json!({"awsElasticBlockStore": {"volumeID": id}})
}

#[test]
fn disks_are_counted_once_each() {
    let table = [
        (pod("p").claim("c0"), vec![pod("q").claim("c1")], true),
        (pod("p").claim("c0").claim("c1"), vec![pod("q").claim("c2")], false),
        (pod("p").claim("c0"), vec![pod("q").claim("c1").claim("c2")], false),
        (pod("p").claim("c1"), vec![pod("q").claim("c1").claim("c2")], true),
        (pod("p").claim("late"), vec![pod("q").claim("c1")], true),
        (pod("p").claim("late"), vec![pod("q").claim("c1").claim("c2")], false),
        (pod("p").claim("c0"), vec![pod("q").claim("gone").claim("c1")], true),
        (pod("p").volume(aws("a")), vec![], true),
        (pod("p").volume(aws("a")), vec![pod("q").volume(aws("aws://zone/a"))], true),
        (pod("p").volume(aws("a")), vec![pod("q").volume(aws("b"))], false),
        (pod("p"), vec![pod("q").claim("c1").claim("c2").claim("c3")], true),
    ];
    for (n, (pod, there, fits)) in table.into_iter().enumerate() {
        let expected = if fits { "" } else { TOO_MANY };
        assert_eq!(say(pod, there, |_| ()), (expected.to_owned(), String::new()), "case {n}");
    }
}

#[test]
fn what_is_still_attached_counts() {
    let attached = |catalog: &Catalog| {
        for (name, volume) in [("a", "v2"), ("b", "v3")] {
            catalog.put::<VolumeAttachment>(object(json!({"metadata": {"name": name}, "spec":
                {"attacher": DRIVER, "nodeName": "limited", "source": {"persistentVolumeName": volume}}})));
        }
    };
    assert_eq!(say(pod("p").claim("c0"), vec![], attached).0, TOO_MANY);
    assert_eq!(say(pod("p").claim("c0"), vec![pod("q").claim("c2")], |_| ()).0, "");
}

#[test]
fn a_needed_driver_has_to_be_there() {
    let needed = |catalog: &Catalog| {
        let spec = json!({"preventPodSchedulingIfMissing": true});
        catalog.put::<CSIDriver>(object(json!({"metadata": {"name": DRIVER}, "spec": spec})));
    };
    let (limited, other) = say(pod("p").claim("c0"), vec![], needed);
    assert_eq!(limited, "");
    assert_eq!(other, "csi.example.com CSI driver is not installed on the node");
    let (limited, _) = say(pod("p").claim("gone"), vec![], |_| ());
    assert_eq!(limited, "looking up PVC default/gone: persistentvolumeclaim \"gone\" not found");
}

#[test]
fn hints_tell_growth_from_other_changes() {
    let plugin = NodeVolumeLimits {
        books: Books { catalog: Arc::default(), attached: Arc::default(), drivers: Arc::default() },
    };
    let waits = PodInfo::new(&pod("p").claim("c").build());
    let node_of = |count: i32| -> Arc<CSINode> {
        let driver = json!({"name": "d", "nodeID": "x", "allocatable": {"count": count}});
        Arc::new(object(json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}})))
    };
    let grew = |from, to| {
        let happened = ClusterEvent::new(Resource::CsiNode, Action::UPDATE);
        plugin.hint(&waits, happened, &Changed::of(Some(node_of(from)), Some(node_of(to))))
    };
    assert!(grew(1, 2));
    assert!(!grew(2, 1));
    let gone = |gone: PodBuilder| {
        let happened = ClusterEvent::new(Resource::AssignedPod, Action::DELETE);
        plugin.hint(&waits, happened, &Changed::of::<Pod>(Some(Arc::new(gone.build())), None))
    };
    assert!(gone(pod("q").claim("x")) && gone(pod("q").volume(aws("a"))) && !gone(pod("q")));
}
