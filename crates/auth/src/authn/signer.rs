//! Signs claims with the service-account key, for components that own the key.

use serde_json::Value;

use super::jwt;
use super::keys::SigningKey;
use knarr_wire::keypair::ConfigError;

/// The key that signs service-account tokens.
pub struct TokenSigner(SigningKey);

impl TokenSigner {
    /// Parses PKCS#8 PEM.
    pub fn from_pem(pem: &str) -> Result<Self, ConfigError> {
        SigningKey::from_pem(pem).map(Self)
    }

    /// Returns the claims as a JSON Web Token in the compact form; `None` if signing fails.
    pub fn sign(&self, claims: &Value) -> Option<String> {
        jwt::sign(claims, &self.0).ok()
    }
}
