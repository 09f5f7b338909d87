//! Warnings about Service fields without effect or in a deprecated form.

use k8s_openapi::api::core::v1::Service;
use knarr_apimachinery::field::Path;

use crate::addresses;

pub fn service(service: &Service) -> Vec<String> {
    let spec = service.spec.clone().unwrap_or_default();
    let path = Path::new("spec");
    let mut warnings = Vec::new();
    let annotated = |key: &str| service.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(key));
    if annotated("service.kubernetes.io/topology-aware-hints") {
        warnings.push(
            "annotation service.kubernetes.io/topology-aware-hints is deprecated, \
             please use service.kubernetes.io/topology-mode instead"
                .to_owned(),
        );
    }
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    let external = kind == "ExternalName";
    let cluster_ip = spec.cluster_ip.as_deref().unwrap_or("");
    for (i, ip) in spec.cluster_ips.iter().flatten().enumerate().filter(|(_, ip)| *ip != "None") {
        warnings.extend(addresses::ip_warning(&path.child("clusterIPs").index(i), ip));
    }
    let headless = kind == "ClusterIP" && cluster_ip == "None";
    let balancer = spec.load_balancer_ip.as_deref().unwrap_or("");
    let ips = spec.external_ips.as_deref().unwrap_or_default();
    let affinity = spec.session_affinity.as_deref().unwrap_or("");
    for (field, set) in [
        ("loadBalancerIP", !balancer.is_empty()),
        ("externalIPs", !ips.is_empty()),
        ("SessionAffinity", affinity != "None"),
    ] {
        if headless && set {
            warnings.push(format!("spec.{field} is ignored for headless services"));
        }
    }
    for (i, ip) in ips.iter().enumerate() {
        warnings.extend(addresses::ip_warning(&path.child("externalIPs").index(i), ip));
    }
    if !ips.is_empty() && !headless && !external {
        let text = "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(text.to_owned());
    }
    warnings.extend(addresses::ip_warning(&path.child("loadBalancerIP"), balancer));
    for (i, range) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
        warnings.extend(addresses::cidr_warnings(&path.child("loadBalancerSourceRanges").index(i), range));
    }
    if external && !ips.is_empty() {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !external && spec.external_name.as_deref().is_some_and(|n| !n.is_empty()) {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec.traffic_distribution.as_deref() == Some("PreferClose") {
        let text = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        warnings.push(text.to_owned());
    }
    warnings
}
