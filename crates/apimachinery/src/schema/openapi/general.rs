//! Documents of paths that are not about a resource: versions, groups, the server's version, the token issuer.

use serde_json::{Map, Value, json};

use super::envelope::with;
use super::paths::{self, group_word, lower_first};
use super::resource::Describe;
use super::schemas;
use crate::schema::for_definition;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const JSON: &str = "application/json";
/// The media types of API objects.
const OBJECTS: &[&str] = &[JSON, "application/yaml", "application/vnd.kubernetes.protobuf"];

/// A GET operation that answers with an object of a definition, or with a string.
struct Get<'a> {
    path: &'a str,
    id: String,
    tag: String,
    description: &'a str,
    definition: Option<String>,
    types: &'a [&'a str],
}

impl Get<'_> {
    fn document(self, describe: Describe<'_>) -> Value {
        let schema = match &self.definition {
            Some(name) => json!({"$ref": format!("#/components/schemas/{name}")}),
            None => json!({"type": "string"}),
        };
        let content: Map<String, Value> =
            self.types.iter().map(|ty| ((*ty).to_owned(), json!({ "schema": schema }))).collect();
        let operation = json!({
            "description": self.description, "operationId": self.id, "tags": [self.tag],
            "responses": {
                "200": {"description": "OK", "content": content},
                "401": {"description": "Unauthorized"},
            },
        });
        let paths = Map::from_iter([(format!("/{}/", self.path), json!({ "get": operation }))]);
        let roots: Vec<_> = self.definition.iter().filter_map(|name| for_definition(name)).collect();
        let mut all = schemas::schemas(&roots, describe);
        all.retain(|name, _| !name.ends_with(".meta.v1.Patch"));
        with(paths, all)
    }
}

/// Returns the documents by path (`api`, `apis/apps`, `version`) for these groups; the core group is the empty
/// string.
pub fn documents(groups: &[&str], describe: Describe<'_>) -> Vec<(String, Value)> {
    let get =
        |path: &str, id: &str, tag: &str, description: &str, definition: Option<&str>, types: &[&str]| {
            let definition = definition.map(str::to_owned);
            let one = Get { path, id: id.to_owned(), tag: tag.to_owned(), description, definition, types };
            (path.to_owned(), one.document(describe))
        };
    let meta = |kind: &str| format!("{META}.{kind}");
    let versions = "get available API versions";
    let mut all = vec![
        get("api", "getCoreAPIVersions", "core", versions, Some(&meta("APIVersions")), OBJECTS),
        get("apis", "getAPIVersions", "apis", versions, Some(&meta("APIGroupList")), OBJECTS),
        get(
            "version",
            "getCodeVersion",
            "version",
            "get the version information for this server",
            Some("io.k8s.apimachinery.pkg.version.Info"),
            &[JSON],
        ),
        get(
            ".well-known/openid-configuration",
            "getServiceAccountIssuerOpenIDConfiguration",
            "WellKnown",
            "get the OpenID configuration of the issuer of service account tokens",
            None,
            &[JSON],
        ),
        get(
            "openid/v1/jwks",
            "getServiceAccountIssuerOpenIDKeyset",
            "openid",
            "get the public keys of the issuer of service account tokens, as a JSON Web Key Set",
            None,
            &["application/jwk-set+json"],
        ),
    ];
    for group in groups.iter().filter(|group| !group.is_empty()) {
        let word = group_word(group);
        all.push(get(
            &format!("apis/{group}"),
            &format!("get{word}APIGroup"),
            &lower_first(&word),
            "get information of a group",
            Some(&meta("APIGroup")),
            OBJECTS,
        ));
    }
    all
}

/// Returns the operation at the path of a group version, which lists its resources.
pub fn resources(group: &str, version: &str) -> Map<String, Value> {
    let scope = paths::group_version_words(group, version);
    let content: Map<String, Value> = OBJECTS
        .iter()
        .map(|ty| {
            let schema = json!({"$ref": format!("#/components/schemas/{META}.APIResourceList")});
            ((*ty).to_owned(), json!({ "schema": schema }))
        })
        .collect();
    Map::from_iter([(
        "get".to_owned(),
        json!({
            "description": "get available resources",
            "operationId": format!("get{}APIResources", scope.id),
            "tags": [scope.tag],
            "responses": {
                "200": {"description": "OK", "content": content},
                "401": {"description": "Unauthorized"},
            },
        }),
    )])
}
