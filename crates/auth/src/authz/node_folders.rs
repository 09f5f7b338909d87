//! The permission to have a node create and remove directories of volumes: `nodes/local-path`. It is narrower than
//! `nodes/proxy`, which allows running any command in any container of the node.
//!
//! As with the kubelet's other fine-grained permissions (KEP-2862), either of the two suffices.

use super::Attributes;

const PREFIX: &str = "/api/v1/nodes/";
const FOLDERS: &str = "/proxy/volumes/local-path/";
const SUBRESOURCE: &str = "local-path";

/// Returns the narrower permission that suffices for this request; `path` is its path as it was sent.
pub fn narrower(attributes: &Attributes, path: &str) -> Option<Attributes> {
    let is_proxy = attributes.group.is_empty()
        && (attributes.resource.as_str(), attributes.subresource.as_str()) == ("nodes", "proxy");
    let (node, folder) = path.strip_prefix(PREFIX)?.split_once(FOLDERS)?;
    // Only names that no component can parse differently, and only the kubelet's own port.
    let fits = is_proxy && node == attributes.name && is_plain(node) && is_plain(folder);
    fits.then(|| Attributes { subresource: SUBRESOURCE.to_owned(), ..attributes.clone() })
}

fn is_plain(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_wire::query::Query;
    use knarr_wire::request_info::RequestInfo;

    #[test]
    fn folders_alone_take_the_narrower_right() {
        for (path, narrow) in [
            ("/api/v1/nodes/n1/proxy/volumes/local-path/pvc-1_ns_data", true),
            ("/api/v1/nodes/n1/proxy/volumes/local-path/", false),
            ("/api/v1/nodes/n1/proxy/volumes/local-path/a/b", false),
            ("/api/v1/nodes/n1/proxy/volumes/local-path/..", false),
            ("/api/v1/nodes/n1/proxy/volumes/local-path/%2e%2e", false),
            ("/api/v1/nodes/n1/proxy/volumes/local-path/../../exec/a/b/c", false),
            ("/api/v1/nodes/n1/proxy/exec/ns/pod/volumes/local-path/a", false),
            ("/api/v1/nodes/n1:9000/proxy/volumes/local-path/a", false),
            ("/api/v1/nodes/https:n1:/proxy/volumes/local-path/a", false),
            ("/api/v1/nodes/n1/proxy/exec/ns/pod/c", false),
            ("/api/v1/nodes/n1/status/volumes/local-path/a", false),
            ("/apis/example.com/v1/nodes/n1/proxy/volumes/local-path/a", false),
        ] {
            let query = Query::parse("");
            let info = RequestInfo::parse(&http::Method::POST, path, &query);
            let found = narrower(&Attributes::of_request(&info, &query), path);
            assert_eq!(found.is_some(), narrow, "{path}");
            if let Some(found) = found {
                assert_eq!(
                    (found.full_resource().as_str(), found.verb.as_str()),
                    ("nodes/local-path", "create")
                );
            }
        }
    }
}
