//! Answers one question: a pure function of the records.

use std::net::{IpAddr, Ipv4Addr};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::entry::{EndpointEntry, Port, ServiceEntry};
use super::records::Records;

/// For how many seconds a client may cache an answer, positive or negative.
pub const TTL: u32 = 5;
const SPECIFICATION: &str = "1.1.0";
const REFRESH_SECONDS: i32 = 7200;
const RETRY_SECONDS: i32 = 1800;
const EXPIRE_SECONDS: i32 = 86400;

/// An answer for which the zone is authoritative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: ResponseCode,
    pub answers: Vec<Record>,
    /// The zone's SOA, if there are no answers.
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
    /// The canonical name whose records should be added after those in `answers`.
    pub chase: Option<Name>,
}

/// The result of looking up a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    Answer(Answer),
    /// The name is not one of the cluster's.
    Elsewhere,
}

/// What a name refers to, before the type of the question is considered.
enum Found {
    /// The name exists, or a name below it does, but has no records of the supported types.
    Nothing,
    Addresses(Vec<IpAddr>),
    Service {
        addresses: Vec<IpAddr>,
        targets: Vec<Target>,
    },
    Alias(Name),
    Text(String),
    Apex,
    Srv(Vec<Target>),
}

/// The target of an SRV record.
struct Target {
    port: u16,
    name: Name,
    ips: Vec<IpAddr>,
}

/// Looks up a name. The records of the answer have the name as in the question, in the same case.
pub fn lookup(records: &Records, name: &Name, record_type: RecordType) -> Lookup {
    let lower = name.to_lowercase();
    if !records.zone().zone_of(&lower) {
        return reverse(records, name, &lower, record_type);
    }
    let below = usize::from(lower.num_labels().saturating_sub(records.zone().num_labels()));
    let labels: Option<Vec<&str>> =
        lower.iter().take(below).map(|label| std::str::from_utf8(label).ok()).collect();
    let found = labels.and_then(|labels| find(records, &labels));
    Lookup::Answer(match found {
        Some(found) => answer(records, name, record_type, found),
        None => negative(records, ResponseCode::NXDomain),
    })
}

/// Finds what the labels below the zone refer to; the first label is the leftmost.
fn find(records: &Records, labels: &[&str]) -> Option<Found> {
    match labels {
        [] => Some(Found::Apex),
        ["dns-version"] => Some(Found::Text(SPECIFICATION.to_owned())),
        ["dns" | "svc" | "pod"] => Some(Found::Nothing),
        ["ns", "dns"] => Some(Found::Addresses(records.servers().to_vec())),
        [_, "pod"] => Some(Found::Nothing),
        [ip, _, "pod"] => pod_ip(ip).map(|ip| Found::Addresses(vec![ip])),
        [namespace, "svc"] => records.has_namespace(namespace).then_some(Found::Nothing),
        [rest @ .., service, namespace, "svc"] => {
            let entry = records.service(namespace, service)?;
            let base = Name::from_labels([*service, *namespace, "svc"])
                .and_then(|name| name.append_domain(records.zone()))
                .ok()?;
            below_service(rest, entry, &base)
        }
        _ => None,
    }
}

fn below_service(labels: &[&str], entry: &ServiceEntry, base: &Name) -> Option<Found> {
    if let Some(other) = &entry.external_name {
        let mut other = Name::from_ascii(other).ok()?;
        other.set_fqdn(true);
        return labels.is_empty().then_some(Found::Alias(other));
    }
    match labels {
        [] => Some(Found::Service { addresses: addresses(entry), targets: targets(entry, base, |_| true) }),
        [protocol] if protocol.starts_with('_') => {
            let has = entry.all_ports().any(|p| p.protocol.as_str() == &protocol[1..]);
            has.then_some(Found::Nothing)
        }
        [hostname] => {
            let ips: Vec<_> =
                entry.endpoints.iter().filter(|e| e.hostname == *hostname).map(|e| e.ip).collect();
            (!ips.is_empty()).then_some(Found::Addresses(ips))
        }
        [name, protocol] => {
            let (name, protocol) = (name.strip_prefix('_')?, protocol.strip_prefix('_')?);
            let targets = targets(entry, base, |p| p.name == name && p.protocol.as_str() == protocol);
            (!targets.is_empty()).then_some(Found::Srv(targets))
        }
        _ => None,
    }
}

impl ServiceEntry {
    fn all_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().chain(self.endpoints.iter().flat_map(|e| &e.ports))
    }
}

fn addresses(entry: &ServiceEntry) -> Vec<IpAddr> {
    if !entry.is_headless() {
        return entry.cluster_ips.clone();
    }
    let mut ips: Vec<_> = entry.endpoints.iter().map(|e| e.ip).collect();
    ips.sort();
    ips.dedup();
    ips
}

/// Returns the SRV targets: of a service with a cluster IP its own ports, of a headless one those of each
/// endpoint.
fn targets(entry: &ServiceEntry, base: &Name, wanted: impl Fn(&Port) -> bool) -> Vec<Target> {
    if !entry.is_headless() {
        let target = |p: &Port| Target { port: p.number, name: base.clone(), ips: entry.cluster_ips.clone() };
        return entry.ports.iter().filter(|p| wanted(p)).map(target).collect();
    }
    let of_endpoint = |endpoint: &EndpointEntry| -> Vec<Target> {
        let Ok(name) = base.prepend_label(endpoint.hostname.as_str()) else { return Vec::new() };
        let target = |p: &Port| Target { port: p.number, name: name.clone(), ips: vec![endpoint.ip] };
        endpoint.ports.iter().filter(|p| wanted(p)).map(target).collect()
    };
    entry.endpoints.iter().flat_map(of_endpoint).collect()
}

fn answer(records: &Records, name: &Name, record_type: RecordType, found: Found) -> Answer {
    let record = |data: RData| Record::from_rdata(name.clone(), TTL, data);
    let mut additionals = Vec::new();
    let mut chase = None;
    let answers: Vec<Record> = match (found, record_type) {
        (Found::Addresses(ips), _) => address_data(&ips, record_type).map(record).collect(),
        (Found::Service { targets, .. } | Found::Srv(targets), RecordType::SRV) => {
            srv_records(name, targets, &mut additionals)
        }
        (Found::Service { addresses, .. }, _) => address_data(&addresses, record_type).map(record).collect(),
        (Found::Alias(other), _) => {
            if record_type != RecordType::CNAME {
                chase = Some(other.clone());
            }
            vec![record(RData::CNAME(CNAME(other)))]
        }
        (Found::Text(text), RecordType::TXT) => vec![record(RData::TXT(TXT::new(vec![text])))],
        (Found::Apex, RecordType::SOA) => vec![soa(records)],
        (Found::Apex, RecordType::NS) => vec![record(RData::NS(NS(server_name(records))))],
        (Found::Nothing | Found::Text(_) | Found::Apex | Found::Srv(_), _) => Vec::new(),
    };
    if answers.is_empty() {
        return negative(records, ResponseCode::NoError);
    }
    Answer { code: ResponseCode::NoError, answers, authorities: Vec::new(), additionals, chase }
}

fn address_data(ips: &[IpAddr], record_type: RecordType) -> impl Iterator<Item = RData> {
    ips.iter().filter_map(move |ip| match (ip, record_type) {
        (IpAddr::V4(ip), RecordType::A) => Some(RData::A(A(*ip))),
        (IpAddr::V6(ip), RecordType::AAAA) => Some(RData::AAAA(AAAA(*ip))),
        _ => None,
    })
}

fn srv_records(name: &Name, targets: Vec<Target>, additionals: &mut Vec<Record>) -> Vec<Record> {
    let weight = (100 / targets.len().max(1)).max(1) as u16;
    for target in &targets {
        for record_type in [RecordType::A, RecordType::AAAA] {
            for data in address_data(&target.ips, record_type) {
                let record = Record::from_rdata(target.name.clone(), TTL, data);
                if !additionals.contains(&record) {
                    additionals.push(record);
                }
            }
        }
    }
    targets
        .into_iter()
        .map(|t| Record::from_rdata(name.clone(), TTL, RData::SRV(SRV::new(0, weight, t.port, t.name))))
        .collect()
}

fn negative(records: &Records, code: ResponseCode) -> Answer {
    Answer {
        code,
        answers: Vec::new(),
        authorities: vec![soa(records)],
        additionals: Vec::new(),
        chase: None,
    }
}

fn server_name(records: &Records) -> Name {
    below_zone(records, &["ns", "dns"])
}

fn soa(records: &Records) -> Record {
    let data = SOA::new(
        server_name(records),
        below_zone(records, &["hostmaster"]),
        records.serial(),
        REFRESH_SECONDS,
        RETRY_SECONDS,
        EXPIRE_SECONDS,
        TTL,
    );
    Record::from_rdata(records.zone().clone(), TTL, RData::SOA(data))
}

/// Returns a name in the zone; it is too long only with an extremely long zone name.
fn below_zone(records: &Records, labels: &[&str]) -> Name {
    Name::from_labels(labels.iter().copied())
        .and_then(|name| name.append_domain(records.zone()))
        .unwrap_or_else(|_| records.zone().clone())
}

/// Parses `10-42-0-5` as in `10-42-0-5.default.pod.cluster.local`.
fn pod_ip(label: &str) -> Option<IpAddr> {
    if let Ok(ip) = label.replace('-', ".").parse::<Ipv4Addr>() {
        return Some(IpAddr::V4(ip));
    }
    label.replace('-', ":").parse().ok().map(IpAddr::V6)
}

/// Looks up the names of the cluster's addresses; other addresses are not the zone's to answer.
fn reverse(records: &Records, name: &Name, lower: &Name, record_type: RecordType) -> Lookup {
    let Some(ip) = whole_address(lower) else { return Lookup::Elsewhere };
    let names: Vec<&str> = records.names_of(ip).collect();
    if names.is_empty() {
        return Lookup::Elsewhere;
    }
    if record_type != RecordType::PTR {
        return Lookup::Answer(negative(records, ResponseCode::NoError));
    }
    let pointers = names.into_iter().filter_map(|relative| {
        let target = Name::from_labels(relative.split('.')).ok()?.append_domain(records.zone()).ok()?;
        Some(Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(target))))
    });
    Lookup::Answer(Answer {
        code: ResponseCode::NoError,
        answers: pointers.collect(),
        authorities: Vec::new(),
        additionals: Vec::new(),
        chase: None,
    })
}

/// Returns the address of a name below in-addr.arpa or ip6.arpa, if the name is complete.
fn whole_address(name: &Name) -> Option<IpAddr> {
    let labels: Vec<&str> = name.iter().map(|l| std::str::from_utf8(l).ok()).collect::<Option<_>>()?;
    match labels.as_slice() {
        [digits @ .., "in-addr", "arpa"] if digits.len() == 4 => {
            let text: Vec<&str> = digits.iter().rev().copied().collect();
            text.join(".").parse().ok().map(IpAddr::V4)
        }
        [digits @ .., "ip6", "arpa"] if digits.len() == 32 && digits.iter().all(|d| d.len() == 1) => {
            let digits: Vec<&str> = digits.iter().rev().copied().collect();
            let text: Vec<String> = digits.chunks(4).map(|group| group.concat()).collect();
            text.join(":").parse().ok().map(IpAddr::V6)
        }
        _ => None,
    }
}
