//! /metrics/cadvisor: the resource usage of the node, its pods and containers, with the names and labels of
//! cAdvisor in upstream's kubelet.
//!
//! All values are read for each request. Values that neither the kernel nor the runtime reports are left out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;

use super::answer::{self, Answer};
use super::families::{Family, Labels, render, seconds};
use super::handler::Handler;
use super::stats::{self, NodeUsage, PodUsage};
use crate::node_status::machine::Machine;
use crate::runtime::{Disk, InterfaceStats, Stats, UsageDetails};

pub async fn answer(handler: &Handler) -> Answer {
    let usage = stats::pod_usage(handler, Disk::Measured).await.unwrap_or_default();
    let details = handler.runtime.usage_details().await.unwrap_or_default();
    let details: BTreeMap<String, UsageDetails> =
        details.into_iter().map(|details| (details.id.clone(), details)).collect();
    let mut all = Families::default();
    all.machine(&Machine::read());
    all.node(&NodeUsage::read(), handler.client.clock().now());
    usage.iter().for_each(|pod| all.pod(pod, &details));
    answer::prometheus(render(&all.into_sorted()))
}

/// A machine, pod or container, with the labels of all its lines.
struct Subject {
    labels: Labels,
    at: Timestamp,
}

impl Subject {
    fn of(
        pod: Option<&Pod>,
        container: &str,
        details: Option<&UsageDetails>,
        at: Timestamp,
        image: &str,
        name: &str,
    ) -> Self {
        let id = details.map_or_else(String::new, |details| details.cgroup.clone());
        let (namespace, pod) = pod.map_or(("", ""), |pod| (pod.namespace(), pod.name()));
        let all = [
            ("container", container),
            ("id", id.as_str()),
            ("image", image),
            ("name", name),
            ("namespace", namespace),
            ("pod", pod),
        ];
        Self { labels: all.map(|(label, value)| (label, value.to_owned())).to_vec(), at }
    }

    fn with(&self, label: &'static str, value: &str) -> Labels {
        let mut labels = self.labels.clone();
        let place = labels.iter().position(|(other, _)| *other > label).unwrap_or(labels.len());
        labels.insert(place, (label, value.to_owned()));
        labels
    }
}

#[derive(Default)]
struct Families(BTreeMap<&'static str, Family>);

impl Families {
    fn add(
        &mut self,
        (name, kind, help): (&'static str, &'static str, &'static str),
        labels: Labels,
        value: f64,
        at: Option<Timestamp>,
    ) {
        self.0.entry(name).or_insert_with(|| Family::new(name, kind, help)).add(labels, value, at);
    }

    fn into_sorted(self) -> Vec<Family> {
        self.0.into_values().collect()
    }

    fn machine(&mut self, machine: &Machine) {
        let labels = || {
            [
                ("boot_id", &machine.boot_id),
                ("machine_id", &machine.machine_id),
                ("system_uuid", &machine.system_uuid),
            ]
            .map(|(label, value)| (label, value.clone()))
            .to_vec()
        };
        let cores = ("machine_cpu_cores", "gauge", "Number of logical CPU cores.");
        self.add(cores, labels(), machine.cpus as f64, None);
        let memory = ("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.");
        self.add(memory, labels(), machine.memory_bytes as f64, None);
    }

    /// Adds the lines of the whole machine, which is the cgroup `/`.
    fn node(&mut self, node: &NodeUsage, at: Timestamp) {
        let root = UsageDetails { cgroup: "/".to_owned(), ..UsageDetails::default() };
        let subject = Subject::of(None, "", Some(&root), at, "", "");
        let usage = Stats {
            cpu_usage_nanos: node.cpu_nanos,
            memory_usage_bytes: node.memory_usage,
            memory_working_set_bytes: node.memory_working_set,
            memory_rss_bytes: node.memory_rss,
            ..Stats::default()
        };
        self.basics(&subject, &usage);
    }

    fn pod(&mut self, usage: &PodUsage, details: &BTreeMap<String, UsageDetails>) {
        let pod = &*usage.pod;
        if let Some(sandbox) = &usage.sandbox {
            let details = details.get(&sandbox.sandbox_id);
            let subject = Subject::of(Some(pod), "", details, sandbox.at, "", "");
            self.usage(&subject, &sandbox.usage, details);
            let interfaces = details.into_iter().flat_map(|details| &details.interfaces);
            interfaces.for_each(|interface| self.interface(&subject, interface));
        }
        for container in &usage.containers {
            // Ended containers use nothing.
            let Some(started) = stats::started_at(pod, &container.container_id) else { continue };
            let details = details.get(&container.container_id);
            let image = image_of(pod, &container.name);
            let id = &container.container_id;
            let subject = Subject::of(Some(pod), &container.name, details, container.at, &image, id);
            self.usage(&subject, &container.usage, details);
            let start = ("container_start_time_seconds", "gauge", "When it started, in seconds since 1970.");
            self.add(start, subject.labels.clone(), started.as_second() as f64, Some(subject.at));
            let fs =
                ("container_fs_usage_bytes", "gauge", "Bytes that the container has written to its root.");
            if let Some(rootfs) = container.rootfs {
                self.add(fs, subject.labels.clone(), rootfs.bytes as f64, Some(subject.at));
            }
        }
    }

    fn basics(&mut self, subject: &Subject, usage: &Stats) {
        let at = Some(subject.at);
        let cpu = ("container_cpu_usage_seconds_total", "counter", "Cumulative CPU time in seconds.");
        self.add(cpu, subject.with("cpu", "total"), seconds(usage.cpu_usage_nanos), at);
        for (family, bytes) in [
            (
                ("container_memory_usage_bytes", "gauge", "Memory with all caches, in bytes."),
                usage.memory_usage_bytes,
            ),
            (
                (
                    "container_memory_working_set_bytes",
                    "gauge",
                    "Memory without the file cache that was not used of late, in bytes.",
                ),
                usage.memory_working_set_bytes,
            ),
            (("container_memory_rss", "gauge", "Anonymous memory in bytes."), usage.memory_rss_bytes),
        ] {
            self.add(family, subject.labels.clone(), bytes as f64, at);
        }
        let seen = ("container_last_seen", "gauge", "When it was last seen, in seconds since 1970.");
        self.add(seen, subject.labels.clone(), subject.at.as_second() as f64, at);
    }

    fn usage(&mut self, subject: &Subject, usage: &Stats, details: Option<&UsageDetails>) {
        self.basics(subject, usage);
        let at = Some(subject.at);
        let faults = ("container_memory_failures_total", "counter", "Page faults, by their kind.");
        for (kind, count) in [("pgfault", usage.page_faults), ("pgmajfault", usage.major_page_faults)] {
            let mut labels = subject.with("failure_type", kind);
            labels.push(("scope", "hierarchy".to_owned()));
            self.add(faults, labels, count as f64, at);
        }
        if usage.pids > 0 {
            let threads = ("container_threads", "gauge", "Number of threads.");
            self.add(threads, subject.labels.clone(), usage.pids as f64, at);
        }
        let Some(details) = details else { return };
        let figures = &details.figures;
        let time = |nanos: Option<u64>| nanos.map(seconds);
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let throttling = figures.throttling;
        for (family, value) in [
            (
                ("container_cpu_user_seconds_total", "counter", "Cumulative CPU time of programs."),
                time(figures.user_nanos),
            ),
            (
                ("container_cpu_system_seconds_total", "counter", "Cumulative CPU time of the kernel."),
                time(figures.system_nanos),
            ),
            (
                ("container_cpu_cfs_periods_total", "counter", "Periods of the CPU quota that have gone by."),
                throttling.map(|t| t.periods as f64),
            ),
            (
                (
                    "container_cpu_cfs_throttled_periods_total",
                    "counter",
                    "Periods in which the CPU quota was used up.",
                ),
                throttling.map(|t| t.throttled_periods as f64),
            ),
            (
                (
                    "container_cpu_cfs_throttled_seconds_total",
                    "counter",
                    "How long the CPU quota has held something back.",
                ),
                throttling.map(|t| seconds(t.throttled_nanos)),
            ),
            (("container_memory_cache", "gauge", "File cache in bytes."), bytes(figures.cache_bytes)),
            (
                ("container_memory_mapped_file", "gauge", "Mapped files in bytes."),
                bytes(figures.mapped_file_bytes),
            ),
            (("container_memory_swap", "gauge", "Swapped memory in bytes."), bytes(figures.swap_bytes)),
        ] {
            if let Some(value) = value {
                self.add(family, subject.labels.clone(), value, at);
            }
        }
        for device in &figures.io {
            for (family, count) in [
                (
                    ("container_fs_reads_bytes_total", "counter", "Bytes read from block devices."),
                    device.read_bytes,
                ),
                (("container_fs_reads_total", "counter", "Reads of block devices."), device.reads),
                (
                    ("container_fs_writes_bytes_total", "counter", "Bytes written to block devices."),
                    device.written_bytes,
                ),
                (("container_fs_writes_total", "counter", "Writes to block devices."), device.writes),
            ] {
                self.add(family, subject.with("device", &device.device), count as f64, at);
            }
        }
    }

    fn interface(&mut self, subject: &Subject, interface: &InterfaceStats) {
        let (received, transmitted) = (&interface.received, &interface.transmitted);
        for (name, help, count) in [
            ("container_network_receive_bytes_total", "Bytes received.", received.bytes),
            ("container_network_receive_errors_total", "Errors while receiving.", received.errors),
            (
                "container_network_receive_packets_dropped_total",
                "Packets dropped while receiving.",
                received.dropped,
            ),
            ("container_network_receive_packets_total", "Packets received.", received.packets),
            ("container_network_transmit_bytes_total", "Bytes transmitted.", transmitted.bytes),
            ("container_network_transmit_errors_total", "Errors while transmitting.", transmitted.errors),
            (
                "container_network_transmit_packets_dropped_total",
                "Packets dropped while transmitting.",
                transmitted.dropped,
            ),
            ("container_network_transmit_packets_total", "Packets transmitted.", transmitted.packets),
        ] {
            let labels = subject.with("interface", &interface.name);
            self.add((name, "counter", help), labels, count as f64, Some(subject.at));
        }
    }
}

/// Returns the container's image as the pod's status names it.
fn image_of(pod: &Pod, container: &str) -> String {
    let status = pod.status.as_ref();
    let lists =
        status.map(|s| [&s.container_statuses, &s.init_container_statuses, &s.ephemeral_container_statuses]);
    let mut all = lists.into_iter().flatten().flatten().flatten();
    all.find(|status| status.name == container).map(|status| status.image.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{ContainerStats, Details, DiskUsage, SandboxStats};
    use knarr_runtime::containers::InterfaceCounts;
    use knarr_runtime::containers::cgroups::{DeviceIo, Throttling};
    use serde_json::json;
    use std::sync::Arc;

    fn pod() -> Pod {
        let status = |name: &str, id: &str, state| {
            json!({"name": name, "image": "web:1", "imageID": "i", "ready": true, "restartCount": 0,
                "containerID": format!("knarr://{id}"), "state": state})
        };
        let running = json!({"running": {"startedAt": "1970-01-01T00:00:05Z"}});
        let ended = json!({"terminated": {"exitCode": 0}});
        let pod = json!({"metadata": {"name": "web", "namespace": "shop"}, "status": {"containerStatuses": [
            status("c", "c1", running), status("done", "c0", ended)]}});
        Pod::decode(pod.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn lines_have_cadvisors_names_and_labels() {
        let at = Timestamp::from_second(10).unwrap();
        let usage = Stats { cpu_usage_nanos: 1_500_000_000, page_faults: 3, pids: 2, ..Stats::default() };
        let container = |name: &str, id: &str| ContainerStats {
            container_id: id.into(),
            sandbox_id: "s1".into(),
            name: name.into(),
            at,
            usage,
            rootfs: Some(DiskUsage { bytes: 7, inodes: 1 }),
        };
        let sandbox = SandboxStats { sandbox_id: "s1".into(), pod_uid: "u1".into(), at, usage };
        let counts = InterfaceCounts { bytes: 1, packets: 2, errors: 3, dropped: 4 };
        let interface = InterfaceStats { name: "eth0".into(), received: counts, transmitted: counts };
        let figures = Details {
            user_nanos: Some(1_000_000_000),
            throttling: Some(Throttling { periods: 4, throttled_periods: 1, throttled_nanos: 500_000_000 }),
            io: vec![DeviceIo { device: "/dev/vda".into(), read_bytes: 9, ..DeviceIo::default() }],
            ..Details::default()
        };
        let details = |id: &str, cgroup: &str, interfaces| {
            let figures = figures.clone();
            (id.to_owned(), UsageDetails { id: id.into(), cgroup: cgroup.into(), figures, interfaces })
        };
        let details = BTreeMap::from([
            details("s1", "/kubepods/podu1", vec![interface]),
            details("c1", "/kubepods/podu1/c1", Vec::new()),
        ]);
        let containers = vec![container("c", "c1"), container("done", "c0")];
        let pod = PodUsage { pod: Arc::new(pod()), sandbox: Some(sandbox), containers };
        let mut families = Families::default();
        families.pod(&pod, &details);
        let text = render(&families.into_sorted());
        let own = r#"id="/kubepods/podu1/c1",image="web:1""#;
        let rest = r#"name="c1",namespace="shop",pod="web""#;
        for line in [
            format!("container_cpu_usage_seconds_total{{container=\"c\",cpu=\"total\",{own},{rest}}} 1.5 10000"),
            format!("container_cpu_cfs_throttled_seconds_total{{container=\"c\",{own},{rest}}} 0.5 10000"),
            format!("container_cpu_user_seconds_total{{container=\"c\",{own},{rest}}} 1 10000"),
            format!("container_fs_reads_bytes_total{{container=\"c\",device=\"/dev/vda\",{own},{rest}}} 9 10000"),
            format!("container_fs_usage_bytes{{container=\"c\",{own},{rest}}} 7 10000"),
            format!("container_start_time_seconds{{container=\"c\",{own},{rest}}} 5 10000"),
            format!(
                "container_memory_failures_total{{container=\"c\",failure_type=\"pgfault\",{own},{rest},scope=\"hierarchy\"}} 3 10000"
            ),
            "container_network_receive_packets_dropped_total{container=\"\",id=\"/kubepods/podu1\",image=\"\",\
             interface=\"eth0\",name=\"\",namespace=\"shop\",pod=\"web\"} 4 10000"
                .to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("container=\"done\""), "it has ended");
        assert!(!text.contains("container_memory_swap"), "the value is not known");
        // Each family occurs once, with its type.
        let types = text.lines().filter(|l| l.starts_with("# TYPE ")).count();
        let mut names: Vec<&str> =
            text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split('{').next()).collect();
        names.dedup();
        assert_eq!(names.len(), types);
    }
}
