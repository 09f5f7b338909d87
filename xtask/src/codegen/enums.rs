//! Reads permitted values from the server's OpenAPI source, because the published documents leave enums out.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Permitted values by (source function suffix, field), such as (`k8sio_api_core_v1_ContainerPort`,
/// `protocol`).
pub type Enums = BTreeMap<(String, String), Vec<String>>;

/// Returns the function suffix of a Go type: the last four parts of its import path, then its name.
pub fn function_suffix(import: &str, name: &str) -> String {
    let parts: Vec<String> =
        import.split('/').map(|part| part.chars().filter(char::is_ascii_alphanumeric).collect()).collect();
    let last = parts.len().saturating_sub(4);
    format!("{}_{name}", parts[last..].join("_"))
}

pub fn read(server: &Path) -> Result<Enums> {
    let file = server.join("pkg/generated/openapi/zz_generated.openapi.go");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let enums = parse(&text);
    ensure!(enums.len() > 100, "only {} enums in {}", enums.len(), file.display());
    Ok(enums)
}

fn parse(text: &str) -> Enums {
    let (mut function, mut field) = (String::new(), String::new());
    let mut enums = Enums::new();
    for line in text.lines() {
        let trimmed = line.trim_start_matches('\t');
        if let Some(rest) = line.strip_prefix("func schema_") {
            function = rest.split('(').next().unwrap_or_default().to_owned();
        } else if line.len() - trimmed.len() == 5
            && let Some((name, "")) = trimmed.strip_prefix('"').and_then(|r| r.split_once("\": {"))
        {
            field = name.to_owned();
        } else if let Some((_, rest)) = trimmed.split_once("[]interface{}{\"")
            && trimmed.starts_with("Enum:")
        {
            let inner = rest.rsplit_once("\"}").map_or(rest, |(inner, _)| inner);
            let values = inner.split("\", \"").map(str::to_owned).collect();
            enums.insert((function.clone(), field.clone()), values);
        }
    }
    enums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffix_is_the_end_of_the_path() {
        assert_eq!(function_suffix("k8s.io/api/core/v1", "Pod"), "k8sio_api_core_v1_Pod");
        assert_eq!(
            function_suffix("k8s.io/apimachinery/pkg/apis/meta/v1", "Table"),
            "pkg_apis_meta_v1_Table"
        );
    }

    #[test]
    fn values_belong_to_the_last_named_field() {
        let source = "func schema_a_Port(ref common.X) {\n\t\t\t\t\t\"protocol\": {\n\t\t\t\t\t\t\tEnum:        []interface{}{\"SCTP\", \"TCP\"},\n";
        let enums = parse(source);
        assert_eq!(enums[&("a_Port".to_owned(), "protocol".to_owned())], ["SCTP", "TCP"]);
    }
}
