//! Compilation errors and evaluation errors.

use thiserror::Error;

use crate::source::Issues;
use crate::types::Type;

/// Why an expression is refused. The text is upstream's, to follow "compilation failed: " and the like.
#[derive(Debug, Clone, Error)]
pub enum CompileError {
    /// The expression has syntax or type errors.
    #[error("compilation failed: {0}")]
    Issues(Issues),
    /// The expression is valid, but its value does not have a wanted type.
    #[error("{}", wrong_output(.wanted, .found))]
    OutputType { wanted: Vec<Type>, found: Type },
    /// A constant part of the expression can never be evaluated.
    #[error("program instantiation failed: {0}")]
    Instantiation(String),
}

impl CompileError {
    /// Returns the errors with their positions, without the prefix.
    pub fn detail(&self) -> String {
        match self {
            Self::Issues(issues) => issues.to_string(),
            other => other.to_string(),
        }
    }
}

fn wrong_output(wanted: &[Type], found: &Type) -> String {
    // This message names types as values do.
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

/// Why an evaluation failed.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum EvalError {
    #[error("{0}")]
    Failed(Box<str>),
    /// No overload of the function accepts values of these types.
    #[error("no such overload")]
    NoSuchOverload,
    /// The limit of this evaluation or of the whole budget is exceeded.
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

    /// Returns whether the error ends the evaluation in any case. Other errors are discarded in `true || error`.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::CostLimitExceeded | Self::Interrupted)
    }
}
