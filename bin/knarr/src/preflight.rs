//! What a node needs of its machine, checked before anything is brought up: one sentence per lack, and what to do.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Root, the kernel features of containers, and control groups.
pub fn node() -> Result<()> {
    root("run a node")?;
    let filesystems =
        std::fs::read_to_string("/proc/filesystems").context("cannot read /proc/filesystems")?;
    if !filesystems.lines().any(|l| l.split_whitespace().last() == Some("overlay")) {
        bail!("the kernel has no overlayfs: load it with `modprobe overlay`, or use a kernel that has it");
    }
    for (file, feature) in [("net", "CONFIG_NET_NS"), ("mnt", "namespaces"), ("pid", "CONFIG_PID_NS")] {
        if !Path::new("/proc/self/ns").join(file).exists() {
            bail!("the kernel has no {file} namespaces ({feature}): use a kernel that has them");
        }
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    if !mounts.lines().any(|l| matches!(l.split_whitespace().nth(2), Some("cgroup" | "cgroup2"))) {
        bail!("no control groups are mounted: `mount -t cgroup2 none /sys/fs/cgroup` mounts them");
    }
    Ok(())
}

/// Fails unless the process is root's.
pub fn root(what: &str) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("knarr has to be root to {what}: run it with sudo");
    }
    Ok(())
}

/// A listener on the address, or a sentence that says which port is taken and what to do.
pub fn listen(address: SocketAddr, option: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "port {} is taken by another program: stop it, or choose another port with {option}",
            address.port()
        ),
        std::io::ErrorKind::AddrNotAvailable => {
            anyhow::anyhow!("this machine has no address {}: choose another with {option}", address.ip())
        }
        _ => anyhow::anyhow!("cannot listen on {address}: {error}"),
    })?;
    listener.set_nonblocking(true).context("cannot prepare the listening socket")?;
    Ok(listener)
}

/// The address of this machine that others reach it by: that of the default route, or else the first one that is
/// not a loopback address.
pub fn node_ip() -> Result<IpAddr> {
    // Connecting a UDP socket sends nothing; it only asks the kernel which source address it would take.
    let routed = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("198.51.100.1:9")?;
        socket.local_addr()
    });
    if let Ok(address) = routed
        && !address.ip().is_unspecified()
    {
        return Ok(address.ip());
    }
    let interfaces = nix::ifaddrs::getifaddrs().context("cannot list the network interfaces")?;
    let addresses = interfaces.filter_map(|i| i.address?.as_sockaddr_in().map(|a| IpAddr::from(a.ip())));
    addresses
        .into_iter()
        .find(|ip| !ip.is_loopback())
        .context("this machine has no network address but loopback: choose one with --node-ip")
}

/// The machine's host name, as node names have it: lower case.
pub fn node_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("cannot read the host name")?;
    let name = name.to_string_lossy().trim().to_lowercase();
    if name.is_empty() {
        bail!("this machine has no host name: choose a node name with --node-name");
    }
    Ok(name)
}
