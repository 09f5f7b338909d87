//! `knarr simulate`: shows where the pods of manifests would be placed and which pods would be preempted for
//! them; binds nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use knarr_scheduler::what_if::report::{Placement, Simulation, Victim};

use serde_json::{Value, json};

use crate::picture::{self, Output, PictureArgs, SIMULATION, print_table};

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr simulate -f web.yaml\n  \
    knarr simulate -f web.yaml -f db.yaml --snapshot cluster.json -o json\n  knarr simulate --save \
    cluster.json\n\n\
    Pods, and the pods of Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets and Jobs, are \
    placed\nin the order they are written, as new ones beside those that are there. The pods of a PodGroup, of the \
    files or of the cluster,\nare placed together or not at all.")]
pub struct SimulateArgs {
    /// Manifests, YAML or JSON; `-` reads standard input
    #[arg(short, long, required_unless_present = "save", value_name = "FILE")]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    picture: PictureArgs,
}

pub fn run(args: SimulateArgs) -> Result<()> {
    let mut manifests = Vec::new();
    for file in &args.filename {
        manifests.extend(picture::objects(file)?);
    }
    // Services and similar objects in the same files need no placement.
    let makes_pods = |m: &Value| {
        m["spec"]["template"].is_object()
            || ["Pod", "PodGroup", "CronJob"].iter().any(|kind| m["kind"] == *kind)
    };
    manifests.retain(makes_pods);
    if args.filename.is_empty() {
        // Without manifests, only the cluster's objects are saved.
        return args.picture.take().map(drop);
    }
    // A server refuses a simulation without manifests.
    let asked = match manifests.as_slice() {
        [] => None,
        manifests => args.picture.ask(&SIMULATION, &json!({"manifests": manifests}))?,
    };
    let simulation = match asked {
        Some(simulation) => simulation,
        None => args.picture.take()?.simulate(&args.picture.namespace, &manifests)?,
    };
    match args.picture.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&simulation)?),
        Output::Table => show(&simulation),
    }
    Ok(())
}

fn show(simulation: &Simulation) {
    let mut rows = vec![["NAMESPACE", "POD", "NODE", "PREEMPTS"].map(str::to_owned).to_vec()];
    rows.extend(simulation.pods.iter().map(row));
    print_table(&rows);
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in simulation.pods.iter().filter(|p| p.node.is_none()) {
        *reasons.entry(&pod.message).or_default() += 1;
    }
    println!(
        "\n{} placed, {} without a node, {} preempted",
        simulation.placed, simulation.unschedulable, simulation.preempted
    );
    for (reason, pods) in reasons {
        println!("{pods} pods: {reason}");
    }
}

fn row(pod: &Placement) -> Vec<String> {
    let victim = |v: &Victim| format!("{}/{}", v.namespace, v.name);
    vec![
        pod.namespace.clone(),
        pod.pod.clone(),
        pod.node.clone().unwrap_or_else(|| "<none>".to_owned()),
        pod.preempts.iter().map(victim).collect::<Vec<_>>().join(","),
    ]
}
