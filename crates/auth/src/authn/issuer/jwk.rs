//! JSON Web Keys of an issuer, and the verification of their signatures.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::Value;

/// The maximum number of keys of one issuer; further ones are ignored.
const MAX_KEYS: usize = 256;

pub struct Jwk {
    pub id: String,
    key: Key,
}

enum Key {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// The uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
}

/// Returns the keys of a set that can verify signatures; others are skipped.
pub fn keys(set: &Value) -> Vec<Jwk> {
    set["keys"].as_array().into_iter().flatten().filter_map(key).take(MAX_KEYS).collect()
}

fn key(jwk: &Value) -> Option<Jwk> {
    if jwk["use"].as_str().is_some_and(|u| u != "sig") {
        return None;
    }
    let bytes = |name: &str| BASE64.decode(jwk[name].as_str()?.trim_end_matches('=')).ok();
    let point = |length: usize| -> Option<Vec<u8>> {
        let (x, y) = (bytes("x")?, bytes("y")?);
        (x.len() == length && y.len() == length).then(|| [&[4][..], &x, &y].concat())
    };
    let key = match (jwk["kty"].as_str()?, jwk["crv"].as_str()) {
        ("RSA", _) => Key::Rsa { n: bytes("n")?, e: bytes("e")? },
        ("EC", Some("P-256")) => Key::P256(point(32)?),
        ("EC", Some("P-384")) => Key::P384(point(48)?),
        _ => return None,
    };
    Some(Jwk { id: jwk["kid"].as_str().unwrap_or("").to_owned(), key })
}

impl Jwk {
    pub fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        match &self.key {
            Key::Rsa { n, e } => {
                let parameters: &'static RsaParameters = match algorithm {
                    "RS256" => &RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &RSA_PSS_2048_8192_SHA256,
                    "PS384" => &RSA_PSS_2048_8192_SHA384,
                    "PS512" => &RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            Key::P256(point) if algorithm == "ES256" => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            Key::P384(point) if algorithm == "ES384" => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(message, signature).is_ok()
            }
            Key::P256(_) | Key::P384(_) => false,
        }
    }
}
