//! `knarr simulate`: shows where the pods of manifests would be placed and which pods would be preempted for
//! them; binds nothing.

use std::collections::{BTreeMap, HashMap};
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
    /// Show each pod in a row of its own
    #[arg(long)]
    all: bool,
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
        Output::Table => show(&simulation, args.all),
    }
    Ok(())
}

fn show(simulation: &Simulation, all: bool) {
    println!(
        "{} placed, {} without a node, {} preempted",
        simulation.placed, simulation.unschedulable, simulation.preempted
    );
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in simulation.pods.iter().filter(|p| p.node.is_none()) {
        *reasons.entry(&pod.message).or_default() += 1;
    }
    for (reason, pods) in reasons {
        println!("{pods} {}: {reason}", if pods == 1 { "pod" } else { "pods" });
    }
    println!();
    let groups =
        if all { simulation.pods.iter().map(|pod| vec![pod]).collect() } else { alike(&simulation.pods) };
    let mut rows = vec![["NAMESPACE", "POD", "NODE", "PREEMPTS"].map(str::to_owned).to_vec()];
    rows.extend(groups.iter().filter_map(|group| row(group)));
    print_table(&rows);
}

/// Groups the pods of a namespace that get no node, for the same reason, and those that get the same node and preempt
/// nobody. Groups are in the order of their first pod.
fn alike(pods: &[Placement]) -> Vec<Vec<&Placement>> {
    let mut places = HashMap::new();
    let mut groups: Vec<Vec<&Placement>> = Vec::new();
    for pod in pods {
        let verdict = (&pod.namespace, &pod.node, &pod.message);
        let known = places.get(&verdict).and_then(|place: &usize| groups.get_mut(*place));
        match known.filter(|_| pod.preempts.is_empty()) {
            Some(group) => group.push(pod),
            None => {
                if pod.preempts.is_empty() {
                    places.insert(verdict, groups.len());
                }
                groups.push(vec![pod]);
            }
        }
    }
    groups
}

fn row(group: &[&Placement]) -> Option<Vec<String>> {
    let pod = group.first()?;
    let victim = |v: &Victim| format!("{}/{}", v.namespace, v.name);
    Some(vec![
        pod.namespace.clone(),
        match group.len() {
            1 => pod.pod.clone(),
            count => format!("{} and {} more", pod.pod, count - 1),
        },
        pod.node.clone().unwrap_or_else(|| "<none>".to_owned()),
        pod.preempts.iter().map(victim).collect::<Vec<_>>().join(","),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_are_alike_are_one_row() {
        let pod = |name: &str, node: Option<&str>, preempts: bool| Placement {
            namespace: "shop".to_owned(),
            pod: name.to_owned(),
            node: node.map(str::to_owned),
            preempts: if preempts {
                vec![Victim { namespace: "low".to_owned(), name: "v".to_owned(), priority: 0 }]
            } else {
                Vec::new()
            },
            message: if node.is_none() { "no room".to_owned() } else { String::new() },
        };
        let pods = [
            pod("a", Some("n1"), false),
            pod("b", None, false),
            pod("c", Some("n1"), true),
            pod("d", Some("n1"), false),
            pod("e", None, false),
            pod("f", Some("n1"), true),
        ];
        let names: Vec<String> =
            alike(&pods).iter().filter_map(|group| row(group)).map(|row| row[1].clone()).collect();
        assert_eq!(names, ["a and 1 more", "b and 1 more", "c", "f"]);
    }
}
