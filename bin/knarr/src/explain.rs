//! `knarr explain`: explains, by node and plugin, why a pod is on its node or on none.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use knarr_scheduler::what_if::report::{Change, Explanation, NodeReport, Objection, Way};
use serde_json::{Value, json};

use crate::picture::{self, EXPLANATION, Output, PictureArgs, print_table};

/// The most rows of nodes without `--all`.
const ROWS: usize = 50;
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
        /// Show each node in a row of its own
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        picture: PictureArgs,
    },
}

pub fn run(args: ExplainArgs) -> Result<()> {
    let What::Pod { name, filename, all, picture } = args.what;
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
            Output::Table => show(one, all),
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

/// Returns the answer in a sentence: where the pod is, where it would go, or that it fits nowhere.
fn answer(said: &Explanation) -> String {
    let pod = format!("Pod {}/{}", said.namespace, said.pod);
    let nodes = match said.of {
        1 => "1 node".to_owned(),
        of => format!("{of} nodes"),
    };
    match said.node.as_deref() {
        Some(node) if said.node_is_missing => {
            format!("{pod} cannot run: it is for the node {node:?}, which does not exist.")
        }
        Some(node) => format!("{pod} is on {node}; {} of {nodes} fit it.", said.fits),
        None if !said.held_back.is_empty() => format!("{pod} is not scheduled yet: it is held back."),
        None if said.fits == 0 && said.preemption.is_some() => {
            format!("{pod} fits none of {nodes}, but would with preemption.")
        }
        None if said.fits == 0 => format!("{pod} fits none of {nodes}."),
        None => format!("{pod} fits {} of {nodes}, best {}.", said.fits, some(&said.best)),
    }
}

fn show(said: &Explanation, all: bool) {
    println!("{}", answer(said));
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
    let groups = if all { said.nodes.iter().map(|node| vec![node]).collect() } else { alike(&said.nodes) };
    let shown = if all { groups.len() } else { groups.len().min(ROWS) };
    print_table(&rows(&groups[..shown]));
    if shown < groups.len() {
        println!("… and {} more rows: --all shows each node", groups.len() - shown);
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

/// Groups the nodes that are alike: those that fit with the same scores, and those with the same objections. Groups
/// are in the order of their first node.
fn alike(nodes: &[NodeReport]) -> Vec<Vec<&NodeReport>> {
    let mut places: HashMap<_, usize> = HashMap::new();
    let mut groups: Vec<Vec<&NodeReport>> = Vec::new();
    for node in nodes {
        let scores: Vec<_> = node.scores.iter().map(|s| (s.normalized, s.weight)).collect();
        let verdict = (node.current, node.fits, node.score, scores, objections(node));
        match places.entry(verdict) {
            Entry::Occupied(place) => {
                if let Some(group) = groups.get_mut(*place.get()) {
                    group.push(node);
                }
            }
            Entry::Vacant(place) => {
                place.insert(groups.len());
                groups.push(vec![node]);
            }
        }
    }
    groups
}

fn objections(node: &NodeReport) -> String {
    node.objections.iter().map(Objection::words).collect::<Vec<_>>().join("; ")
}

/// Returns the head of the table and a row for each group of nodes.
fn rows(groups: &[Vec<&NodeReport>]) -> Vec<Vec<String>> {
    let firsts = || groups.iter().filter_map(|group| Some((*group.first()?, group.len())));
    let plugins: Vec<&str> = firsts()
        .find(|(node, _)| node.fits)
        .into_iter()
        .flat_map(|(node, _)| &node.scores)
        .map(|s| s.plugin.as_str())
        .collect();
    let mut head = vec!["NODE".to_owned(), "FITS".to_owned(), "SCORE".to_owned()];
    head.extend(plugins.iter().map(|p| p.to_uppercase()));
    head.push("AGAINST IT".to_owned());
    let mut rows = vec![head];
    for (node, count) in firsts() {
        let name = match count {
            1 if node.current => format!("{} (here)", node.name),
            1 => node.name.clone(),
            count => format!("{} and {} more", node.name, count - 1),
        };
        let mut row = vec![name, if node.fits { "yes" } else { "no" }.to_owned()];
        row.push(if node.fits { node.score.to_string() } else { String::new() });
        row.extend(plugins.iter().map(|plugin| {
            let score = node.scores.iter().find(|s| s.plugin == *plugin);
            score.map_or_else(String::new, |s| format!("{}×{}", s.normalized, s.weight))
        }));
        row.push(objections(node));
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

    fn node(name: &str, fits: bool, against: &str) -> NodeReport {
        let objection = |reason: &str| Objection {
            plugin: "NodeAffinity".to_owned(),
            reasons: vec![reason.to_owned()],
            preemption_may_help: false,
            remedies: Vec::new(),
            missing: 0,
        };
        let objections = if fits { Vec::new() } else { vec![objection(against)] };
        NodeReport { fits, objections, ..NodeReport::of(name) }
    }

    #[test]
    fn nodes_that_are_alike_are_one_row() {
        let here = NodeReport { current: true, ..node("here", true, "") };
        let nodes = [
            here,
            node("a", true, ""),
            node("b", false, "x"),
            node("c", true, ""),
            node("d", false, "y"),
            node("e", false, "x"),
        ];
        let names = |rows: &[Vec<String>]| rows.iter().skip(1).map(|row| row[0].clone()).collect::<Vec<_>>();
        assert_eq!(names(&rows(&alike(&nodes))), ["here (here)", "a and 1 more", "b and 1 more", "d"]);
        let each: Vec<_> = nodes.iter().map(|node| vec![node]).collect();
        assert_eq!(names(&rows(&each)), ["here (here)", "a", "b", "c", "d", "e"]);
    }

    #[test]
    fn the_answer_comes_first() {
        let said = |node: Option<&str>, fits: usize, best: &[&str]| Explanation {
            namespace: "shop".to_owned(),
            pod: "web".to_owned(),
            node: node.map(str::to_owned),
            fits,
            of: 31,
            best: best.iter().map(|name| (*name).to_owned()).collect(),
            ..Explanation::default()
        };
        for (said, expected) in [
            (said(None, 0, &[]), "Pod shop/web fits none of 31 nodes."),
            (said(None, 3, &["a", "b"]), "Pod shop/web fits 3 of 31 nodes, best a, b."),
            (said(Some("a"), 2, &["a"]), "Pod shop/web is on a; 2 of 31 nodes fit it."),
            (
                Explanation { node_is_missing: true, ..said(Some("z"), 0, &[]) },
                "Pod shop/web cannot run: it is for the node \"z\", which does not exist.",
            ),
        ] {
            assert_eq!(answer(&said), expected);
        }
    }

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
