//! What is handed out with an object and written in one transaction with it: service addresses and node ports.

use bytes::Bytes;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::Registry;
use crate::served::Served;
use crate::store::Extra;

pub mod addresses;
pub mod ranges;
pub mod service;

/// How often a choice that somebody else made at the same time is made anew.
pub const ATTEMPTS: usize = 16;

/// What of an object was chosen by the server, and may be chosen anew.
#[derive(Debug, Default)]
pub struct Allocated {
    pub chosen: Vec<service::Choice>,
}

/// Fills in what is to be allocated for `new` and gives back what `old` had, as conditions and operations of the
/// object's own transaction. `new` is `None` for a deletion.
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

/// Whether objects of this resource get addresses or ports.
pub fn concern(served: &Served) -> bool {
    let types = served.resource.types;
    types.group.is_empty() && types.plural == "services"
}

/// After a conflict over an allocation: forgets the choice if the server made it, refuses if the client did.
pub fn lost(
    served: &Served,
    object: &mut Value,
    allocated: &Allocated,
    key: &Bytes,
) -> Result<(), StatusError> {
    if !allocated.chosen.iter().any(|c| c.key == *key) {
        return Err(service::taken(served, object, key));
    }
    // All of them, since the next plan would take what is left for the client's wish.
    allocated.chosen.iter().for_each(|c| c.clear(object));
    Ok(())
}
