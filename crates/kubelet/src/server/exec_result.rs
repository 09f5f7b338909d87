//! The result of a command, as clients of exec and attach read it from the error channel.
//!
//! Source: `k8s.io/cri-streaming/pkg/streaming/remotecommand`.

use knarr_apimachinery::status::{InOrder, StatusError};
use serde_json::{Value, json};

use crate::runtime::RuntimeError;

/// The result at the end of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecResult {
    Exited(i32),
    /// The command could not be carried out; the text contains the action and the cause.
    Failed(String),
}

impl ExecResult {
    /// `verb` is `executing command in` or `attaching to`.
    pub fn of(verb: &str, result: Result<i32, RuntimeError>) -> Self {
        match result {
            Ok(code) => Self::Exited(code),
            Err(error) => Self::Failed(format!("error {verb} container: {error}")),
        }
    }

    /// Returns the Status of version four of the protocol and later.
    pub fn status(&self) -> Value {
        match self {
            Self::Exited(0) => json!({"metadata": {}, "status": "Success"}),
            Self::Exited(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!(
                    "command terminated with non-zero exit code: command terminated with exit code {code}"
                ),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed(text) => {
                let status = StatusError::internal(text);
                let mut value = serde_json::to_value(&*status.0).unwrap_or_default();
                value["metadata"] = json!({});
                if let Some(fields) = value.as_object_mut() {
                    fields.remove("apiVersion");
                    fields.remove("kind");
                }
                value
            }
        }
    }

    /// Returns the status as upstream serializes it.
    pub fn status_text(&self) -> String {
        String::from_utf8(InOrder::status(&self.status()).to_json()).unwrap_or_default()
    }

    /// Returns the text of the first versions of the protocol; `None` on success.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Exited(0) => None,
            Self::Exited(code) => {
                Some(format!("error executing remote command: command terminated with exit code {code}"))
            }
            Self::Failed(text) => Some(text.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses() {
        assert_eq!(ExecResult::Exited(0).status(), json!({"metadata": {}, "status": "Success"}));
        let status = ExecResult::Exited(3).status();
        assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            ExecResult::Exited(3).status_text(),
            "{\"metadata\":{},\"status\":\"Failure\",\"message\":\"command terminated with non-zero exit code: command \
             terminated with exit code 3\",\"reason\":\"NonZeroExitCode\",\"details\":{\"causes\":[{\"reason\":\"ExitCode\",\
             \"message\":\"3\"}]}}"
        );
        let error = RuntimeError::Exec { message: "no such file".into(), exit_code: 127 };
        let status = ExecResult::of("executing command in", Err(error)).status();
        assert_eq!(
            status["message"],
            "Internal error occurred: error executing command in container: no such file"
        );
        assert_eq!((&status["status"], &status["code"]), (&json!("Failure"), &json!(500)));
    }
}
