//! What can go wrong with an expression, when it is compiled and when it is evaluated.

use thiserror::Error;

use crate::source::Issues;
use crate::types::Type;

/// Why an expression is refused. The text is upstream's, to follow "compilation failed: " and the like.
#[derive(Debug, Clone, Error)]
pub enum CompileError {
    /// It has errors of syntax or type.
    #[error("compilation failed: {0}")]
    Issues(Issues),
    /// It is right, but its value has another type than wanted.
    #[error("{}", wrong_output(.wanted, .found))]
    OutputType { wanted: Vec<Type>, found: Type },
    /// A constant part of it can never be evaluated.
    #[error("program instantiation failed: {0}")]
    Instantiation(String),
}

impl CompileError {
    /// The errors with their places, without what comes before them.
    pub fn detail(&self) -> String {
        match self {
            Self::Issues(issues) => issues.to_string(),
            other => other.to_string(),
        }
    }
}

fn wrong_output(wanted: &[Type], found: &Type) -> String {
    // Types are named here as values know them.
    let name = |t: &Type| if matches!(t, Type::Null) { "null_type".to_owned() } else { t.to_string() };
    let found = name(found);
    match wanted {
        [one] => format!("must evaluate to {} but got {found}", name(one)),
        _ => {
            let all: Vec<String> = wanted.iter().map(name).collect();
            format!("must evaluate to one of [{}] but got {found}", all.join(" "))
        }
    }
}

/// Why an evaluation ended without a value.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum EvalError {
    #[error("{0}")]
    Failed(Box<str>),
    /// No function of this name takes values of these types.
    #[error("no such overload")]
    NoSuchOverload,
    /// The limit of this call or of the whole budget.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimitExceeded,
    #[error("operation interrupted")]
    Interrupted,
}

impl EvalError {
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into().into())
    }

    pub fn no_such_key(key: &str) -> Self {
        Self::new(format!("no such key: {key}"))
    }

    /// Ends the evaluation whatever stands beside it, as `true || error` does not.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::CostLimitExceeded | Self::Interrupted)
    }
}
