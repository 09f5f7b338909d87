//! The `networking.k8s.io` group: network policies, ingresses, and the address ranges of services.

pub mod ingress;
pub mod ingressclass;
pub mod ipaddress;
pub mod networkpolicy;
pub mod servicecidr;
