//! Tests of the cluster DNS over UDP and TCP.

mod lab;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1::Service;
use knarr_network::dns::{self, DnsConfig, DnsServer, Forwarder};
use knarr_network::source::{ServiceSource, Snapshot};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A server on its own thread, in the namespace of the thread that starts it.
struct Running {
    address: SocketAddr,
    server: Arc<DnsServer>,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(listen: SocketAddr, upstreams: Vec<SocketAddr>, snapshot: Snapshot) -> Self {
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let (send, receive) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let config = DnsConfig::new(vec![listen]);
                let server = DnsServer::with_forwarder(&config, Forwarder::to(upstreams)).unwrap();
                let server = Arc::new(server);
                let source = ServiceSource::new(Arc::default(), move || snapshot.clone());
                send.send(Arc::clone(&server)).unwrap();
                dns::run(&server, source, ended).await;
            });
        });
        let server = receive.recv().unwrap();
        Self { address: server.local_addrs()[0], server, stop, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn services() -> Snapshot {
    let service = |name: &str, spec: serde_json::Value| -> Arc<Service> {
        let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        Arc::new(serde_json::from_value(object).unwrap())
    };
    let endpoints: Vec<_> = (0..100).map(|n| json!({"addresses": [format!("10.42.0.{n}")]})).collect();
    let slice = json!({
        "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"namespace": "default", "labels": {"kubernetes.io/service-name": "many"}},
    });
    Snapshot {
        services: vec![
            service("web", json!({"clusterIP": "10.43.0.1"})),
            service("many", json!({"clusterIP": "None"})),
            service("far", json!({"type": "ExternalName", "externalName": "known.example"})),
            service("near", json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"})),
            service("lost", json!({"type": "ExternalName", "externalName": "silent.example"})),
        ],
        slices: vec![Arc::new(serde_json::from_value(slice).unwrap())],
    }
}

fn question(name: &str, record_type: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.queries.push(Query::query(Name::from_ascii(name).unwrap(), record_type));
    message
}

fn ask_udp(server: SocketAddr, message: &Message) -> std::io::Result<Message> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.send_to(&message.to_vec().unwrap(), server)?;
    let mut buffer = [0; 65_536];
    let length = socket.recv(&mut buffer)?;
    let limit = message.edns.as_ref().map_or(512, |e| e.max_payload());
    assert!(length <= usize::from(limit), "{length} bytes");
    Ok(Message::from_vec(&buffer[..length]).unwrap())
}

fn ask_tcp(stream: &mut TcpStream, message: &Message) -> Message {
    let bytes = message.to_vec().unwrap();
    stream.write_all(&(bytes.len() as u16).to_be_bytes()).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut bytes).unwrap();
    Message::from_vec(&bytes).unwrap()
}

fn addresses(message: &Message) -> Vec<String> {
    message
        .answers
        .iter()
        .filter_map(|r| match &r.data {
            RData::A(a) => Some(a.to_string()),
            _ => None,
        })
        .collect()
}

/// Starts a resolver that knows `known.example`, does not answer `silent.example` and denies all other names;
/// it counts questions.
fn upstream() -> (SocketAddr, Arc<std::sync::atomic::AtomicU32>) {
    let socket = UdpSocket::bind(LOCAL).unwrap();
    let address = socket.local_addr().unwrap();
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counter = count.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let asked = Message::from_vec(&buffer[..length]).unwrap();
            let name = asked.queries[0].name().clone();
            let mut answer = Message::response(asked.metadata.id, OpCode::Query);
            answer.queries = asked.queries.clone();
            match name.to_string().as_str() {
                "silent.example." => continue,
                "known.example." => {
                    let data = RData::A(A::new(192, 0, 2, 7));
                    answer.answers.push(Record::from_rdata(name, 300, data));
                }
                _ => answer.metadata.response_code = ResponseCode::NXDomain,
            }
            // A forged answer arrives first.
            let mut forged = answer.clone();
            forged.metadata.id = forged.metadata.id.wrapping_add(1);
            let _ = socket.send_to(&forged.to_vec().unwrap(), client);
            let _ = socket.send_to(&answer.to_vec().unwrap(), client);
        }
    });
    (address, count)
}

#[test]
fn answers_over_udp_and_tcp() {
    let server = Running::start(LOCAL, vec![], services());
    let asked = question("web.default.svc.cluster.local.", RecordType::A);
    let answer = ask_udp(server.address, &asked).unwrap();
    assert_eq!(addresses(&answer), ["10.43.0.1"]);
    assert_eq!(answer.metadata.id, asked.metadata.id);
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
    let mut stream = TcpStream::connect(server.address).unwrap();
    for _ in 0..3 {
        assert_eq!(addresses(&ask_tcp(&mut stream, &asked)), ["10.43.0.1"]);
    }
}

#[test]
fn long_answers_are_cut_for_udp_and_whole_over_tcp() {
    let server = Running::start(LOCAL, vec![], services());
    let mut asked = question("many.default.svc.cluster.local.", RecordType::A);
    let plain = ask_udp(server.address, &asked).unwrap();
    assert!(plain.metadata.truncation);
    let fitted = plain.answers.len();
    assert!((20..100).contains(&fitted), "{fitted}");
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    asked.edns = Some(edns);
    let larger = ask_udp(server.address, &asked).unwrap();
    assert!(larger.metadata.truncation && larger.answers.len() > fitted);
    assert!(larger.edns.is_some());
    let mut stream = TcpStream::connect(server.address).unwrap();
    let whole = ask_tcp(&mut stream, &asked);
    assert!(!whole.metadata.truncation);
    assert_eq!(whole.answers.len(), 100);
}

#[test]
fn other_names_come_from_the_resolvers_and_are_kept() {
    let (resolver, count) = upstream();
    let server = Running::start(LOCAL, vec![resolver], services());
    let asked = question("known.example.", RecordType::A);
    for _ in 0..3 {
        let answer = ask_udp(server.address, &asked).unwrap();
        assert_eq!(addresses(&answer), ["192.0.2.7"]);
        assert_eq!(answer.metadata.id, asked.metadata.id);
        assert!(!answer.metadata.authoritative);
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
    let denied = ask_udp(server.address, &question("unknown.example.", RecordType::A)).unwrap();
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
}

#[test]
fn questions_are_counted_by_who_answers_them() {
    let (resolver, _) = upstream();
    let server = Running::start(LOCAL, vec![resolver], services());
    let names = [
        "web.default.svc.cluster.local.",
        "no.default.svc.cluster.local.",
        "known.example.",
        "known.example.",
    ];
    for name in names {
        ask_udp(server.address, &question(name, RecordType::A)).unwrap();
    }
    let mut none = question("web.default.svc.cluster.local.", RecordType::A);
    none.queries.clear();
    ask_tcp(&mut TcpStream::connect(server.address).unwrap(), &none);
    let text = server.server.metrics();
    let labels = format!("server=\"dns://{}\",zone=\".\",view=\"\"", server.address);
    for line in [
        format!("requests_total{{{labels},proto=\"udp\",family=\"1\",type=\"A\"}} 4\n"),
        format!("requests_total{{{labels},proto=\"tcp\",family=\"1\",type=\"other\"}} 1\n"),
        format!("responses_total{{{labels},rcode=\"NOERROR\",plugin=\"kubernetes\"}} 1\n"),
        format!("responses_total{{{labels},rcode=\"NXDOMAIN\",plugin=\"kubernetes\"}} 1\n"),
        format!("responses_total{{{labels},rcode=\"NOERROR\",plugin=\"forward\"}} 1\n"),
        format!("responses_total{{{labels},rcode=\"NOERROR\",plugin=\"cache\"}} 1\n"),
        format!("responses_total{{{labels},rcode=\"FORMERR\",plugin=\"\"}} 1\n"),
        format!("request_duration_seconds_count{{{labels}}} 5\n"),
    ] {
        assert!(text.contains(&format!("coredns_dns_{line}")), "{line}\n{text}");
    }
}

#[test]
fn aliases_bring_the_records_of_their_target() {
    let (resolver, _) = upstream();
    let server = Running::start(LOCAL, vec![resolver], services());
    for (name, expected) in [("far", "192.0.2.7"), ("near", "10.43.0.1")] {
        let asked = question(&format!("{name}.default.svc.cluster.local."), RecordType::A);
        let answer = ask_udp(server.address, &asked).unwrap();
        assert_eq!(answer.answers[0].record_type(), RecordType::CNAME);
        assert_eq!(addresses(&answer), [expected]);
    }
}

#[test]
fn silence_elsewhere_is_a_server_failure_and_blocks_nobody() {
    let (resolver, _) = upstream();
    let server = Running::start(LOCAL, vec![resolver], services());
    let address = server.address;
    let waiting = std::thread::spawn(move || ask_udp(address, &question("silent.example.", RecordType::A)));
    let start = std::time::Instant::now();
    let asked = question("web.default.svc.cluster.local.", RecordType::A);
    assert_eq!(addresses(&ask_udp(address, &asked).unwrap()), ["10.43.0.1"]);
    assert!(start.elapsed() < Duration::from_secs(1));
    let failed = waiting.join().unwrap().unwrap();
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    let alone = Running::start(LOCAL, vec![], services());
    let failed = ask_udp(alone.address, &question("known.example.", RecordType::A)).unwrap();
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
}

#[test]
fn odd_messages_get_an_error_or_nothing() {
    let server = Running::start(LOCAL, vec![], services());
    let name = "web.default.svc.cluster.local.";
    let mut update = question(name, RecordType::A);
    update.metadata.op_code = OpCode::Notify;
    let mut twice = question(name, RecordType::A);
    twice.queries.push(twice.queries[0].clone());
    let mut none = question(name, RecordType::A);
    none.queries.clear();
    let mut chaos = question(name, RecordType::A);
    chaos.queries[0].set_query_class(hickory_proto::rr::DNSClass::CH);
    for (asked, code) in [
        (update, ResponseCode::NotImp),
        (twice, ResponseCode::FormErr),
        (none, ResponseCode::FormErr),
        (chaos, ResponseCode::Refused),
    ] {
        assert_eq!(ask_udp(server.address, &asked).unwrap().metadata.response_code, code);
    }
    let socket = UdpSocket::bind(LOCAL).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut response = question(name, RecordType::A);
    response.metadata.message_type = MessageType::Response;
    for noise in [&b""[..], b"x", &[0xff; 40], &response.to_vec().unwrap()] {
        socket.send_to(noise, server.address).unwrap();
        assert!(socket.recv(&mut [0; 512]).is_err(), "{noise:?}");
    }
    assert_eq!(addresses(&ask_udp(server.address, &question(name, RecordType::A)).unwrap()), ["10.43.0.1"]);
}

#[test]
fn pods_reach_the_server_by_its_service_address() {
    lab::isolate();
    let folder = lab::Folder::new();
    let vip = Ipv4Addr::new(10, 43, 0, 10);
    // The server may start before the device with its address exists.
    let server = Running::start((vip, 53).into(), vec![], services());
    let mut config = lab::Node::config(&folder);
    config.local_addresses = vec![vip];
    let network = knarr_network::pods::PodNetwork::open(config).unwrap();
    let node = lab::Node { network, folder };
    let pod = node.pod("client");
    let asked = question("web.default.svc.cluster.local.", RecordType::A);
    assert_eq!(addresses(&pod.run(|| ask_udp(server.address, &asked)).unwrap()), ["10.43.0.1"]);
    assert_eq!(addresses(&ask_udp(server.address, &asked).unwrap()), ["10.43.0.1"], "from the node");
    let mut stream = pod.run(|| TcpStream::connect(server.address)).unwrap();
    assert_eq!(addresses(&ask_tcp(&mut stream, &asked)), ["10.43.0.1"]);
}
