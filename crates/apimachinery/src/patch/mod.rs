//! The patch formats: JSON patch, merge patch, strategic merge patch, server-side apply.

pub mod apply;
pub mod json_patch;
pub mod merge_patch;
pub mod strategic;

use crate::status::StatusError;

/// Returns the API server's answer to a well-formed patch that does not fit the object; it does not reveal the
/// reason.
fn rejected() -> StatusError {
    let mut error =
        StatusError::new(422, "Invalid", "the server rejected our request due to an error in our request");
    error.0.details = Some(Default::default());
    error
}
