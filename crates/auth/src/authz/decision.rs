//! The decision of an authorizer.

/// The decision, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allowed {
        reason: String,
    },
    /// Denied; later authorizers are not asked.
    Denied {
        reason: String,
    },
    NoOpinion {
        reason: String,
    },
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Allowed { reason } | Self::Denied { reason } | Self::NoOpinion { reason } => reason,
        }
    }

    /// Returns the label of metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Allowed { .. } => "allowed",
            Self::Denied { .. } => "denied",
            Self::NoOpinion { .. } => "no-opinion",
        }
    }
}
