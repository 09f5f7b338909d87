//! Tests of the pure part of the cluster DNS: names and their answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::{Answer, Lookup, Records, lookup};

fn service(name: &str, spec: Value) -> Arc<Service> {
    let object = json!({"metadata": {"name": name, "namespace": "prod"}, "spec": spec});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn slice(name: &str, endpoints: Value) -> Arc<EndpointSlice> {
    let object = json!({
        "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"namespace": "prod", "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn objects() -> (Vec<Arc<Service>>, Vec<Arc<EndpointSlice>>) {
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    let services = vec![
        service("web", json!({"clusterIP": "10.43.0.1", "ports": ports})),
        service("db", json!({"clusterIP": "None", "ports": ports})),
        service("all", json!({"clusterIP": "None", "ports": ports, "publishNotReadyAddresses": true})),
        service("empty", json!({"clusterIP": "None", "ports": ports})),
        service("far", json!({"type": "ExternalName", "externalName": "www.example.com"})),
    ];
    let endpoints = json!([
        {"addresses": ["10.42.0.2"], "hostname": "db-0", "conditions": {"ready": true}},
        {"addresses": ["10.42.0.3"], "conditions": {"ready": true}},
        {"addresses": ["10.42.0.4"], "hostname": "db-2", "conditions": {"ready": false}},
    ]);
    let web = json!([{"addresses": ["10.42.0.9"]}]);
    (services, vec![slice("db", endpoints.clone()), slice("all", endpoints), slice("web", web)])
}

fn records() -> Records {
    let (services, slices) = objects();
    let mut records = Records::new("cluster.local", vec!["10.43.0.10".parse().unwrap()]).unwrap();
    assert!(records.update(&services, &slices));
    records
}

fn ask(records: &Records, name: &str, record_type: RecordType) -> Answer {
    match lookup(records, &Name::from_ascii(name).unwrap(), record_type) {
        Lookup::Answer(answer) => answer,
        Lookup::Elsewhere => panic!("{name} is not the cluster's"),
    }
}

fn data(records: &[Record]) -> BTreeSet<String> {
    records.iter().map(|record| record.data.to_string()).collect()
}

#[test]
fn names_answer_as_the_specification_says() {
    use RecordType::{A, AAAA, CNAME, NS, PTR, SRV, TXT};
    let records = records();
    for (name, record_type, expected) in [
        ("web.prod.svc.cluster.local.", A, &["10.43.0.1"][..]),
        ("10-42-0-9.web.prod.svc.cluster.local.", A, &["10.42.0.9"]),
        ("db.prod.svc.cluster.local.", A, &["10.42.0.2", "10.42.0.3"]),
        ("all.prod.svc.cluster.local.", A, &["10.42.0.2", "10.42.0.3", "10.42.0.4"]),
        ("db-0.db.prod.svc.cluster.local.", A, &["10.42.0.2"]),
        ("10-42-0-3.db.prod.svc.cluster.local.", A, &["10.42.0.3"]),
        ("_http._tcp.web.prod.svc.cluster.local.", SRV, &["0 100 80 web.prod.svc.cluster.local."]),
        (
            "web.prod.svc.cluster.local.",
            SRV,
            &["0 50 80 web.prod.svc.cluster.local.", "0 50 53 web.prod.svc.cluster.local."],
        ),
        (
            "_http._tcp.db.prod.svc.cluster.local.",
            SRV,
            &["0 50 8080 db-0.db.prod.svc.cluster.local.", "0 50 8080 10-42-0-3.db.prod.svc.cluster.local."],
        ),
        ("far.prod.svc.cluster.local.", A, &["www.example.com."]),
        ("far.prod.svc.cluster.local.", CNAME, &["www.example.com."]),
        ("1-2-3-4.prod.pod.cluster.local.", A, &["1.2.3.4"]),
        ("fd00--1.prod.pod.cluster.local.", AAAA, &["fd00::1"]),
        ("1.0.43.10.in-addr.arpa.", PTR, &["web.prod.svc.cluster.local."]),
        (
            "2.0.42.10.in-addr.arpa.",
            PTR,
            &["db-0.db.prod.svc.cluster.local.", "db-0.all.prod.svc.cluster.local."],
        ),
        ("dns-version.cluster.local.", TXT, &["1.1.0"]),
        ("cluster.local.", NS, &["ns.dns.cluster.local."]),
        ("ns.dns.cluster.local.", A, &["10.43.0.10"]),
    ] {
        let answer = ask(&records, name, record_type);
        assert_eq!(answer.code, ResponseCode::NoError, "{name} {record_type}");
        let expected: BTreeSet<_> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(data(&answer.answers), expected, "{name} {record_type}");
        assert!(answer.authorities.is_empty());
        assert!(answer.answers.iter().all(|r| r.ttl == 5), "{name}");
    }
}

#[test]
fn what_exists_without_the_type_differs_from_what_does_not_exist() {
    use RecordType::{A, AAAA, SRV, TXT};
    let records = records();
    for (name, record_type, code) in [
        ("web.prod.svc.cluster.local.", AAAA, ResponseCode::NoError),
        ("web.prod.svc.cluster.local.", TXT, ResponseCode::NoError),
        ("empty.prod.svc.cluster.local.", A, ResponseCode::NoError),
        ("prod.svc.cluster.local.", A, ResponseCode::NoError),
        ("svc.cluster.local.", A, ResponseCode::NoError),
        ("cluster.local.", A, ResponseCode::NoError),
        ("_tcp.web.prod.svc.cluster.local.", A, ResponseCode::NoError),
        ("_http._tcp.web.prod.svc.cluster.local.", A, ResponseCode::NoError),
        ("1.0.43.10.in-addr.arpa.", A, ResponseCode::NoError),
        ("other.svc.cluster.local.", A, ResponseCode::NXDomain),
        ("nobody.prod.svc.cluster.local.", A, ResponseCode::NXDomain),
        ("db-2.db.prod.svc.cluster.local.", A, ResponseCode::NXDomain),
        ("_https._tcp.web.prod.svc.cluster.local.", SRV, ResponseCode::NXDomain),
        ("_http._udp.web.prod.svc.cluster.local.", SRV, ResponseCode::NXDomain),
        ("www.example.com.prod.svc.cluster.local.", A, ResponseCode::NXDomain),
        ("x.far.prod.svc.cluster.local.", A, ResponseCode::NXDomain),
        ("x.prod.pod.cluster.local.", A, ResponseCode::NXDomain),
        ("example.cluster.local.", A, ResponseCode::NXDomain),
    ] {
        let answer = ask(&records, name, record_type);
        assert_eq!(answer.code, code, "{name} {record_type}");
        assert!(answer.answers.is_empty(), "{name} {record_type}");
        assert_eq!(answer.authorities.len(), 1, "{name} {record_type}");
        assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
    }
}

#[test]
fn srv_answers_bring_the_addresses() {
    let answer = ask(&records(), "_http._tcp.db.prod.svc.cluster.local.", RecordType::SRV);
    assert_eq!(data(&answer.additionals), BTreeSet::from(["10.42.0.2".to_owned(), "10.42.0.3".to_owned()]));
}

#[test]
fn an_alias_is_to_be_followed() {
    let records = records();
    let target = Some(Name::from_ascii("www.example.com.").unwrap());
    assert_eq!(ask(&records, "far.prod.svc.cluster.local.", RecordType::A).chase, target);
    assert_eq!(ask(&records, "far.prod.svc.cluster.local.", RecordType::CNAME).chase, None);
}

#[test]
fn other_names_are_asked_elsewhere() {
    let records = records();
    for name in ["example.com.", "local.", "1.1.1.1.in-addr.arpa.", "43.10.in-addr.arpa.", "mycluster.local."]
    {
        let name = Name::from_ascii(name).unwrap();
        assert_eq!(lookup(&records, &name, RecordType::A), Lookup::Elsewhere, "{name}");
    }
}

#[test]
fn the_case_of_the_question_is_kept() {
    let answer = ask(&records(), "WeB.Prod.SVC.cluster.LOCAL.", RecordType::A);
    assert_eq!(answer.answers[0].name.to_string(), "WeB.Prod.SVC.cluster.LOCAL.");
}

#[test]
fn updates_leave_nothing_behind() {
    let mut records = records();
    let (services, slices) = objects();
    let serial = records.serial();
    assert!(!records.update(&services, &slices), "other objects with the same content");
    assert_eq!(records.serial(), serial);
    assert!(records.update(&services[..1], &slices));
    let gone = ask(&records, "db.prod.svc.cluster.local.", RecordType::A);
    assert_eq!(gone.code, ResponseCode::NXDomain);
    let ptr = Name::from_ascii("2.0.42.10.in-addr.arpa.").unwrap();
    assert_eq!(lookup(&records, &ptr, RecordType::PTR), Lookup::Elsewhere);
    assert!(records.update(&[], &[]));
    assert_eq!(ask(&records, "prod.svc.cluster.local.", RecordType::A).code, ResponseCode::NXDomain);
}
