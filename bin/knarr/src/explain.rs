//! `knarr explain`: explains, by node and plugin, why a pod is on its node or on none.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use knarr_scheduler::what_if::report::{Change, Explanation, NodeReport, Objection, Way};
use serde_json::{Value, json};

use crate::picture::{self, EXPLANATION, Output, PictureArgs, print_table};

/// The most rows of nodes in a table; JSON has all of them.
const NODES: usize = 50;
/// The most nodes named in one line.
const NAMED: usize = 5;

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr explain pod web-1\n  knarr explain pod -f pod.yaml -o json\n  \
    knarr explain pod web-1 --snapshot cluster.json\n\n\
    Asks the server, which knows what its scheduler thinks of failing nodes; where it does not answer such questions,\n\
    reads the cluster with the kubeconfig's rights and judges it here, with the scheduler's own code. Nothing is bound.")]
pub struct ExplainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A pod: pending, bound, or only written in a manifest
    #[command(visible_alias = "po")]
    Pod {
        /// Name of the pod
        #[arg(required_unless_present = "filename", conflicts_with = "filename")]
        name: Option<String>,
        /// Manifest of a pod, or of a workload, of which the first pod is used; `-` reads standard input
        #[arg(short, long, value_name = "FILE")]
        filename: Option<PathBuf>,
        #[command(flatten)]
        picture: PictureArgs,
    },
}

pub fn run(args: ExplainArgs) -> Result<()> {
    let What::Pod { name, filename, picture } = args.what;
    let explained = match (name, filename) {
        (Some(name), _) => {
            let asked = picture.ask(&EXPLANATION, &json!({"podName": name}))?;
            match asked {
                Some(said) => vec![said],
                None => vec![picture.take()?.explain_pod(&picture.namespace, &name)?],
            }
        }
        (None, Some(file)) => {
            let objects = picture::objects(&file)?;
            match asked(&picture, &objects)? {
                Some(explained) => explained,
                None => {
                    let what_if = picture.take()?;
                    let first = |object| what_if.explain_manifest(&picture.namespace, object);
                    let explained: Result<Vec<_>, _> = objects.iter().map(first).collect();
                    explained?.into_iter().flatten().collect()
                }
            }
        }
        (None, None) => bail!("name a pod, or a manifest with -f"),
    };
    for one in &explained {
        match picture.output {
            Output::Json => println!("{}", serde_json::to_string_pretty(one)?),
            Output::Table => show(one),
        }
    }
    Ok(())
}

/// Asks the server to explain the first pod of each object; `None` if the server does not answer such
/// questions.
fn asked(picture: &PictureArgs, objects: &[Value]) -> Result<Option<Vec<Explanation>>> {
    let mut explained = Vec::new();
    for object in objects {
        match picture.ask(&EXPLANATION, &json!({"manifest": object}))? {
            Some(said) => explained.push(said),
            None => return Ok(None),
        }
    }
    Ok(Some(explained))
}

fn show(said: &Explanation) {
    let place = match said.node.as_deref() {
        Some(node) if said.node_is_missing => format!("for {node:?}, which is no node of the cluster"),
        Some(node) => format!("on {node}"),
        None => "not bound".to_owned(),
    };
    println!(
        "Pod {}/{}, {place}, priority {}, of scheduler {}",
        said.namespace, said.pod, said.priority, said.scheduler_name
    );
    println!("{}", said.message);
    if let Some(remedy) = &said.remedy {
        println!("It cannot run: {remedy}");
    }
    for what in &said.unknown {
        println!("Not known here: {what}");
    }
    for held in &said.held_back {
        println!("Held back: {}", held.words());
    }
    if let Some(preemption) = &said.preemption {
        let victims: Vec<String> = preemption
            .victims
            .iter()
            .map(|v| format!("{}/{} ({})", v.namespace, v.name, v.priority))
            .collect();
        println!("Room would be made on {} by preempting {}", preemption.node, victims.join(", "));
    }
    if !said.best.is_empty() {
        println!("Best: {}", some(&said.best));
    }
    if said.nodes.is_empty() {
        return;
    }
    println!();
    print_table(&nodes(&said.nodes));
    if said.nodes.len() > NODES {
        println!("… and {} more nodes: -o json has all", said.nodes.len() - NODES);
    }
    // Changes of other nodes do not help a pod that requires a missing node.
    if said.fits == 0 && !said.changes.is_empty() && !said.node_is_missing {
        println!("\nWhat would have to change:");
        for change in &said.changes {
            let words: Vec<String> = change.objections.iter().map(Objection::words).collect();
            println!("  {}: on {}", words.join("; "), some(&change.nodes));
            for line in ways(change) {
                println!("    {line}");
            }
        }
    }
}

/// Returns what would have to change on which nodes, and how many other ways exist.
fn ways(change: &Change) -> Vec<String> {
    let way = |way: &Way| format!("{}: {}", some(&way.nodes), way.remedies.join("; "));
    let mut lines: Vec<String> = change.ways.iter().map(way).collect();
    match change.more_ways {
        0 => {}
        1 => lines.push("and 1 other way on further nodes".to_owned()),
        more => lines.push(format!("and {more} other ways on further nodes")),
    }
    lines
}

fn nodes(nodes: &[NodeReport]) -> Vec<Vec<String>> {
    let plugins: Vec<&str> = nodes
        .iter()
        .find(|n| n.fits)
        .into_iter()
        .flat_map(|n| &n.scores)
        .map(|s| s.plugin.as_str())
        .collect();
    let mut head = vec!["NODE".to_owned(), "FITS".to_owned(), "SCORE".to_owned()];
    head.extend(plugins.iter().map(|p| p.to_uppercase()));
    head.push("AGAINST IT".to_owned());
    let mut rows = vec![head];
    for node in nodes.iter().take(NODES) {
        let name = if node.current { format!("{} (here)", node.name) } else { node.name.clone() };
        let mut row = vec![name, if node.fits { "yes" } else { "no" }.to_owned()];
        row.push(if node.fits { node.score.to_string() } else { String::new() });
        row.extend(plugins.iter().map(|plugin| {
            let score = node.scores.iter().find(|s| s.plugin == *plugin);
            score.map_or_else(String::new, |s| format!("{}×{}", s.normalized, s.weight))
        }));
        row.push(node.objections.iter().map(Objection::words).collect::<Vec<_>>().join("; "));
        rows.push(row);
    }
    rows
}

/// Returns the first few of these names, and how many more follow.
fn some(names: &[String]) -> String {
    let first = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED { format!("{first} and {} more", names.len() - NAMED) } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ways_of_a_change_are_lines() {
        let way = |nodes: &[&str], text: &str| Way {
            remedies: vec![text.to_owned()],
            nodes: nodes.iter().map(|name| (*name).to_owned()).collect(),
        };
        let mut change = Change {
            objections: Vec::new(),
            nodes: Vec::new(),
            ways: vec![way(&["a", "c"], "a toleration for x:NoSchedule"), way(&["b"], "kubectl uncordon b")],
            more_ways: 0,
        };
        let two = ["a, c: a toleration for x:NoSchedule", "b: kubectl uncordon b"];
        assert_eq!(ways(&change), two);
        for (more, last) in
            [(1, "and 1 other way on further nodes"), (7, "and 7 other ways on further nodes")]
        {
            change.more_ways = more;
            assert_eq!(ways(&change), [two[0], two[1], last]);
        }
    }
}
