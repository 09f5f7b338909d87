//! Metrics of the name server's questions and answers, with CoreDNS' names. Counting takes no lock.
//!
//! Source: `github.com/coredns/coredns/plugin/metrics`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use knarr_apimachinery::metric_families;
use knarr_apimachinery::metrics::{Kind, Registry};

/// Starts at a quarter of a millisecond; each bound is twice the previous one.
const SECONDS: &[f64; 16] = &[
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048,
    4.096, 8.192,
];
/// The record types with a label of their own.
const TYPES: [(RecordType, &str); 18] = [
    (RecordType::A, "A"),
    (RecordType::AAAA, "AAAA"),
    (RecordType::SRV, "SRV"),
    (RecordType::PTR, "PTR"),
    (RecordType::ANY, "ANY"),
    (RecordType::AXFR, "AXFR"),
    (RecordType::CNAME, "CNAME"),
    (RecordType::DNSKEY, "DNSKEY"),
    (RecordType::DS, "DS"),
    (RecordType::HTTPS, "HTTPS"),
    (RecordType::IXFR, "IXFR"),
    (RecordType::MX, "MX"),
    (RecordType::NS, "NS"),
    (RecordType::NSEC, "NSEC"),
    (RecordType::NSEC3, "NSEC3"),
    (RecordType::RRSIG, "RRSIG"),
    (RecordType::SOA, "SOA"),
    (RecordType::TXT, "TXT"),
];
/// Response codes by number; all others are counted as one.
const CODES: [&str; 24] = [
    "NOERROR",
    "FORMERR",
    "SERVFAIL",
    "NXDOMAIN",
    "NOTIMP",
    "REFUSED",
    "YXDOMAIN",
    "YXRRSET",
    "NXRRSET",
    "NOTAUTH",
    "NOTZONE",
    "RCODE11",
    "RCODE12",
    "RCODE13",
    "RCODE14",
    "RCODE15",
    "BADVERS",
    "BADKEY",
    "BADTIME",
    "BADMODE",
    "BADNAME",
    "BADALG",
    "BADTRUNC",
    "BADCOOKIE",
];
const OTHER: &str = "other";
/// The zone label: the server block of the usual Corefile answers for all names.
const ZONE: &str = ".";

metric_families! {
    Requests, Kind::Counter, "coredns_dns_requests_total", ["server", "zone", "view", "proto", "family", "type"],
        "Questions, by protocol, family of addresses (1 is IPv4) and type.";
    Duration, Kind::Histogram(SECONDS), "coredns_dns_request_duration_seconds", ["server", "zone", "view"],
        "How long questions take to be answered.";
    Responses, Kind::Counter, "coredns_dns_responses_total", ["server", "zone", "view", "rcode", "plugin"],
        "Answers, by their code and by who gave them: kubernetes, forward, cache, or nobody where the question is refused.";
}

/// The transport of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    Udp,
    Tcp,
}

const PROTOS: [(Proto, &str); 2] = [(Proto::Udp, "udp"), (Proto::Tcp, "tcp")];

/// Which part of the server gave an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The server itself: the question cannot be answered.
    Server,
    Cluster,
    /// Other resolvers.
    Elsewhere,
    /// The cache of other resolvers' answers.
    Memory,
}

/// The names of CoreDNS' plugins that correspond.
const ANSWERERS: [(By, &str); 4] =
    [(By::Server, ""), (By::Cluster, "kubernetes"), (By::Elsewhere, "forward"), (By::Memory, "cache")];

/// The counts of one address.
pub struct Counts {
    server: String,
    family: &'static str,
    requests: [[AtomicU64; TYPES.len() + 1]; PROTOS.len()],
    responses: [[AtomicU64; CODES.len() + 1]; ANSWERERS.len()],
    buckets: [AtomicU64; SECONDS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Counts {
    pub fn of(address: SocketAddr) -> Self {
        Self {
            server: format!("dns://{address}"),
            family: if address.is_ipv4() { "1" } else { "2" },
            requests: Default::default(),
            responses: Default::default(),
            buckets: Default::default(),
            count: AtomicU64::default(),
            nanos: AtomicU64::default(),
        }
    }

    /// Counts a question.
    pub fn asked(&self, question: &Message, proto: Proto) {
        let asked = question.queries.first().map(|query| query.query_type());
        let at = TYPES.iter().position(|(known, _)| Some(*known) == asked).unwrap_or(TYPES.len());
        add(&self.requests[proto as usize][at], 1);
    }

    /// Counts an answer and the time that it took.
    pub fn answered(&self, code: ResponseCode, by: By, took: Duration) {
        let code = usize::from(u16::from(code)).min(CODES.len());
        add(&self.responses[by as usize][code], 1);
        let seconds = took.as_secs_f64();
        if let Some(at) = SECONDS.iter().position(|bound| seconds <= *bound) {
            add(&self.buckets[at], 1);
        }
        add(&self.count, 1);
        add(&self.nanos, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    fn show(&self, registry: &Registry) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let show = |metric: Metric, labels: &[&str], counter: &AtomicU64| {
            let n = read(counter);
            if n > 0 {
                registry.add(metric as usize, &[&[&*self.server, ZONE, ""], labels].concat(), n as f64);
            }
        };
        let types = || TYPES.iter().map(|(_, name)| *name).chain([OTHER]);
        for ((_, proto), counters) in PROTOS.iter().zip(&self.requests) {
            types()
                .zip(counters)
                .for_each(|(name, n)| show(Metric::Requests, &[proto, self.family, name], n));
        }
        for ((_, plugin), counters) in ANSWERERS.iter().zip(&self.responses) {
            let codes = CODES.iter().copied().chain([OTHER]);
            codes.zip(counters).for_each(|(code, n)| show(Metric::Responses, &[code, plugin], n));
        }
        let buckets = self.buckets.each_ref().map(read);
        let (count, seconds) = (read(&self.count), read(&self.nanos) as f64 / 1e9);
        registry.set_histogram(
            Metric::Duration as usize,
            &[&self.server, ZONE, ""],
            &buckets,
            count,
            seconds,
        );
    }
}

/// Renders the counts of all addresses as text.
pub fn render<'a>(all: impl IntoIterator<Item = &'a Counts>) -> String {
    let registry = Registry::new(FAMILIES);
    all.into_iter().for_each(|counts| counts.show(&registry));
    registry.render()
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{OpCode, Query};
    use hickory_proto::rr::Name;

    use super::*;

    #[test]
    fn places_are_those_of_the_tables() {
        assert!(PROTOS.iter().enumerate().all(|(at, (proto, _))| *proto as usize == at));
        assert!(ANSWERERS.iter().enumerate().all(|(at, (by, _))| *by as usize == at));
        for (code, name) in [
            (ResponseCode::NoError, "NOERROR"),
            (ResponseCode::NXDomain, "NXDOMAIN"),
            (ResponseCode::NotZone, "NOTZONE"),
            (ResponseCode::BADVERS, "BADVERS"),
            (ResponseCode::BADCOOKIE, "BADCOOKIE"),
        ] {
            assert_eq!(CODES[usize::from(u16::from(code))], name);
        }
    }

    #[test]
    fn questions_and_answers_are_counted() {
        let counts = Counts::of("10.43.0.10:53".parse().unwrap());
        let question = |record_type| {
            let mut message = Message::query();
            message.queries.push(Query::query(Name::root(), record_type));
            message
        };
        counts.asked(&question(RecordType::A), Proto::Udp);
        counts.asked(&question(RecordType::A), Proto::Udp);
        counts.asked(&question(RecordType::CAA), Proto::Tcp);
        counts.asked(&Message::response(1, OpCode::Query), Proto::Tcp);
        counts.answered(ResponseCode::NXDomain, By::Cluster, Duration::from_micros(300));
        counts.answered(ResponseCode::Unknown(4000), By::Elsewhere, Duration::from_secs(9));
        let text = render([&counts]);
        let labels = "server=\"dns://10.43.0.10:53\",zone=\".\",view=\"\"";
        for line in [
            format!("coredns_dns_requests_total{{{labels},proto=\"udp\",family=\"1\",type=\"A\"}} 2\n"),
            format!("coredns_dns_requests_total{{{labels},proto=\"tcp\",family=\"1\",type=\"other\"}} 2\n"),
            format!("coredns_dns_responses_total{{{labels},rcode=\"NXDOMAIN\",plugin=\"kubernetes\"}} 1\n"),
            format!("coredns_dns_responses_total{{{labels},rcode=\"other\",plugin=\"forward\"}} 1\n"),
            format!("coredns_dns_request_duration_seconds_bucket{{{labels},le=\"0.00025\"}} 0\n"),
            format!("coredns_dns_request_duration_seconds_bucket{{{labels},le=\"0.0005\"}} 1\n"),
            format!("coredns_dns_request_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 2\n"),
            format!("coredns_dns_request_duration_seconds_sum{{{labels}}} 9.0003\n"),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
        assert!(!text.contains("type=\"AAAA\"") && !text.contains("SERVFAIL"), "{text}");
    }
}
