//! JSON Web Tokens in the compact form: three base64url parts, signed with a service-account key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};

use super::keys::{PublicKey, SigningKey};

/// The maximum length of a token, in bytes; longer ones are refused.
const MAX_TOKEN: usize = 16 * 1024;

/// A parsed token whose signature has not been verified.
pub struct Unverified<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    algorithm: String,
    key_id: String,
    pub claims: Value,
}

/// Signs these claims.
pub fn sign(claims: &Value, key: &SigningKey) -> Result<String, ring::error::Unspecified> {
    let header = json!({"alg": key.public.algorithm.name(), "kid": key.public.id});
    let part = |v: &Value| BASE64.encode(v.to_string());
    let mut token = format!("{}.{}", part(&header), part(claims));
    let signature = key.sign(token.as_bytes())?;
    token.push('.');
    token.push_str(&BASE64.encode(signature));
    Ok(token)
}

/// Parses a token; `None` if it is not a JWT.
pub fn parse(token: &str) -> Option<Unverified<'_>> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let (signed, signature) = token.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let json = |part: &str| -> Option<Value> { serde_json::from_slice(&BASE64.decode(part).ok()?).ok() };
    let header = json(header)?;
    let text = |name: &str| header.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    Some(Unverified {
        signed,
        signature: BASE64.decode(signature).ok()?,
        algorithm: text("alg"),
        key_id: text("kid"),
        claims: json(claims)?,
    })
}

impl Unverified<'_> {
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// Returns the key id; empty if the token names none.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Calls `verify` with the algorithm, the message and the signature, and returns its result.
    pub fn verify_with(&self, verify: impl Fn(&str, &[u8], &[u8]) -> bool) -> bool {
        verify(&self.algorithm, self.signed.as_bytes(), &self.signature)
    }

    /// Returns whether one of these keys signed it.
    pub fn is_signed_by(&self, keys: &[PublicKey]) -> bool {
        keys.iter()
            .filter(|k| self.algorithm == k.algorithm.name())
            .filter(|k| self.key_id.is_empty() || self.key_id == k.id)
            .any(|k| k.verify(self.signed.as_bytes(), &self.signature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::keys::Algorithm;

    fn key() -> SigningKey {
        let random = ring::rand::SystemRandom::new();
        let algorithm = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let der = ring::signature::EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let text = base64::engine::general_purpose::STANDARD.encode(der.as_ref());
        SigningKey::from_pem(&format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n"))
            .unwrap()
    }

    #[test]
    fn signed_tokens_verify_and_changed_ones_do_not() {
        let (key, other) = (key(), key());
        assert_eq!(key.public.algorithm, Algorithm::Es256);
        let token = sign(&json!({"sub": "a"}), &key).unwrap();
        let parsed = parse(&token).unwrap();
        assert_eq!(parsed.claims, json!({"sub": "a"}));
        assert!(parsed.is_signed_by(std::slice::from_ref(&key.public)));
        assert!(!parsed.is_signed_by(std::slice::from_ref(&other.public)));
        let (head, rest) = token.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let forged = format!("{head}.{}.{signature}", BASE64.encode("{\"sub\":\"b\"}"));
        assert!(!parse(&forged).unwrap().is_signed_by(std::slice::from_ref(&key.public)));
        for broken in ["", "a", "a.b", "a.b.c", "..", "e30.e30."] {
            assert!(
                parse(broken).is_none_or(|t| !t.is_signed_by(std::slice::from_ref(&key.public))),
                "{broken}"
            );
        }
    }
}
