//! A node with pods inside one test: network namespaces that belong to the test's own thread.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod frames;
pub mod objects;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use knarr_network::links::{Links, in_namespace};
use knarr_network::pods::{PodNetwork, PodNetworkConfig, PodRef, PortMapping};
use nix::sched::{CloneFlags, unshare};

pub const TIMEOUT: Duration = Duration::from_secs(2);

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Moves the calling thread into a new network namespace with loopback up.
pub fn isolate() {
    assert!(nix::unistd::geteuid().is_root(), "this test makes network namespaces and must run as root");
    unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace of its own");
    Links::open().unwrap().set_up(1).unwrap();
}

/// Runs the test twice: with the kernel passing bridged packets to the IP rules, as on most nodes, and without.
/// The first is the kernel's default for a new namespace.
pub fn in_both_bridge_modes(test: impl Fn(Node) + Copy + Send) {
    for bridge_netfilter in ["1", "0"] {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                isolate();
                let setting = "/proc/sys/net/bridge/bridge-nf-call-iptables";
                if std::fs::exists(setting).unwrap() {
                    std::fs::write(setting, bridge_netfilter).unwrap();
                }
                println!("bridge netfilter {bridge_netfilter}");
                test(Node::here());
            });
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

/// Creates a network namespace without processes.
pub fn new_namespace() -> File {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        File::open("/proc/thread-self/ns/net").unwrap()
    })
    .join()
    .unwrap()
}

/// A folder that is removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("knarr-network-{}-{number}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A node in the calling thread's namespace.
pub struct Node {
    pub network: PodNetwork,
    pub folder: Folder,
}

impl Node {
    pub fn config(folder: &Folder) -> PodNetworkConfig {
        let mut config = PodNetworkConfig::new(
            "10.42.3.0/24".parse().unwrap(),
            "10.42.0.0/16".parse().unwrap(),
            folder.0.clone(),
        );
        config.service_cidr = Some("10.43.0.0/16".parse().unwrap());
        config
    }

    pub fn new() -> Self {
        isolate();
        Self::here()
    }

    /// Creates a node in the current namespace of the thread.
    pub fn here() -> Self {
        let folder = Folder::new();
        let network = PodNetwork::open(Self::config(&folder)).unwrap();
        Self { network, folder }
    }

    pub fn pod(&self, name: &str) -> Pod {
        self.pod_with_ports(name, &[])
    }

    pub fn pod_with_ports(&self, name: &str, ports: &[PortMapping]) -> Pod {
        let namespace = new_namespace();
        let path = PathBuf::from(format!("/proc/self/fd/{}", namespace.as_raw_fd()));
        let addresses = self.network.setup_pod(&pod_ref(name), &path, ports).unwrap();
        Pod { name: name.to_owned(), namespace, path, ip: addresses.ips[0], servers: Vec::new() }
    }
}

pub fn pod_ref(name: &str) -> PodRef {
    PodRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        sandbox_id: format!("sandbox-{name}"),
    }
}

/// A pod's namespace and its servers, which answer with the pod's name and the client's address.
pub struct Pod {
    pub name: String,
    pub namespace: File,
    pub path: PathBuf,
    pub ip: Ipv4Addr,
    servers: Vec<Server>,
}

impl Pod {
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_namespace(&self.namespace, work).unwrap()
    }

    pub fn serve_tcp(&mut self, port: u16) {
        let listener = self.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
        self.servers.push(Server::tcp(listener, self.name.clone()));
    }

    pub fn serve_udp(&mut self, port: u16) {
        self.serve_udp_at(Ipv4Addr::UNSPECIFIED, port);
    }

    /// Starts a UDP server that answers from this address.
    pub fn serve_udp_at(&mut self, ip: Ipv4Addr, port: u16) {
        let socket = self.run(|| UdpSocket::bind((ip, port)).unwrap());
        self.servers.push(Server::udp(socket, self.name.clone()));
    }

    /// Returns the answer of a TCP server to a client in this pod.
    pub fn get(&self, ip: impl Into<Ipv4Addr>, port: u16) -> std::io::Result<Answer> {
        let ip = ip.into();
        self.run(|| tcp_get(ip, port))
    }

    pub fn udp_get(&self, ip: impl Into<Ipv4Addr>, port: u16) -> std::io::Result<Answer> {
        let ip = ip.into();
        self.run(|| udp_get(&UdpSocket::bind("0.0.0.0:0")?, ip, port))
    }
}

/// The server that answered, and the client's address that it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub server: String,
    pub client: Ipv4Addr,
}

impl Answer {
    fn parse(text: &str) -> std::io::Result<Self> {
        let (server, client) = text.split_once(' ').ok_or(std::io::ErrorKind::InvalidData)?;
        let client = client.parse().map_err(|_| std::io::ErrorKind::InvalidData)?;
        Ok(Self { server: server.to_owned(), client })
    }
}

pub fn tcp_get(ip: Ipv4Addr, port: u16) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&SocketAddrV4::new(ip, port).into(), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Answer::parse(&text)
}

pub fn udp_get(socket: &UdpSocket, ip: Ipv4Addr, port: u16) -> std::io::Result<Answer> {
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect((ip, port))?;
    socket.send(b"?")?;
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer)?;
    Answer::parse(&String::from_utf8_lossy(&buffer[..length]))
}

/// A server thread that ends when dropped.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub fn tcp(listener: TcpListener, name: String) -> Self {
        listener.set_nonblocking(true).unwrap();
        Self::spawn(move || match listener.accept() {
            Ok((mut stream, client)) => {
                let _ = write!(stream, "{name} {}", client.ip());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        })
    }

    pub fn udp(socket: UdpSocket, name: String) -> Self {
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut buffer = [0; 64];
        Self::spawn(move || {
            if let Ok((_, SocketAddr::V4(client))) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(format!("{name} {}", client.ip()).as_bytes(), client);
            }
        })
    }

    fn spawn(mut step: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                step();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A host outside of the cluster: a namespace connected to the node by a veth pair, with a route only to the
/// node.
pub struct Outside {
    pub host: Pod,
    /// The node's address on that link.
    pub node_ip: Ipv4Addr,
}

impl Outside {
    pub fn new() -> Self {
        use knarr_network::cidr::Ipv4Cidr;
        use knarr_network::links::{Address, Route, RouteKind, Veth};
        use std::os::fd::AsFd;
        let namespace = new_namespace();
        let mut links = Links::open().unwrap();
        let bridge = links.ensure_bridge("uplink", [2, 0, 0, 0, 0, 1], 1500).unwrap();
        links
            .create_veth(Veth {
                host_name: "uplink-port",
                bridge: bridge.index,
                pod_name: "eth0",
                pod_mac: [2, 0, 0, 0, 0, 2],
                pod_namespace: namespace.as_fd(),
                mtu: 1500,
            })
            .unwrap();
        let port = links.get("uplink-port").unwrap().unwrap();
        links.set_up(port.index).unwrap();
        let (node_ip, ip) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        links.add_address(Address { index: bridge.index, ip: node_ip, prefix_len: 24 }).unwrap();
        in_namespace(&namespace, || {
            let mut links = Links::open().unwrap();
            links.set_up(1).unwrap();
            let index = links.get("eth0").unwrap().unwrap().index;
            links.set_up(index).unwrap();
            links.add_address(Address { index, ip, prefix_len: 24 }).unwrap();
            // As on a real network, service addresses are routed to the node, and pod addresses are not.
            links
                .replace_route(Route {
                    destination: "10.43.0.0/16".parse::<Ipv4Cidr>().unwrap(),
                    gateway: Some(node_ip),
                    device: None,
                    source: None,
                    kind: RouteKind::STATIC,
                })
                .unwrap();
        })
        .unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", namespace.as_raw_fd()));
        let host = Pod { name: "outside".to_owned(), namespace, path, ip, servers: Vec::new() };
        Self { host, node_ip }
    }
}
