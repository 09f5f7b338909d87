//! What every admission plugin implements.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use knarr_registry::attributes::{Attributes, Operation};

use crate::context::Context;

/// One admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync {
    /// Returns upstream's name, as in `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    fn handles(&self, operation: Operation) -> bool;

    /// Changes the object; runs for all plugins before any validates, possibly twice.
    async fn mutate(
        &self,
        _attributes: &mut Attributes<'_>,
        _context: &Context<'_>,
    ) -> Result<(), StatusError> {
        Ok(())
    }

    /// Sets fields that no admission plugin may change; runs once, after all plugins have mutated.
    fn complete(&self, _attributes: &mut Attributes<'_>, _context: &Context<'_>) {}

    /// Refuses the write with an error, or admits it.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _context: &Context<'_>,
    ) -> Result<(), StatusError> {
        Ok(())
    }
}
