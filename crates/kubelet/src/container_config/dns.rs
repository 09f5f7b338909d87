//! DNS names of a pod: its host name, its /etc/hosts and its /etc/resolv.conf.

use k8s_openapi::api::core::v1::{HostAlias, Pod};
use knarr_api::kind::Kind;

use crate::config::Config;
use crate::pod;
use crate::runtime::DnsConfig;

const MAX_HOSTNAME: usize = 63;
/// The longest host name that the kernel accepts.
const MAX_FQDN: usize = 64;
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_DOMAIN: usize = 253;

/// Returns a pod's host name and, if it has a subdomain, its domain.
pub fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let spec = pod::spec(pod);
    let filled = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    if let Some(name) = filled(&spec.hostname_override) {
        return (truncate(&name), String::new());
    }
    let hostname = truncate(&filled(&spec.hostname).unwrap_or_else(|| pod.name().to_owned()));
    let domain = filled(&spec.subdomain)
        .map_or_else(String::new, |sub| format!("{sub}.{}.svc.{cluster_domain}", pod.namespace()));
    (hostname, domain)
}

fn truncate(name: &str) -> String {
    let mut at = name.len().min(MAX_HOSTNAME);
    while !name.is_char_boundary(at) {
        at -= 1;
    }
    // A name must not end with a separator.
    name[..at].trim_end_matches(['-', '.']).to_owned()
}

/// Returns the host name in the pod's kernel namespace: the full name with `setHostnameAsFQDN`.
pub fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain);
    if pod::spec(pod).set_hostname_as_fqdn != Some(true) || domain.is_empty() {
        return Ok(hostname);
    }
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > MAX_FQDN {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({MAX_FQDN} is the \
             max characters allowed)"
        ));
    }
    Ok(fqdn)
}

/// Returns the content of a pod's /etc/hosts. In the host's network it is the node's own file with the aliases
/// added.
pub fn hosts_file(pod: &Pod, pod_ips: &[String], cluster_domain: &str, node_hosts: &str) -> String {
    let aliases = pod::spec(pod).host_aliases.as_deref().unwrap_or_default();
    if pod::is_host_network(pod) {
        return format!(
            "# Kubernetes-managed hosts file (host network).\n{node_hosts}{}",
            alias_lines(aliases)
        );
    }
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain);
    let mut out = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    for ip in pod_ips {
        if domain.is_empty() {
            out.push_str(&format!("{ip}\t{hostname}\n"));
        } else {
            out.push_str(&format!("{ip}\t{hostname}.{domain}\t{hostname}\n"));
        }
    }
    out + &alias_lines(aliases)
}

fn alias_lines(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        out.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    out
}

/// Parses a resolv.conf; unknown lines are left out.
pub fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                let domains = words.filter(|d| *d != ".").map(|d| d.trim_end_matches('.').to_owned());
                config.searches = domains.collect();
            }
            Some("options") => config.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    config
}

/// A resolver configuration, with warnings about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDns {
    pub config: DnsConfig,
    /// The reasons and messages of the events.
    pub warnings: Vec<(&'static str, String)>,
}

/// Returns the pod's resolver configuration, from its dnsPolicy and dnsConfig and from the host's configuration.
pub fn pod_dns(pod: &Pod, config: &Config, host: &DnsConfig) -> PodDns {
    let spec = pod::spec(pod);
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster =
        policy == "ClusterFirstWithHostNet" || (policy == "ClusterFirst" && !pod::is_host_network(pod));
    let mut warnings = Vec::new();
    let mut dns = match policy {
        "None" => DnsConfig::default(),
        _ if cluster && !config.cluster_dns.is_empty() => DnsConfig {
            servers: config.cluster_dns.iter().map(ToString::to_string).collect(),
            searches: cluster_searches(pod, &config.cluster_domain, &host.searches),
            options: vec!["ndots:5".to_owned()],
        },
        _ => {
            if cluster {
                let message = format!(
                    "kubelet does not have ClusterDNS IP configured and cannot create Pod using {policy:?} policy. \
                     Falling back to \"Default\" policy."
                );
                warnings.push(("MissingClusterDNS", message));
            }
            host.clone()
        }
    };
    if let Some(extra) = &spec.dns_config {
        dns.servers = distinct(dns.servers, extra.nameservers.iter().flatten());
        dns.searches = distinct(dns.searches, extra.searches.iter().flatten());
        for option in extra.options.iter().flatten() {
            let Some(name) = option.name.as_deref() else { continue };
            dns.options.retain(|o| o.split(':').next() != Some(name));
            dns.options.push(match option.value.as_deref().filter(|v| !v.is_empty()) {
                Some(value) => format!("{name}:{value}"),
                None => name.to_owned(),
            });
        }
    }
    limit(&mut dns, &mut warnings);
    PodDns { config: dns, warnings }
}

fn cluster_searches(pod: &Pod, domain: &str, host: &[String]) -> Vec<String> {
    if domain.is_empty() {
        return host.to_vec();
    }
    let own = vec![format!("{}.svc.{domain}", pod.namespace()), format!("svc.{domain}"), domain.to_owned()];
    distinct(own, host)
}

fn distinct<'a>(mut list: Vec<String>, more: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
    list
}

fn limit(dns: &mut DnsConfig, warnings: &mut Vec<(&'static str, String)>) {
    if dns.servers.len() > MAX_NAMESERVERS {
        dns.servers.truncate(MAX_NAMESERVERS);
        let message = format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            dns.servers.join(" ")
        );
        warnings.push(("DNSConfigForming", message));
    }
    let before = dns.searches.len();
    dns.searches.truncate(MAX_SEARCHES);
    dns.searches.retain(|s| s.len() <= MAX_DOMAIN);
    while dns.searches.join(" ").len() > MAX_SEARCH_CHARS {
        dns.searches.pop();
    }
    if dns.searches.len() < before {
        let message = format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            dns.searches.join(" ")
        );
        warnings.push(("DNSConfigForming", message));
    }
}

/// Returns the content of the file.
pub fn resolv_conf(dns: &DnsConfig) -> String {
    let mut out = String::new();
    if !dns.searches.is_empty() {
        out.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        out.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        out.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodDNSConfig, PodDNSConfigOption, PodSpec};

    fn pod(spec: PodSpec) -> Pod {
        let mut pod = Pod { spec: Some(spec), ..Pod::default() };
        pod.metadata.name = Some("web-0".into());
        pod.metadata.namespace = Some("ns".into());
        pod
    }

    fn config() -> Config {
        let mut config = Config::new("n", [127, 0, 0, 1].into(), "/nonexistent");
        config.cluster_dns = vec![[10, 96, 0, 10].into()];
        config
    }

    #[test]
    fn resolv_conf_by_policy() {
        let host = parse_resolv_conf("# c\nnameserver 1.1.1.1\nsearch example.com.\noptions ndots:2 edns0\n");
        let cluster = "search ns.svc.cluster.local svc.cluster.local cluster.local example.com\n\
                       nameserver 10.96.0.10\noptions ndots:5\n";
        let default = "search example.com\nnameserver 1.1.1.1\noptions ndots:2 edns0\n";
        for (policy, host_network, expected) in [
            ("ClusterFirst", false, cluster),
            ("ClusterFirst", true, default),
            ("ClusterFirstWithHostNet", true, cluster),
            ("Default", false, default),
            ("None", false, ""),
        ] {
            let spec = PodSpec {
                dns_policy: Some(policy.into()),
                host_network: Some(host_network),
                ..PodSpec::default()
            };
            let dns = pod_dns(&pod(spec), &config(), &host);
            assert_eq!(resolv_conf(&dns.config), expected, "{policy}");
            assert!(dns.warnings.is_empty());
        }
    }

    #[test]
    fn dns_config_is_added_and_limited() {
        let extra = PodDNSConfig {
            nameservers: Some(["1", "2", "3"].map(str::to_owned).to_vec()),
            searches: Some(vec!["my.example".into()]),
            options: Some(vec![
                PodDNSConfigOption { name: Some("ndots".into()), value: Some("1".into()) },
                PodDNSConfigOption { name: Some("edns0".into()), value: None },
            ]),
        };
        let spec = PodSpec { dns_config: Some(extra), ..PodSpec::default() };
        let dns = pod_dns(&pod(spec), &config(), &DnsConfig::default());
        assert_eq!(dns.config.servers, ["10.96.0.10", "1", "2"]);
        assert_eq!(dns.config.options, ["ndots:1", "edns0"]);
        assert_eq!(dns.config.searches.last().map(String::as_str), Some("my.example"));
        assert_eq!(dns.warnings.len(), 1);
    }

    #[test]
    fn hosts() {
        let spec = PodSpec {
            subdomain: Some("web".into()),
            host_aliases: Some(vec![HostAlias {
                ip: "1.2.3.4".into(),
                hostnames: Some(vec!["a".into(), "b".into()]),
            }]),
            ..PodSpec::default()
        };
        let text = hosts_file(&pod(spec.clone()), &["10.0.0.5".into()], "cluster.local", "");
        assert!(text.contains("\n10.0.0.5\tweb-0.web.ns.svc.cluster.local\tweb-0\n"), "{text}");
        assert!(text.ends_with("\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"), "{text}");
        let host = PodSpec { host_network: Some(true), ..spec };
        let text = hosts_file(&pod(host), &[], "cluster.local", "127.0.0.1 me\n");
        assert!(
            text.starts_with("# Kubernetes-managed hosts file (host network).\n127.0.0.1 me\n"),
            "{text}"
        );
    }

    #[test]
    fn host_names() {
        let named = |hostname: &str| PodSpec { hostname: Some(hostname.into()), ..PodSpec::default() };
        assert_eq!(hostname_and_domain(&pod(PodSpec::default()), "d").0, "web-0");
        assert_eq!(hostname_and_domain(&pod(named("other")), "d").0, "other");
        let own =
            PodSpec { subdomain: Some("s".into()), hostname_override: Some("a.b".into()), ..named("other") };
        assert_eq!(hostname_and_domain(&pod(own), "d"), ("a.b".to_owned(), String::new()));
        let long = "a".repeat(62) + "-b";
        assert_eq!(hostname_and_domain(&pod(named(&long)), "d").0, "a".repeat(62));
        let mut spec = PodSpec { subdomain: Some("s".into()), ..PodSpec::default() };
        spec.set_hostname_as_fqdn = Some(true);
        assert_eq!(kernel_hostname(&pod(spec), "d").unwrap(), "web-0.s.ns.svc.d");
    }
}
