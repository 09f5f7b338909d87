//! Authorization options, named after upstream's flags.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct Authorization {
    /// `--authorization-mode`, in order.
    pub modes: Vec<Mode>,
    /// `--authorization-config`: an `AuthorizationConfiguration` that replaces the modes, read again when it changes.
    pub config_file: Option<PathBuf>,
    /// `--authorization-webhook-config-file`: a kubeconfig.
    pub webhook_config_file: Option<PathBuf>,
    pub webhook_version: String,
    pub webhook_authorized_ttl: Duration,
    pub webhook_unauthorized_ttl: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    AlwaysAllow,
    AlwaysDeny,
    Node,
    Rbac,
    Webhook,
}

impl Mode {
    /// Parses upstream's spelling of a mode.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "AlwaysAllow" => Self::AlwaysAllow,
            "AlwaysDeny" => Self::AlwaysDeny,
            "Node" => Self::Node,
            "RBAC" => Self::Rbac,
            "Webhook" => Self::Webhook,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::AlwaysDeny => "AlwaysDeny",
            Self::Node => "Node",
            Self::Rbac => "RBAC",
            Self::Webhook => "Webhook",
        }
    }
}

impl Default for Authorization {
    fn default() -> Self {
        Self {
            modes: vec![Mode::Node, Mode::Rbac],
            config_file: None,
            webhook_config_file: None,
            webhook_version: "v1".into(),
            webhook_authorized_ttl: Duration::from_secs(300),
            webhook_unauthorized_ttl: Duration::from_secs(30),
        }
    }
}
