//! Checks of the machine before a node starts: one sentence for each missing requirement, with its remedy.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Checks for root, the kernel features of containers, and control groups.
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

/// Fails unless the process runs as root.
pub fn root(what: &str) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("knarr has to be root to {what}: run it with sudo");
    }
    Ok(())
}

/// Binds a listener to the address, or fails with a sentence that names the taken port and the remedy.
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

/// Returns the address at which other machines reach this one: that of the default route, or else the first
/// one that is not a loopback address.
pub fn node_ip() -> Result<IpAddr> {
    // Connecting a UDP socket sends nothing; it only makes the kernel choose a source address.
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

/// Returns the machine's host name in the form of node names: lower case.
pub fn node_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("cannot read the host name")?;
    let name = name.to_string_lossy().trim().to_lowercase();
    if name.is_empty() {
        bail!("this machine has no host name: choose a node name with --node-name");
    }
    Ok(name)
}
