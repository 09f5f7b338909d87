//! Measures how long starts and commands take, and how much memory a shim uses. Not a check, so it runs only on
//! request: `cargo test -p knarr-runtime --test containers latency -- --ignored --nocapture`.

use std::fs;
use std::time::{Duration, Instant};

use crate::world::{World, sandbox};

const ROUNDS: usize = 40;

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100].as_secs_f64() * 1000.0;
    println!("{what:32} p50 {:6.2} ms   p90 {:6.2} ms", at(50), at(90));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn latency() {
    let world = World::new().await;
    let (mut sandboxes, mut creates, mut starts, mut execs, mut stops) =
        (vec![], vec![], vec![], vec![], vec![]);
    let rootfs = world.rootfs("shared");
    for round in 0..ROUNDS {
        // After an idle gap, as on a quiet node.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (name, id) = (format!("s{round}"), format!("c{round}"));
        let begin = Instant::now();
        world.runtime.run_sandbox(sandbox(&name)).await.unwrap();
        sandboxes.push(begin.elapsed());
        let mut spec = world.spec(&id, &["sleep", "1000"]);
        spec.rootfs = rootfs.clone();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let begin = Instant::now();
        world.runtime.create_container(&name, spec).await.unwrap();
        creates.push(begin.elapsed());
        let begin = Instant::now();
        world.runtime.start_container(&id).await.unwrap();
        starts.push(begin.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
        let begin = Instant::now();
        let output = world.runtime.exec_sync(&id, vec!["true".to_owned()], None).await.unwrap();
        assert_eq!(output.exit_code, 0);
        execs.push(begin.elapsed());
    }
    for line in fs::read_to_string(format!("/proc/{}/smaps_rollup", world.shim_pid("s5"))).unwrap().lines() {
        if ["Pss:", "Private_Dirty:", "Private_Clean:", "Rss:"].iter().any(|key| line.starts_with(key)) {
            println!("shim {line}");
        }
    }
    for round in 0..ROUNDS {
        let begin = Instant::now();
        world.runtime.remove_sandbox(&format!("s{round}")).await.unwrap();
        stops.push(begin.elapsed());
    }
    report("sandbox", sandboxes);
    report("create container", creates);
    report("start container", starts);
    report("exec_sync true", execs);
    report("kill and remove sandbox", stops);
}
