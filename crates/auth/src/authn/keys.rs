//! The keys of service-account tokens: signing, verifying, key ids, JWKS.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use knarr_wire::keypair::ConfigError;

/// The two kinds of key that upstream signs with by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Es256,
    Rs256,
}

impl Algorithm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

/// A signing key.
pub struct SigningKey {
    pair: Pair,
    pub public: PublicKey,
}

enum Pair {
    Ecdsa(Box<EcdsaKeyPair>),
    Rsa(Box<RsaKeyPair>),
}

/// A verification key.
#[derive(Debug, Clone)]
pub struct PublicKey {
    pub algorithm: Algorithm,
    /// The point, or the DER of the RSA key, in the form that `ring` expects.
    key: Vec<u8>,
    /// The key id, as upstream computes it: base64url of the SHA-256 of the SubjectPublicKeyInfo.
    pub id: String,
}

const SIGNING: &str = "the service-account signing key";
const VERIFYING: &str = "a service-account public key";
const P256_PREFIX: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

impl SigningKey {
    /// Parses PKCS#8 PEM.
    pub fn from_pem(pem: &str) -> Result<Self, ConfigError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|source| ConfigError::Pem { what: SIGNING, source: Box::new(source) })?;
        let der = der.secret_pkcs8_der();
        let random = SystemRandom::new();
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der, &random) {
            let public = PublicKey::new(Algorithm::Es256, pair.public_key().as_ref());
            return Ok(Self { pair: Pair::Ecdsa(Box::new(pair)), public });
        }
        let pair = RsaKeyPair::from_pkcs8(der).map_err(|_| ConfigError::Unusable {
            what: SIGNING,
            why: "neither ECDSA P-256 nor RSA of 2048 bits and more".into(),
        })?;
        let public = PublicKey::new(Algorithm::Rs256, pair.public().as_ref());
        Ok(Self { pair: Pair::Rsa(Box::new(pair)), public })
    }

    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, ring::error::Unspecified> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ecdsa(pair) => Ok(pair.sign(&random, message)?.as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)?;
                Ok(signature)
            }
        }
    }
}

impl PublicKey {
    fn new(algorithm: Algorithm, key: &[u8]) -> Self {
        let spki = match algorithm {
            Algorithm::Es256 => [P256_PREFIX, key].concat(),
            Algorithm::Rs256 => {
                let bits = der(0x03, &[&[0u8], key].concat());
                der(0x30, &[RSA_ALGORITHM, &bits].concat())
            }
        };
        let id = BASE64.encode(Sha256::digest(spki));
        Self { algorithm, key: key.to_vec(), id }
    }

    /// Parses the PEM of a SubjectPublicKeyInfo (`PUBLIC KEY`).
    pub fn from_pem(pem: &str) -> Result<Self, ConfigError> {
        let spki = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes())
            .map_err(|source| ConfigError::Pem { what: VERIFYING, source: Box::new(source) })?;
        let unusable = |why: &str| ConfigError::Unusable { what: VERIFYING, why: why.into() };
        let (_, info) = SubjectPublicKeyInfo::from_der(&spki).map_err(|_| unusable("not a public key"))?;
        let key = info.subject_public_key.data.as_ref();
        match info.parsed() {
            Ok(x509_parser::public_key::PublicKey::EC(_)) if key.len() == 65 => {
                Ok(Self::new(Algorithm::Es256, key))
            }
            Ok(x509_parser::public_key::PublicKey::RSA(_)) => Ok(Self::new(Algorithm::Rs256, key)),
            _ => Err(unusable("neither ECDSA P-256 nor RSA")),
        }
    }

    /// Returns all public keys of a PEM text, and the public keys of its private keys.
    pub fn all_from_pem(pem: &str) -> Result<Vec<Self>, ConfigError> {
        let mut keys = Vec::new();
        let mut rest = pem;
        while let Some(start) = rest.find("-----BEGIN ") {
            let section = &rest[start..];
            let end =
                section.find("-----END ").map(|e| e + section[e..].find('\n').unwrap_or(section.len() - e));
            let end = end.unwrap_or(section.len());
            let block = &section[..end];
            if block.starts_with("-----BEGIN PUBLIC KEY-----") {
                keys.push(Self::from_pem(block)?);
            } else if block.starts_with("-----BEGIN PRIVATE KEY-----") {
                keys.push(SigningKey::from_pem(block)?.public);
            }
            rest = &section[end..];
        }
        if keys.is_empty() {
            let why = "data does not contain any valid RSA or ECDSA public keys".into();
            return Err(ConfigError::Unusable { what: VERIFYING, why });
        }
        Ok(keys)
    }

    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match self.algorithm {
            Algorithm::Es256 => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.key).verify(message, signature)
            }
            Algorithm::Rs256 => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.key).verify(message, signature)
            }
        }
        .is_ok()
    }

    /// Returns the key as a JSON Web Key.
    pub fn jwk(&self) -> Value {
        let common = json!({"use": "sig", "kid": self.id, "alg": self.algorithm.name()});
        let mut jwk = common;
        match self.algorithm {
            Algorithm::Es256 => {
                jwk["kty"] = "EC".into();
                jwk["crv"] = "P-256".into();
                jwk["x"] = BASE64.encode(self.key.get(1..33).unwrap_or_default()).into();
                jwk["y"] = BASE64.encode(self.key.get(33..65).unwrap_or_default()).into();
            }
            Algorithm::Rs256 => {
                if let Ok((_, rsa)) = x509_parser::public_key::RSAPublicKey::from_der(&self.key) {
                    let trim = |n: &[u8]| {
                        let zeros = n.iter().take_while(|b| **b == 0).count();
                        BASE64.encode(&n[zeros..])
                    };
                    jwk["kty"] = "RSA".into();
                    jwk["n"] = trim(rsa.modulus).into();
                    jwk["e"] = trim(rsa.exponent).into();
                }
            }
        }
        jwk
    }
}

/// Encodes one DER value with its tag and length.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let n = content.len();
    if n < 0x80 {
        out.push(n as u8);
    } else {
        let bytes = n.to_be_bytes();
        let zeros = bytes.iter().take_while(|b| **b == 0).count();
        out.push(0x80 | (bytes.len() - zeros) as u8);
        out.extend_from_slice(&bytes[zeros..]);
    }
    out.extend_from_slice(content);
    out
}
