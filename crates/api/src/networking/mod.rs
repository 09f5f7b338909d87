//! The `networking.k8s.io` group: who may talk to whom, what is let in from outside, which addresses services have.

pub mod ingress;
pub mod ingressclass;
pub mod ipaddress;
pub mod networkpolicy;
pub mod servicecidr;
