//! What an authorizer answers.

/// The outcome, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allowed {
        reason: String,
    },
    /// Nobody after this one is asked.
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

    /// The label of metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Allowed { .. } => "allowed",
            Self::Denied { .. } => "denied",
            Self::NoOpinion { .. } => "no-opinion",
        }
    }
}
