//! Rules for names: DNS labels, subdomains, label keys and values, ports, environment variables, generated names.
//!
//! Each rule returns the problems with upstream's texts; an empty list means that the value is valid.
//! Sources: `k8s.io/apimachinery/pkg/util/validation`, `pkg/api/validate/content`, `pkg/util/rand`.

/// The longest DNS-1123 and DNS-1035 label.
pub const DNS_LABEL_MAX: usize = 63;
/// The longest DNS-1123 subdomain.
pub const DNS_SUBDOMAIN_MAX: usize = 253;
/// The longest name part of a label key, and the longest label value.
pub const LABEL_MAX: usize = 63;
/// The longest name that `generateName` produces.
pub const GENERATED_NAME_MAX: usize = 63;

const SUFFIX_LENGTH: usize = 5;
/// Without vowels, so that no real words appear by chance.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

const DNS_LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_WORDS: &str = "must consist of alphanumeric characters, '-', '_' or '.', \
     and must start and end with an alphanumeric character";

/// The problems of a name; empty if it is valid.
pub type Problems = Vec<String>;

fn regex_problem(rule: &str, format: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    if examples.is_empty() {
        return format!("{rule} (regex used for validation is '{format}')");
    }
    format!("{rule} (e.g. {}regex used for validation is '{format}')", examples.join(" or "))
}

/// Returns `must be no more than N characters`.
pub fn max_length_problem(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Returns `must be between A and B, inclusive`.
pub fn inclusive_range_problem(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

fn is_lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Returns whether the text is not empty, starts and ends with `edge`, and has `inner` between.
fn framed(
    s: &str,
    first: impl Fn(u8) -> bool,
    inner: impl Fn(u8) -> bool,
    last: impl Fn(u8) -> bool,
) -> bool {
    match s.as_bytes() {
        [] => false,
        [one] => first(*one),
        [a, middle @ .., z] => first(*a) && last(*z) && middle.iter().all(|b| inner(*b)),
    }
}

fn label_matches(s: &str) -> bool {
    framed(s, is_lower_alnum, |b| is_lower_alnum(b) || b == b'-', is_lower_alnum)
}

fn subdomain_matches(s: &str) -> bool {
    s.split('.').all(label_matches)
}

fn label_key_name_matches(s: &str) -> bool {
    let edge = |b: u8| b.is_ascii_alphanumeric();
    framed(s, edge, |b| edge(b) || matches!(b, b'-' | b'_' | b'.'), edge)
}

/// Checks a DNS-1123 label: most object names that become part of a DNS name or a host name.
pub fn dns1123_label(value: &str) -> Problems {
    let mut problems = Problems::new();
    if value.len() > DNS_LABEL_MAX {
        problems.push(max_length_problem(DNS_LABEL_MAX));
    }
    if !label_matches(value) {
        if subdomain_matches(value) {
            problems.push("must not contain dots".to_owned());
        } else {
            problems.push(regex_problem(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                 and must start and end with an alphanumeric character",
                DNS_LABEL_FORMAT,
                &["my-name", "123-abc"],
            ));
        }
    }
    problems
}

fn subdomain_format() -> String {
    format!("{DNS_LABEL_FORMAT}(\\.{DNS_LABEL_FORMAT})*")
}

/// Checks a DNS-1123 subdomain: the usual rule for object names.
pub fn dns1123_subdomain(value: &str) -> Problems {
    subdomain(value, max_length_problem(DNS_SUBDOMAIN_MAX))
}

fn subdomain(value: &str, too_long: String) -> Problems {
    let mut problems = Problems::new();
    if value.len() > DNS_SUBDOMAIN_MAX {
        problems.push(too_long);
    }
    if !subdomain_matches(value) {
        problems.push(regex_problem(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character",
            &subdomain_format(),
            &["example.com"],
        ));
    }
    problems
}

/// Checks a subdomain after `*.`, which Ingress hosts may be.
pub fn wildcard_dns1123_subdomain(value: &str) -> Problems {
    let mut problems = Problems::new();
    if value.len() > DNS_SUBDOMAIN_MAX {
        problems.push(max_length_problem(DNS_SUBDOMAIN_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(subdomain_matches) {
        problems.push(regex_problem(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
             consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!("\\*\\.{}", subdomain_format()),
            &["*.example.com"],
        ));
    }
    problems
}

/// Checks a subdomain whose labels may contain underscores (DNS search domains).
pub fn dns1123_subdomain_with_underscore(value: &str) -> Problems {
    let label = |s: &str| {
        let s = s.strip_prefix('_').unwrap_or(s);
        framed(s, is_lower_alnum, |b| is_lower_alnum(b) || matches!(b, b'-' | b'_'), is_lower_alnum)
    };
    let mut problems = Problems::new();
    if value.len() > DNS_SUBDOMAIN_MAX {
        problems.push(max_length_problem(DNS_SUBDOMAIN_MAX));
    }
    if !value.split('.').all(label) {
        let format = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
        problems.push(regex_problem(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
             and must start and end with an alphanumeric character",
            &format!("{format}(\\.{format})*"),
            &["example.com"],
        ));
    }
    problems
}

/// Checks a DNS-1035 label: the rule for Service names.
pub fn dns1035_label(value: &str) -> Problems {
    let mut problems = Problems::new();
    if value.len() > DNS_LABEL_MAX {
        problems.push(max_length_problem(DNS_LABEL_MAX));
    }
    let inner = |b| is_lower_alnum(b) || b == b'-';
    if !framed(value, |b| b.is_ascii_lowercase(), inner, is_lower_alnum) {
        problems.push(regex_problem(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', \
             start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    problems
}

/// Checks a label key (upstream also says "qualified name"): `name` or `prefix.example.com/name`.
pub fn label_key(value: &str) -> Problems {
    let examples = ["MyName", "my.name", "123-abc"];
    let mut problems = Problems::new();
    let mut parts = value.split('/');
    let (prefix, name) = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => (None, name),
        (Some(prefix), Some(name), None) => (Some(prefix), name),
        _ => {
            problems.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                regex_problem(LABEL_KEY_WORDS, LABEL_KEY_FORMAT, &examples)
            ));
            return problems;
        }
    };
    match prefix {
        Some("") => problems.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            let too_long = format!("must be no more than {DNS_SUBDOMAIN_MAX} bytes");
            problems.extend(subdomain(prefix, too_long).into_iter().map(|p| format!("prefix part {p}")));
        }
        None => {}
    }
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        problems.push(format!("name part must be no more than {LABEL_MAX} bytes"));
    }
    if !label_key_name_matches(name) {
        problems.push(format!("name part {}", regex_problem(LABEL_KEY_WORDS, LABEL_KEY_FORMAT, &examples)));
    }
    problems
}

/// Checks a label value.
pub fn label_value(value: &str) -> Problems {
    let mut problems = Problems::new();
    if value.len() > LABEL_MAX {
        problems.push(format!("must be no more than {LABEL_MAX} bytes"));
    }
    if !value.is_empty() && !label_key_name_matches(value) {
        problems.push(regex_problem(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
             and must start and end with an alphanumeric character",
            &format!("({LABEL_KEY_FORMAT})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    problems
}

/// Checks a name that needs only to be safe in a URL path (RBAC roles and bindings).
pub fn path_segment_name(name: &str) -> Problems {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    path_segment_prefix(name)
}

/// Checks the prefix of such a name, to which more is appended.
pub fn path_segment_prefix(name: &str) -> Problems {
    ["/", "%"].iter().filter(|c| name.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// Checks a port name (IANA service name).
pub fn port_name(port: &str) -> Problems {
    let mut problems = Problems::new();
    if port.len() > 15 {
        problems.push(max_length_problem(15));
    }
    if port.is_empty() || !port.bytes().all(|b| is_lower_alnum(b) || b == b'-') {
        problems.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !port.bytes().any(|b| b.is_ascii_lowercase()) {
        problems.push("must contain at least one letter (a-z)".to_owned());
    }
    if port.contains("--") {
        problems.push("must not contain consecutive hyphens".to_owned());
    }
    if port.starts_with('-') || port.ends_with('-') {
        problems.push("must not begin or end with a hyphen".to_owned());
    }
    problems
}

/// Checks a port number, 1 to 65535.
pub fn port_number(port: i64) -> Problems {
    in_range(port, 1, 65535)
}

/// Checks a number against two inclusive bounds.
pub fn in_range(value: i64, low: i64, high: i64) -> Problems {
    if (low..=high).contains(&value) { Problems::new() } else { vec![inclusive_range_problem(low, high)] }
}

/// Checks a user or group id.
pub fn user_or_group_id(id: i64) -> Problems {
    in_range(id, 0, i64::from(i32::MAX))
}

/// Checks a percentage: `25%`.
pub fn percent(value: &str) -> Problems {
    let digits = value.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Problems::new();
    }
    vec![regex_problem(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// Checks an HTTP header name of a probe or hook.
pub fn http_header_name(value: &str) -> Problems {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Problems::new();
    }
    vec![regex_problem(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// Checks an environment variable name by the relaxed rule, which is the current one.
pub fn env_var_name(value: &str) -> Problems {
    let mut problems = Problems::new();
    if value.is_empty() {
        problems.push("environment variable name must be non-empty".to_owned());
    }
    if !value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        problems.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        );
    }
    problems
}

/// Checks an environment variable name by the strict rule, which `envFrom` once required.
pub fn strict_env_var_name(value: &str) -> Problems {
    let letter = |b: u8| b.is_ascii_alphabetic() || matches!(b, b'-' | b'.' | b'_');
    let later = |b: u8| letter(b) || b.is_ascii_digit();
    let mut problems = Problems::new();
    if !framed(value, letter, later, later) {
        problems.push(regex_problem(
            "a valid environment variable name must consist of alphabetic characters, digits, '_', '-', or '.', \
             and must not start with a digit",
            "[-._a-zA-Z][-._a-zA-Z0-9]*",
            &["my.env-name", "MY_ENV.NAME", "MyEnvName1"],
        ));
    }
    problems.extend(parent_directory_prefix(value));
    problems
}

/// Checks a C identifier.
pub fn c_identifier(value: &str) -> Problems {
    let letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    let later = |b: u8| letter(b) || b.is_ascii_digit();
    if framed(value, letter, later, later) {
        return Problems::new();
    }
    vec![regex_problem(
        "a valid C identifier must start with alphabetic character or '_', \
         followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// Checks a key of a ConfigMap's or Secret's data.
pub fn config_map_key(value: &str) -> Problems {
    let mut problems = Problems::new();
    if value.len() > DNS_SUBDOMAIN_MAX {
        problems.push(max_length_problem(DNS_SUBDOMAIN_MAX));
    }
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if value.is_empty() || !value.bytes().all(ok) {
        problems.push(regex_problem(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    problems.extend(parent_directory_prefix(value));
    problems
}

fn parent_directory_prefix(value: &str) -> Option<String> {
    match value {
        "." | ".." => Some(format!("must not be '{value}'")),
        v if v.starts_with("..") => Some("must not start with '..'".to_owned()),
        _ => None,
    }
}

/// Checks the `reason` of a condition.
pub fn condition_reason(value: &str) -> Problems {
    let last = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if framed(value, |b| b.is_ascii_alphabetic(), |b| last(b) || matches!(b, b',' | b':'), last) {
        return Problems::new();
    }
    vec![regex_problem(
        "a condition reason must start with alphabetic character, optionally followed by a string of \
         alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

/// Replaces the trailing dash of a `generateName`, which is valid because characters follow it, for rules on whole
/// names.
pub fn mask_trailing_dash(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => {
            let mut masked: String = rest.to_owned();
            masked.pop();
            masked.push('a');
            masked
        }
        _ => prefix.to_owned(),
    }
}

/// Returns `length` characters of the alphabet of generated names, from this random source.
pub fn random_suffix(rng: &mut fastrand::Rng, length: usize) -> String {
    (0..length).map(|_| char::from(ALPHABET[rng.usize(..ALPHABET.len())])).collect()
}

/// Generates a name from a `generateName`: the base, cut so that the name has at most 63 characters, and 5 random
/// characters.
pub fn generate_name(rng: &mut fastrand::Rng, base: &str) -> String {
    let mut end = base.len().min(GENERATED_NAME_MAX - SUFFIX_LENGTH);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &base[..end], random_suffix(rng, SUFFIX_LENGTH))
}

/// Encodes a text, such as the decimal form of a hash, in the alphabet of generated names.
pub fn safe_encode(s: &str) -> String {
    s.chars().map(|c| char::from(ALPHABET[c as usize % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_names() {
        let label_words = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
             and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', \
             regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        assert!(dns1123_label("a").is_empty());
        assert!(dns1123_label("0-a").is_empty());
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns1123_label("A"), [label_words]);
        assert_eq!(dns1123_label(""), [label_words]);
        assert_eq!(dns1123_label("é"), [label_words]);
        assert_eq!(dns1123_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert!(dns1123_subdomain("a-b.c").is_empty());
        assert_eq!(
            dns1123_subdomain("Web_1"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
              and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation \
              is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        for bad in ["a..b", ".a", "a.", "-a", "a-"] {
            assert_eq!(dns1123_subdomain(bad).len(), 1, "{bad}");
        }
        assert!(dns1035_label("a1").is_empty());
        assert_eq!(dns1035_label("1a").len(), 1);
        assert!(wildcard_dns1123_subdomain("*.example.com").is_empty());
        assert_eq!(wildcard_dns1123_subdomain("example.com").len(), 1);
        assert!(dns1123_subdomain_with_underscore("_srv.a_b").is_empty());
    }

    #[test]
    fn labels() {
        for good in ["a", "A.b_c-d", "example.com/x", "1"] {
            assert!(label_key(good).is_empty(), "{good}");
        }
        assert_eq!(
            label_key("a b"),
            [
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
              alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
              '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
        assert_eq!(label_key("/a"), ["prefix part must be non-empty"]);
        assert_eq!(label_key("a/")[0], "name part must be non-empty");
        assert!(label_key("a/b/c")[0].starts_with("a valid label key must consist of"));
        assert_eq!(label_key(&"a".repeat(64)), ["name part must be no more than 63 bytes"]);
        assert!(label_key(&format!("{}/a", "a".repeat(254)))[0].ends_with("no more than 253 bytes"));
        assert!(label_value("").is_empty());
        assert!(label_value("a.B_c").is_empty());
        assert_eq!(label_value("-a").len(), 1);
        assert_eq!(label_value(&"a".repeat(64)), ["must be no more than 63 bytes"]);
    }

    #[test]
    fn other_names() {
        assert!(port_name("http-1").is_empty());
        assert_eq!(port_name("80"), ["must contain at least one letter (a-z)"]);
        assert_eq!(port_name("a--b"), ["must not contain consecutive hyphens"]);
        assert_eq!(port_name("").len(), 2);
        assert_eq!(port_number(0), ["must be between 1 and 65535, inclusive"]);
        assert!(env_var_name("a b").is_empty());
        assert_eq!(env_var_name("a=b").len(), 1);
        assert_eq!(env_var_name("é").len(), 1);
        assert!(strict_env_var_name("a.b").is_empty());
        assert_eq!(strict_env_var_name("1a").len(), 1);
        assert_eq!(config_map_key(".."), ["must not be '..'"]);
        assert_eq!(config_map_key("..a"), ["must not start with '..'"]);
        assert!(config_map_key(".a").is_empty());
        assert_eq!(path_segment_name("."), ["may not be '.'"]);
        assert_eq!(path_segment_name("a/%"), ["may not contain '/'", "may not contain '%'"]);
        assert!(path_segment_name("system:node").is_empty());
        assert!(percent("25%").is_empty());
        assert_eq!(percent("%").len(), 1);
        assert!(http_header_name("X-A").is_empty());
        assert!(c_identifier("_a1").is_empty());
        assert_eq!(c_identifier("1a").len(), 1);
        assert!(condition_reason("A:b").is_empty());
        assert_eq!(condition_reason("A:").len(), 1);
        assert_eq!(mask_trailing_dash("web-"), "wea");
        assert_eq!(mask_trailing_dash("-"), "-");
    }

    #[test]
    fn generated() {
        let mut rng = fastrand::Rng::with_seed(1);
        let name = generate_name(&mut rng, "web-");
        assert_eq!(name.len(), 9);
        assert!(dns1123_label(&name).is_empty());
        let long = generate_name(&mut rng, &"é".repeat(60));
        assert!(long.len() <= 63);
        assert_eq!(generate_name(&mut rng, &"a".repeat(200)).len(), 63);
        assert_eq!(safe_encode("1234567890"), "56789bcdf4");
    }
}
