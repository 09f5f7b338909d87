//! An idle cluster.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::cluster::Cluster;
use super::process;
use super::report::Report;

const PODS: usize = 5;
/// How long the remaining work of the start takes.
const SETTLE: Duration = Duration::from_secs(15);

pub fn measure(binary: &Path, seconds: usize) -> Result<Report> {
    let mut cluster = Cluster::new(binary)?;
    cluster.start(&[])?;
    let mut report = Report::new("idle");
    at_rest(&cluster, "empty", seconds, &mut report)?;
    run_pods(&cluster)?;
    at_rest(&cluster, &format!("{PODS} pods"), seconds, &mut report)?;
    let shims = process::beside(cluster.pid()?, "shim")?;
    for (number, pid) in shims.iter().enumerate() {
        let memory = process::memory(*pid)?;
        report.add(&format!("shim {} RSS", number + 1), memory.rss, "MB");
        report.add(&format!("shim {} PSS", number + 1), memory.pss, "MB");
    }
    Ok(report)
}

fn at_rest(cluster: &Cluster, what: &str, seconds: usize, report: &mut Report) -> Result<()> {
    std::thread::sleep(SETTLE);
    let pid = cluster.pid()?;
    let (begun, cpu, woken) = (Instant::now(), process::cpu_time(pid)?, process::wake_ups(pid)?);
    std::thread::sleep(Duration::from_secs(seconds as u64));
    let passed = begun.elapsed().as_secs_f64();
    let cpu = (process::cpu_time(pid)?.saturating_sub(cpu)).as_secs_f64();
    let woken = process::wake_ups(pid)?.saturating_sub(woken);
    let memory = process::memory(pid)?;
    report.add(&format!("{what}: RSS"), memory.rss, "MB");
    report.add(&format!("{what}: PSS"), memory.pss, "MB");
    report.add(&format!("{what}: CPU of one core"), cpu / passed * 100.0, "%");
    report.add(&format!("{what}: wake-ups"), woken as f64 / passed, "/s");
    Ok(())
}

fn run_pods(cluster: &Cluster) -> Result<()> {
    let access = cluster.access()?;
    let mut connection = access.connect()?;
    for number in 0..PODS {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("idle-{number}")},
            "spec": {"containers": [{"name": "web", "image": "knarr.local/web:v1"}]},
        });
        connection.json("POST", "/api/v1/namespaces/default/pods", Some(&pod))?;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let pods = connection.json("GET", "/api/v1/namespaces/default/pods", None)?;
        let items = pods["items"].as_array().cloned().unwrap_or_default();
        if items.iter().filter(|p| p["status"]["phase"] == "Running").count() == PODS {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("the pods do not run: {pods}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
