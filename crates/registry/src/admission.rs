//! What the registry asks of admission.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::Registry;
use super::attributes::{Attributes, Operation};
use super::options::WriteParams;
use super::served::Served;
use knarr_wire::request::Request;

/// The admission plugins of a server. The strategy of a resource prepares an object before `complete` and validates it
/// before `validate`.
#[async_trait]
pub trait Admission: Send + Sync {
    /// Runs all mutating plugins; again where a webhook or policy changed something that others may want to see.
    async fn mutate(&self, registry: &Registry, attributes: &mut Attributes<'_>) -> Result<(), StatusError>;

    /// Sets what no plugin may change, after all mutating plugins and after the strategy prepared the object.
    fn complete(&self, registry: &Registry, attributes: &mut Attributes<'_>);

    /// Runs all validating plugins.
    async fn validate(&self, registry: &Registry, attributes: &Attributes<'_>) -> Result<(), StatusError>;
}

impl Registry {
    /// Both phases of a write that no strategy stands between: subresources that are only posted, connects, deletions.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<Value, StatusError> {
        self.admission.mutate(self, attributes).await?;
        self.admission.validate(self, attributes).await?;
        Ok(attributes.object.take())
    }

    /// A review after admission, which sees it like all objects that are created.
    ///
    /// # Errors
    /// The refusal of a plugin.
    pub async fn admit_review(
        &self,
        request: &Request,
        served: &Served,
        review: Value,
        params: &WriteParams,
    ) -> Result<Value, StatusError> {
        let place = (request.info.namespace.as_str(), "", "");
        let mut attributes =
            Attributes::new(request, served, Operation::Create, place, review, params.dry_run);
        self.admit(&mut attributes).await
    }
}
