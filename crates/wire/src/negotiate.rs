//! Content negotiation: selects one of the formats and forms that a client accepts.

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT};
use knarr_apimachinery::accept::{Clause, clauses};
use knarr_apimachinery::schema::protobuf;
use knarr_apimachinery::status::StatusError;

use super::query::Query;

/// The format of a serialized value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    #[default]
    Json,
    Yaml,
    Protobuf,
}

/// The form in which the client wants an object or list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    #[default]
    Whole,
    Table,
    /// `PartialObjectMetadata` and its list.
    Metadata,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Negotiated {
    pub format: Format,
    pub form: Form,
    pub pretty: bool,
    pub gzip: bool,
    /// Whether the client asked for metadata as a list.
    pub metadata_list: bool,
    /// Whether the table or the metadata has the version `meta.k8s.io/v1beta1`.
    pub beta: bool,
}

/// The media types of written and accepted bodies, in the order in which upstream lists them.
pub const MEDIA_TYPES: [&str; 3] = ["application/json", "application/yaml", protobuf::MEDIA_TYPE];

/// The media types of a watch.
pub const STREAM_TYPES: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

fn format_of(media: &str) -> Option<Format> {
    match media {
        "application/json" | "*/*" | "application/*" => Some(Format::Json),
        "application/yaml" => Some(Format::Yaml),
        protobuf::MEDIA_TYPE => Some(Format::Protobuf),
        _ => None,
    }
}

/// Returns the form of one clause; `None` if it asks for an unsupported form.
fn form_of(clause: &Clause<'_>) -> Option<Form> {
    let (group, version) = (clause.parameter("g"), clause.parameter("v"));
    let meta = group == "meta.k8s.io" && matches!(version, "v1" | "v1beta1");
    match clause.parameter("as") {
        "" => Some(Form::Whole),
        "Table" if meta => Some(Form::Table),
        "PartialObjectMetadata" | "PartialObjectMetadataList" if meta => Some(Form::Metadata),
        _ => None,
    }
}

fn accept_header(headers: &HeaderMap) -> String {
    let values: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    values.join(",")
}

/// The forms in which an answer is available.
#[derive(Debug, Clone, Copy)]
pub struct Offers {
    /// Whether it is available as a table and as metadata.
    pub forms: bool,
    /// Whether it is available whole in protobuf. Custom resources have no messages, but their metadata does.
    pub messages: bool,
}

/// Selects format and form. `forms` is whether the answer is available as a table and as metadata.
pub fn negotiate(headers: &HeaderMap, query: &Query, forms: bool) -> Result<Negotiated, StatusError> {
    choose(headers, query, Offers { forms, messages: true })
}

/// Selects one of the offered formats and forms.
pub fn choose(headers: &HeaderMap, query: &Query, offers: Offers) -> Result<Negotiated, StatusError> {
    let accept = accept_header(headers);
    let mut result = Negotiated {
        gzip: accepts_gzip(headers),
        pretty: wants_pretty(headers, query),
        ..Negotiated::default()
    };
    if accept.is_empty() {
        return Ok(result);
    }
    for clause in clauses(&accept) {
        let Some(format) = format_of(clause.media) else { continue };
        let Some(form) = form_of(&clause) else { continue };
        // Tables have cells of any type, which a protobuf message cannot contain.
        let no_table = form == Form::Table && format == Format::Protobuf;
        let no_message = form == Form::Whole && format == Format::Protobuf && !offers.messages;
        if no_table
            || no_message
            || (form != Form::Whole && !offers.forms)
            || !matches!(clause.parameter("stream"), "" | "watch")
        {
            continue;
        }
        result.format = format;
        result.form = form;
        result.beta = form != Form::Whole && clause.parameter("v") == "v1beta1";
        result.metadata_list = clause.parameter("as") == "PartialObjectMetadataList";
        result.pretty |= clause.parameter("pretty") == "1";
        return Ok(result);
    }
    Err(StatusError::not_acceptable(&MEDIA_TYPES))
}

/// Negotiates like `negotiate`, but never fails; for errors and other answers that must be written in any case.
pub fn negotiate_leniently(headers: &HeaderMap, query: &Query) -> Negotiated {
    let negotiated = negotiate(headers, query, true).unwrap_or_default();
    Negotiated { form: Form::Whole, beta: false, ..negotiated }
}

/// Returns the format of the first clause that asks for aggregated discovery.
pub fn wants_aggregated_discovery(headers: &HeaderMap) -> Option<Format> {
    clauses(&accept_header(headers)).iter().find_map(|clause| {
        let asked = (clause.parameter("as"), clause.parameter("g"), clause.parameter("v"));
        let known = asked == ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2");
        format_of(clause.media).filter(|_| known)
    })
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',')).any(
        |part| {
            let mut clause = part.split(';').map(str::trim);
            clause.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"))
                && !clause.any(|q| q.strip_prefix("q=").and_then(|q| q.parse().ok()) == Some(0.0f32))
        },
    )
}

/// Returns whether the client gets indented JSON; curl, Wget and browsers get it without asking.
fn wants_pretty(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(asked) = query.optional_flag("pretty") {
        return asked;
    }
    let agent = headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or("");
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|tool| agent.starts_with(tool))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(accept: &str) -> Result<Negotiated, StatusError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        negotiate(&headers, &Query::default(), true)
    }

    #[test]
    fn picks_the_first_that_is_there() {
        for (accept, format, form) in [
            ("application/json", Format::Json, Form::Whole),
            ("*/*", Format::Json, Form::Whole),
            ("application/vnd.kubernetes.protobuf,application/json", Format::Protobuf, Form::Whole),
            ("application/yaml", Format::Yaml, Form::Whole),
            ("application/json;q=0.1, application/yaml", Format::Yaml, Form::Whole),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Format::Json,
                Form::Table,
            ),
            ("application/vnd.kubernetes.protobuf;stream=watch", Format::Protobuf, Form::Whole),
            ("application/vnd.kubernetes.protobuf;stream=x,application/yaml", Format::Yaml, Form::Whole),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1;g=meta.k8s.io",
                Format::Json,
                Form::Table,
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
                Format::Protobuf,
                Form::Metadata,
            ),
            ("application/json;as=Nothing;v=v1;g=meta.k8s.io,application/json", Format::Json, Form::Whole),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Format::Json,
                Form::Metadata,
            ),
        ] {
            let n = of(accept).unwrap();
            assert_eq!((n.format, n.form), (format, form), "{accept}");
        }
    }

    #[test]
    fn custom_resources_have_no_messages() {
        let offers = Offers { forms: true, messages: false };
        let of = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            choose(&headers, &Query::default(), offers).map(|n| n.format).ok()
        };
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(of("application/vnd.kubernetes.protobuf,application/json"), Some(Format::Json));
        assert_eq!(of("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(of(metadata), Some(Format::Protobuf));
    }

    #[test]
    fn aggregated_discovery_is_found_among_other_clauses() {
        for (accept, format) in [
            ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", Some(Format::Json)),
            (
                "application/json,application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                Some(Format::Yaml),
            ),
            ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", None),
            ("application/json", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(wants_aggregated_discovery(&headers), format, "{accept}");
        }
    }

    #[test]
    fn refuses_what_it_cannot_write() {
        let error = of("application/xml").unwrap_err();
        assert_eq!(error.code(), 406);
        assert_eq!(
            error.message(),
            "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
        );
    }
}
