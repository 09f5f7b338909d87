//! The index of all documents, and the hashes of their contents.

use serde_json::{Map, Value, json};

/// Returns the index at `/openapi/v3`, from the path of each document
/// ([`group_version_path`](super::group_version_path)) and its [`hash`].
pub fn index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let paths: Map<String, Value> = documents
        .into_iter()
        .map(|(path, hash)| {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            (path.to_owned(), json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({ "paths": paths })
}

/// Returns a hash of a document's content, so that clients may cache it forever: 128-bit FNV-1a in hexadecimal.
pub fn hash(document: &[u8]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = document.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    format!("{hash:032X}")
}
