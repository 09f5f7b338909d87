//! Resources that are allocated with an object and written in the same transaction: service addresses and node ports.

use bytes::Bytes;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::Registry;
use crate::served::Served;
use crate::store::Extra;

pub mod addresses;
pub mod ranges;
pub mod service;

/// How many times the server chooses again if another write takes its choice at the same time.
pub const ATTEMPTS: usize = 16;

/// The values that the server chose for an object; it may choose them again.
#[derive(Debug, Default)]
pub struct Allocated {
    pub chosen: Vec<service::Choice>,
}

/// Allocates what `new` needs and releases what `old` held. Returns the conditions and operations for the object's
/// own transaction. `new` is `None` for a deletion.
pub async fn plan(
    registry: &Registry,
    served: &Served,
    old: Option<&Value>,
    new: Option<&mut Value>,
) -> Result<(Extra, Allocated), StatusError> {
    if !concern(served) {
        return Ok((Extra::default(), Allocated::default()));
    }
    service::plan(registry, old, new).await
}

/// Returns whether objects of this resource get addresses or ports.
pub fn concern(served: &Served) -> bool {
    let types = served.resource.types;
    types.group.is_empty() && types.plural == "services"
}

/// Handles a conflict over an allocation: clears the server's choices, or returns the refusal if the client chose the
/// value.
pub fn lost(
    served: &Served,
    object: &mut Value,
    allocated: &Allocated,
    key: &Bytes,
) -> Result<(), StatusError> {
    if !allocated.chosen.iter().any(|c| c.key == *key) {
        return Err(service::taken(served, object, key));
    }
    // All choices are cleared, because the next plan would otherwise treat the remaining ones as chosen by the
    // client.
    allocated.chosen.iter().for_each(|c| c.clear(object));
    Ok(())
}
