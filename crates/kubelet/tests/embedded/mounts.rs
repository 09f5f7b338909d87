//! Mounts below a container's volumes, and /proc, as the container sees them.

use serde_json::json;

use crate::world::World;

/// KEP-3857: a volume with another file system mounted below it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_below_a_volume_are_read_only_where_that_is_asked_for() {
    let world = World::new().await;
    // At its end, the world unmounts everything below its folder.
    let below = world.folder.join("tree/below");
    std::fs::create_dir_all(&below).unwrap();
    let mounted = std::process::Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&below).status();
    assert!(mounted.unwrap().success());
    let script = "for dir in /plain /enabled /possible; do \
                    touch $dir/new 2>/dev/null && echo $dir || echo sealed; \
                    touch $dir/below/new 2>/dev/null && echo $dir/below || echo sealed; \
                  done; echo done; exec sleep 1000";
    let mount = |path: &str, mode: &str| json!({"name": "tree", "mountPath": path, "readOnly": true, "recursiveReadOnly": mode});
    world.add_pod(
        "reader",
        json!({
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "tree", "hostPath": {"path": world.folder.join("tree")}}],
            "containers": [{
                "name": "main", "image": "box:1", "command": ["sh", "-c", script],
                "volumeMounts": [
                    {"name": "tree", "mountPath": "/plain", "readOnly": true},
                    mount("/enabled", "Enabled"),
                    mount("/possible", "IfPossible"),
                ],
            }],
        }),
    );
    world.until("the pod's run", "reader", |w| w.log("reader", "main", 0).ends_with("done")).await;
    assert_eq!(
        world.log("reader", "main", 0),
        "sealed\n/plain/below\nsealed\nsealed\nsealed\nsealed\ndone",
        "only the plain mount leaves what is below it as it is"
    );
    let mounts = |w: &World| w.container("reader", "main").volume_mounts.unwrap_or_default();
    world.until("the status", "reader", |w| mounts(w).len() == 3).await;
    let modes = mounts(&world).into_iter().map(|m| m.recursive_read_only.unwrap_or_default());
    assert_eq!(modes.collect::<Vec<_>>(), ["Disabled", "Enabled", "Enabled"]);
}

/// KEP-4265: the kernel lets a container nested in this one mount a /proc of its own only if nothing covers parts
/// of this one's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmasked_proc_is_not_covered() {
    let world = World::new().await;
    let script = "grep -c ' /proc/' /proc/self/mountinfo; mkdir /nested; \
                  unshare -U -r -m -p -f mount -t proc none /nested 2>/dev/null && echo mounted || echo refused; \
                  exec sleep 1000";
    let container = |name: &str, proc_mount: &str| {
        json!({"name": name, "image": "box:1", "command": ["sh", "-c", script],
            "securityContext": {"procMount": proc_mount, "capabilities": {"add": ["SYS_ADMIN"]}}})
    };
    world.add_pod(
        "nested",
        json!({
            "hostUsers": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [container("masked", "Default"), container("bare", "Unmasked")],
        }),
    );
    let log = |w: &World, name: &str| w.log("nested", name, 0);
    let both = |w: &World| ["masked", "bare"].iter().all(|name| log(w, name).lines().count() == 2);
    world.until("the pod's run", "nested", both).await;
    assert_eq!(log(&world, "bare"), "0\nmounted");
    let masked = log(&world, "masked");
    let (covers, nested) = masked.split_once('\n').unwrap();
    assert!(covers.parse::<u32>().unwrap() > 0, "nothing of /proc is covered");
    assert_eq!(nested, "refused");
}
