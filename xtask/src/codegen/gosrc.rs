//! Parses the struct and type declarations of Go source files: the subset of the language that gofmt'd API
//! types use.

use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context, Result, bail};

use super::modules::Modules;

/// All packages read so far.
pub struct Sources<'a> {
    modules: &'a Modules,
    packages: BTreeMap<String, Rc<Package>>,
}

/// One Go package.
#[derive(Default)]
pub struct Package {
    /// The name in its package clause, which error messages show.
    pub name: String,
    pub types: BTreeMap<String, Declaration>,
}

/// `type X …`.
pub struct Declaration {
    pub kind: Kind,
    /// Import paths by local name, of the declaring file.
    pub imports: Rc<BTreeMap<String, String>>,
    pub markers: Vec<String>,
}

pub enum Kind {
    Struct(Vec<Field>),
    Named(String),
    Alias(String),
}

/// One field of a Go struct.
#[derive(Debug)]
pub struct Field {
    pub embedded: bool,
    /// The type expression as written.
    pub ty: String,
    pub tag: Tag,
    pub markers: Vec<String>,
}

/// The contents of the struct tag.
#[derive(Debug, Default, PartialEq)]
pub struct Tag {
    /// JSON name; empty for inlined structs.
    pub json: String,
    pub omitempty: bool,
    pub omitzero: bool,
    /// The protobuf number; 0 if there is none.
    pub number: u32,
    pub patch_strategy: String,
    pub patch_merge_key: String,
}

impl<'a> Sources<'a> {
    pub fn new(modules: &'a Modules) -> Self {
        Self { modules, packages: BTreeMap::new() }
    }

    /// Returns the package with this import path.
    pub fn package(&mut self, import: &str) -> Result<Rc<Package>> {
        if let Some(package) = self.packages.get(import) {
            return Ok(package.clone());
        }
        let dir = self
            .modules
            .package_dir(import)
            .with_context(|| format!("package {import} lies in no fetched module"))?;
        let mut files: Vec<_> =
            std::fs::read_dir(&dir)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
        files.sort();
        let mut package = Package::default();
        for file in files {
            let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let generated = name.starts_with("zz_generated") || name.starts_with("generated.");
            if name.ends_with(".go") && !name.ends_with("_test.go") && !generated {
                let text = std::fs::read_to_string(&file)?;
                parse_file(&text, &mut package).with_context(|| format!("parsing {}", file.display()))?;
            }
        }
        let package = Rc::new(package);
        self.packages.insert(import.to_owned(), package.clone());
        Ok(package)
    }
}

fn parse_file(text: &str, package: &mut Package) -> Result<()> {
    let imports = Rc::new(parse_imports(text));
    let mut markers: Vec<String> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(comment) = line.strip_prefix("//") {
            note_marker(comment, &mut markers);
        } else if let Some(name) = line.strip_prefix("package ") {
            package.name = name.trim().to_owned();
            markers.clear();
        } else if let Some(rest) = line.strip_prefix("type ") {
            let markers = std::mem::take(&mut markers);
            let (name, rest) = rest.split_once(' ').context("type without a name")?;
            let kind = if rest == "struct {" {
                Kind::Struct(parse_fields(&mut lines)?)
            } else if rest == "struct{}" {
                Kind::Struct(Vec::new())
            } else if let Some(target) = rest.strip_prefix("= ") {
                Kind::Alias(strip_comment(target).to_owned())
            } else {
                Kind::Named(strip_comment(rest).to_owned())
            };
            let declaration = Declaration { kind, imports: imports.clone(), markers };
            package.types.insert(name.to_owned(), declaration);
        } else if !line.trim().is_empty() {
            markers.clear();
        }
    }
    Ok(())
}

fn strip_comment(s: &str) -> &str {
    s.split("//").next().unwrap_or(s).trim()
}

fn note_marker(comment: &str, markers: &mut Vec<String>) {
    if let Some(marker) = comment.trim().strip_prefix('+') {
        markers.push(marker.to_owned());
    }
}

/// Parses imports, which are single lines or one parenthesized block.
fn parse_imports(text: &str) -> BTreeMap<String, String> {
    let mut imports = BTreeMap::new();
    let mut inside = false;
    for line in text.lines() {
        let line = line.trim();
        let spec = match line {
            "import (" => {
                inside = true;
                continue;
            }
            ")" if inside => break,
            _ if inside => line,
            _ => match line.strip_prefix("import ") {
                Some(spec) => spec,
                None if line.starts_with("type ") || line.starts_with("func ") => break,
                None => continue,
            },
        };
        let Some((alias, rest)) = spec.split_once('"') else { continue };
        let path = rest.trim_end_matches('"');
        let alias = match alias.trim() {
            "" => path.rsplit('/').next().unwrap_or(path),
            alias => alias,
        };
        imports.insert(alias.to_owned(), path.to_owned());
    }
    imports
}

fn parse_fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    let mut markers = Vec::new();
    let mut in_block_comment = false;
    for line in lines {
        if line == "}" {
            return Ok(fields);
        }
        let line = line.trim();
        if in_block_comment || line.starts_with("/*") {
            in_block_comment = !line.ends_with("*/");
        } else if let Some(comment) = line.strip_prefix("//") {
            note_marker(comment, &mut markers);
        } else if !line.is_empty() {
            let field = parse_field(line, std::mem::take(&mut markers))?;
            fields.extend(field);
        }
    }
    bail!("a struct has no end")
}

/// Parses a field line; `None` if JSON ignores the field.
fn parse_field(line: &str, markers: Vec<String>) -> Result<Option<Field>> {
    let (declaration, tag) = match line.split_once('`') {
        Some((declaration, rest)) => (declaration.trim(), rest.split('`').next().unwrap_or_default()),
        None => (strip_comment(line), ""),
    };
    let (name, ty) = match declaration.split_once(char::is_whitespace) {
        Some((name, ty)) => (name, ty.trim()),
        None => ("", declaration),
    };
    let unexported = name.starts_with(|c: char| c.is_lowercase());
    let mut parsed = parse_tag(tag).with_context(|| format!("the tag of {line:?}"))?;
    let embedded = name.is_empty();
    if unexported || parsed.json == "-" {
        return Ok(None);
    }
    if parsed.json.is_empty() && !embedded {
        parsed.json = name.to_owned();
    }
    Ok(Some(Field { embedded, ty: ty.to_owned(), tag: parsed, markers }))
}

fn parse_tag(tag: &str) -> Result<Tag> {
    let mut parsed = Tag::default();
    let mut rest = tag.trim();
    while let Some((key, after)) = rest.split_once(":\"") {
        let (value, after) = after.split_once('"').context("a tag value has no end")?;
        rest = after.trim_start();
        match key {
            "json" => {
                let mut parts = value.split(',');
                parsed.json = parts.next().unwrap_or_default().to_owned();
                for option in parts {
                    parsed.omitempty |= option == "omitempty";
                    parsed.omitzero |= option == "omitzero";
                }
            }
            "protobuf" if value != "-" => {
                let number = value.split(',').nth(1).context("no protobuf number")?;
                parsed.number = number.parse()?;
            }
            "patchStrategy" => parsed.patch_strategy = value.to_owned(),
            "patchMergeKey" => parsed.patch_merge_key = value.to_owned(),
            _ => {}
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Protocol is a name.
// +enum
type Protocol string

type Old = Protocol

// Port is a port.
type Port struct {
	metav1.TypeMeta `json:",inline"`
	// What.
	// +optional
	// +default="TCP"
	Protocol *Protocol `json:"protocol,omitempty" patchStrategy:"merge" patchMergeKey:"a" protobuf:"bytes,4,opt,name=protocol,casttype=Protocol"`
	hidden int
	Skipped int `json:"-"`
}
"#;

    #[test]
    fn reads_declarations() {
        let mut package = Package::default();
        parse_file(SOURCE, &mut package).unwrap();
        assert_eq!(package.name, "v1");
        assert_eq!(package.types["Protocol"].markers, ["enum"]);
        assert!(matches!(&package.types["Old"].kind, Kind::Alias(t) if t == "Protocol"));
        let Kind::Struct(fields) = &package.types["Port"].kind else { panic!("not a struct") };
        assert_eq!(fields.len(), 2);
        assert!(fields[0].embedded && fields[0].tag.json.is_empty());
        assert_eq!(fields[1].ty, "*Protocol");
        assert_eq!(fields[1].markers, ["optional", "default=\"TCP\""]);
        let tag = Tag {
            json: "protocol".into(),
            omitempty: true,
            omitzero: false,
            number: 4,
            patch_strategy: "merge".into(),
            patch_merge_key: "a".into(),
        };
        assert_eq!(fields[1].tag, tag);
        let imports = &package.types["Port"].imports;
        assert_eq!(imports["metav1"], "k8s.io/apimachinery/pkg/apis/meta/v1");
        assert_eq!(imports["resource"], "k8s.io/apimachinery/pkg/api/resource");
    }
}
