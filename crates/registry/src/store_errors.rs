//! The Status that a client gets for an error of the store.

use knarr_apimachinery::status::StatusError;
use knarr_storage::Error;

/// Returns the Status that a client gets for a failure of the store.
pub fn status_of(error: &Error) -> StatusError {
    match error {
        Error::TooLarge { limit, .. } => StatusError::request_entity_too_large(*limit),
        Error::Compacted { .. } => StatusError::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
        ),
        Error::Closed => StatusError::unavailable("the server is shutting down"),
        // etcd's own message, which upstream passes on, too.
        Error::Backend(why) => StatusError::new(500, "", &**why),
        Error::NoSpace => StatusError::new(500, "", error.to_string()),
        Error::Timeout => {
            StatusError::timeout("Timeout: request did not complete within the allotted timeout")
        }
        other => StatusError::internal(other),
    }
}
