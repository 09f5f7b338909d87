//! Converts errors of the runtime, images and network to errors of the interface, with all causes in the text.

use std::path::Path;

use knarr_runtime::containers::Error;
use knarr_runtime::images::{ErrorKind, ImageError};

use crate::pod_network::NetworkError;
use crate::runtime::{Result, RuntimeError};

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

pub fn container(error: Error) -> RuntimeError {
    match error {
        e @ (Error::SandboxNotFound(_) | Error::ContainerNotFound(_)) => {
            RuntimeError::NotFound(e.to_string())
        }
        Error::Start { message, .. } => RuntimeError::Start(message),
        Error::Exec { message, exit_code } => RuntimeError::Exec { message, exit_code },
        Error::ExecTimeout { command, seconds } => RuntimeError::ExecTimeout { command, seconds },
        other => RuntimeError::Failed(chain(&other)),
    }
}

pub fn fine_if_missing(result: knarr_runtime::containers::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map_err(container),
    }
}

pub fn image(error: ImageError) -> RuntimeError {
    let text = error.chain();
    match error.kind() {
        ErrorKind::NotFound => RuntimeError::NotFound(text),
        ErrorKind::InvalidReference => RuntimeError::InvalidImageName(text),
        ErrorKind::Unauthorized => RuntimeError::Unauthorized(text),
        _ => RuntimeError::Failed(text),
    }
}

pub fn network(error: NetworkError) -> RuntimeError {
    RuntimeError::Failed(chain(&error))
}

pub fn file<'a>(action: &'a str, path: &'a Path) -> impl FnOnce(std::io::Error) -> RuntimeError + 'a {
    move |error| RuntimeError::Failed(format!("cannot {action} {}: {error}", path.display()))
}
