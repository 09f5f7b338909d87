//! Every field of every served type has a row in `ledger/`, and every row is true: see docs/fields.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use knarr_api::resources;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::{self, Struct, Type};

/// The numbers of rows in classes that nothing checks. They may only decrease, except with a new resource.
const UNCHECKED: &[(&str, usize)] = &[("data", 109), ("unset", 34)];

/// Types of queries and bodies that no resource refers to.
const OPTIONS: &[&str] = &[
    "io.k8s.api.core.v1.PodLogOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.CreateOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.GetOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.ListOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.PatchOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.UpdateOptions",
];

/// The file with the warnings about fields.
const WARNINGS: &str = "crates/registry/src/unsupported.rs";

/// One line of a table: `PodSpec.volumes acted FILE …`. A field below a dropped one: `dropped FILE with PARENT`.
struct Row {
    /// The name of the table without its extension: `core.v1`.
    group: String,
    /// `PodSpec.volumes`, `*.kind`, or a longer path such as `EphemeralContainer.resources.limits`.
    key: String,
    class: String,
    /// The rest of the line without the comment.
    rest: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the table of a type: those of `io.k8s.api.core.v1` are in `core.v1.txt`.
fn group(of: &Struct) -> String {
    let mut parts: Vec<&str> = of.name.rsplit('.').skip(1).take(2).collect();
    parts.reverse();
    parts.join(".")
}

fn rows() -> Vec<Row> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ledger");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut rows = Vec::new();
    for file in files {
        let group = file.file_stem().unwrap().to_str().unwrap().to_owned();
        for line in fs::read_to_string(&file).unwrap().lines() {
            let line = line.split('#').next().unwrap().trim();
            if line.is_empty() {
                continue;
            }
            let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (class, rest) = rest.trim_start().split_once(' ').unwrap_or_default();
            let [key, class, rest] = [key, class, rest.trim_start()].map(str::to_owned);
            assert!(!rest.is_empty(), "{group}.txt: not a row: {line}");
            rows.push(Row { group: group.clone(), key, class, rest });
        }
    }
    rows
}

/// Returns the top-level types of requests and answers.
fn kinds() -> Vec<&'static Struct> {
    let mut kinds = Vec::new();
    let mut add = |group: &str, version: &str, kind: &str| {
        let found = schema::for_kind(&GroupVersionKind::new(group, version, kind));
        kinds.push(found.unwrap_or_else(|| panic!("no schema of {group}/{version} {kind}")));
    };
    for resource in resources::all().iter().chain(resources::on_request()) {
        let types = &resource.types;
        add(types.group, types.version, types.kind);
        if resource.is_stored() {
            add(types.group, types.version, resource.list_kind);
        }
        for (group, version, kind) in resource.subresources.iter().filter_map(|s| s.body) {
            add(group, version, kind);
        }
    }
    for name in OPTIONS {
        kinds.push(schema::for_definition(name).unwrap_or_else(|| panic!("no schema of {name}")));
    }
    kinds
}

/// Returns all types that the kinds contain, by group and name.
fn types(kinds: &[&'static Struct]) -> BTreeMap<(String, &'static str), &'static Struct> {
    let mut found = BTreeMap::new();
    let mut open = kinds.to_vec();
    while let Some(next) = open.pop() {
        if found.insert((group(next), next.short_name()), next).is_none() {
            open.extend(next.fields.iter().filter_map(|field| below(field.ty)));
        }
    }
    found
}

/// Returns the struct of a type, of its elements or of its values.
fn below(ty: Type) -> Option<&'static Struct> {
    match ty {
        Type::Struct(of) => Some(of),
        Type::List(list) => below(list.element),
        Type::Map(map) => below(map.value),
        _ => None,
    }
}

/// Returns the name of the field at the end of a row's path, if the path is valid.
fn leads_to<'a>(of: &'static Struct, path: &'a str) -> Option<&'a str> {
    let Some((first, rest)) = path.split_once('.') else {
        return of.field(path).map(|_| path);
    };
    leads_to(below(of.field(first)?.ty)?, rest)
}

#[test]
fn every_field_has_a_row_and_every_row_a_field() {
    let kinds = kinds();
    let types = types(&kinds);
    let rows = rows();
    let keys: BTreeSet<(&str, &str)> = rows.iter().map(|r| (r.group.as_str(), r.key.as_str())).collect();
    let of_kinds: BTreeSet<&str> =
        rows.iter().filter_map(|r| r.key.strip_prefix("*.")).filter(|f| !f.contains('.')).collect();
    let mut wrong = Vec::new();
    for ((group, name), of) in &types {
        let is_kind = kinds.iter().any(|k| k.name == of.name);
        for field in of.fields {
            let key = format!("{name}.{}", field.name);
            let has_row = keys.contains(&(group.as_str(), key.as_str()));
            let is_of_kinds = is_kind && of_kinds.contains(field.name);
            if !has_row && !is_of_kinds {
                wrong.push(format!("{group}.txt: no row for {key}"));
            }
        }
    }
    for row in &rows {
        let (name, path) = row.key.split_once('.').unwrap_or((&row.key, ""));
        let known = match types.get(&(row.group.clone(), name)) {
            Some(of) => leads_to(of, path).is_some(),
            None => name == "*" && kinds.iter().any(|k| k.field(path).is_some()),
        };
        if !known {
            wrong.push(format!("{}.txt: {}: there is no such field", row.group, row.key));
        }
    }
    let mut seen = BTreeSet::new();
    for row in &rows {
        if !seen.insert((&row.group, &row.key, &row.class)) {
            wrong.push(format!("{}.txt: {}: two rows of one class", row.group, row.key));
        }
    }
    assert!(wrong.is_empty(), "see docs/fields.md\n{}", wrong.join("\n"));
}

#[test]
fn every_warning_has_a_row() {
    let text = code(&fs::read_to_string(root().join(WARNINGS)).unwrap());
    let table = text.split("const fn pods").next().unwrap();
    let sentences = table.split('"').skip(1).step_by(2).filter(|literal| literal.contains(' '));
    let rows = rows();
    for sentence in sentences {
        let has_row = rows.iter().any(|row| row.class == "warned" && sentence.contains(&row.rest));
        assert!(has_row, "no row for the warning: {sentence}");
    }
}

#[test]
fn what_the_rows_say_is_so() {
    let mut texts = BTreeMap::new();
    let mut wrong = Vec::new();
    let rows = rows();
    for row in &rows {
        if let Err(why) = check(row, &mut texts) {
            wrong.push(format!("{}.txt: {}: {why}", row.group, row.key));
        }
    }
    assert!(wrong.is_empty(), "see docs/fields.md\n{}", wrong.join("\n"));
    for (class, count) in UNCHECKED {
        let now = rows.iter().filter(|r| r.class == *class).count();
        assert_eq!(now, *count, "rows of the class {class}; if there are fewer, lower the number");
    }
}

fn check(row: &Row, texts: &mut BTreeMap<String, Rc<Source>>) -> Result<(), String> {
    let field = row.key.rsplit('.').next().unwrap_or("");
    let mut text_of = |file: &str| -> Result<Rc<Source>, String> {
        if let Some(text) = texts.get(file) {
            return Ok(Rc::clone(text));
        }
        let text = fs::read_to_string(root().join(file)).map_err(|_| format!("there is no file {file}"))?;
        let source = Rc::new(Source::new(if file.ends_with(".rs") { code(&text) } else { text }));
        texts.insert(file.to_owned(), Rc::clone(&source));
        Ok(source)
    };
    match row.class.as_str() {
        "dropped" => {
            let (file, parent) = row.rest.split_once(" with ").unwrap_or((&row.rest, field));
            if !text_of(file)?.mentions(parent) {
                return Err(format!("{file} does not mention {parent}"));
            }
        }
        "acted" | "written" => {
            for file in row.rest.split_whitespace() {
                let stem = file.rsplit('/').next().unwrap_or("");
                let no_actor = ["tests/", "/validation/"].iter().any(|part| file.contains(part))
                    || ["tests.rs", "validation.rs", "defaults.rs"].iter().any(|end| stem.ends_with(end));
                if no_actor {
                    return Err(format!("{file} acts on nothing"));
                }
                if !text_of(file)?.mentions(field) {
                    return Err(format!("{file} does not mention it"));
                }
            }
        }
        "refused" => {
            let (file, message) = row.rest.split_once(' ').ok_or("wants a file and a message")?;
            says(&text_of(file)?, file, message)?;
        }
        "warned" => match row.rest.split_once(' ') {
            Some((file, message)) if file.ends_with(".rs") => says(&text_of(file)?, file, message)?,
            _ => says(&text_of(WARNINGS)?, WARNINGS, &row.rest)?,
        },
        "data" | "unset" => {}
        other => return Err(format!("{other} is not a class")),
    }
    Ok(())
}

fn says(source: &Rc<Source>, file: &str, message: &str) -> Result<(), String> {
    let found = source.text.contains(message.trim());
    if found { Ok(()) } else { Err(format!("{file} does not say {message}")) }
}

/// Returns the code without comments and tests, in one line, so that continued strings are complete.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let opens = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.peek().is_some_and(opens) {
            break;
        }
        let line = line.trim_start();
        if line.starts_with("//") {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(start) => out.push_str(start),
            None => {
                out.push_str(line);
                out.push(' ');
            }
        }
    }
    out
}

/// The code of a file, and its identifiers.
struct Source {
    text: String,
    /// As written.
    names: BTreeSet<String>,
    /// Those without capitals, as Rust writes fields, with underscores removed.
    plain: BTreeSet<String>,
}

impl Source {
    fn new(text: String) -> Self {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let names: BTreeSet<String> = text.split(|c| !is_part(c)).map(str::to_owned).collect();
        let is_lower = |name: &&String| !name.contains(|c: char| c.is_ascii_uppercase());
        let plain = names.iter().filter(is_lower).map(|name| plain(name)).collect();
        Self { text, names, plain }
    }

    /// Returns whether the code has the field's name, as JSON or as Rust writes it.
    fn mentions(&self, field: &str) -> bool {
        // `$ref` and `x-kubernetes-map-type` are not Rust identifiers.
        let quoted = field.contains(['$', '-']) && self.text.contains(&format!("\"{field}\""));
        quoted || self.names.contains(field) || self.plain.contains(&plain(field))
    }
}

fn plain(name: &str) -> String {
    name.replace(['_', '-', '$'], "").to_ascii_lowercase()
}

#[test]
fn mentions_are_whole_names() {
    let mentions = |text: &str, field: &str| Source::new(text.to_owned()).mentions(field);
    assert!(mentions("spec.host_pid == Some(true)", "hostPID"));
    assert!(mentions("value[\"hostPID\"]", "hostPID"));
    assert!(mentions("o.type_.as_deref()", "type"));
    assert!(mentions("s.x_kubernetes_map_type", "x-kubernetes-map-type"));
    assert!(!mentions("host_pids, HostPid", "hostPID"));
    assert!(!mentions(&code("fn a() {}\n// host_pid\n#[cfg(test)]\nmod tests {\nhost_pid\n}"), "hostPID"));
    assert_eq!(code("a(\"one \\\n    two\")\n"), "a(\"one two\") ");
}
