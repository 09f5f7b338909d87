//! Answers a registry's challenge: Basic, or Bearer tokens from its token service
//! (<https://distribution.github.io/distribution/spec/auth/token/>).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Uri};

use super::super::credentials::Credential;
use super::RegistryError;
use super::http::{Call, HttpClient, read_body};

const MAX_TOKEN_BYTES: u64 = 1 << 20;

/// One challenge of a `WWW-Authenticate` header, its parameter names in lower case.
#[derive(Debug, PartialEq, Eq)]
pub struct Challenge {
    pub scheme: String,
    pub parameters: Vec<(String, String)>,
}

impl Challenge {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Returns the `Authorization` value that answers the challenges, for pulling from `repository` (a path within
/// the registry). `plain` means that the registry itself is contacted without TLS.
pub async fn authorize(
    client: &HttpClient,
    challenges: &[Challenge],
    credential: Option<&Credential>,
    repository: &str,
    plain: bool,
) -> Result<HeaderValue, RegistryError> {
    let find = |scheme: &str| challenges.iter().find(|c| c.scheme == scheme);
    if let Some(challenge) = find("bearer") {
        if let Some(token) = credential.and_then(|c| c.registry_token.as_deref()) {
            return header(&format!("Bearer {token}"));
        }
        let token = fetch_token(client, challenge, credential, repository, plain).await?;
        return header(&format!("Bearer {token}"));
    }
    if find("basic").is_some() {
        return match credential.filter(|c| !c.username.is_empty()) {
            Some(credential) => basic(credential),
            None => Err(RegistryError::Denied("authorization failed: no basic auth credentials".to_owned())),
        };
    }
    Err(RegistryError::Denied("authorization failed: the registry offers no known method".to_owned()))
}

fn basic(credential: &Credential) -> Result<HeaderValue, RegistryError> {
    header(&format!("Basic {}", STANDARD.encode(format!("{}:{}", credential.username, credential.password))))
}

fn header(value: &str) -> Result<HeaderValue, RegistryError> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| RegistryError::Denied("credentials hold characters that cannot be sent".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

async fn fetch_token(
    client: &HttpClient,
    challenge: &Challenge,
    credential: Option<&Credential>,
    repository: &str,
    plain: bool,
) -> Result<String, RegistryError> {
    let realm = challenge.parameter("realm").unwrap_or_default();
    let bad = |why: &str| RegistryError::Protocol(format!("token service {realm:?}: {why}"));
    let url: Uri = realm.parse().map_err(|_| bad("not an address"))?;
    let Some(authority) = url.authority() else { return Err(bad("not an address")) };
    match url.scheme_str() {
        Some("https") => {}
        // A TLS registry cannot make the client send credentials in plain text.
        Some("http") if plain || client.scheme(authority.as_str()) == "http" => {}
        _ => return Err(bad("not an https address")),
    }
    let service = challenge.parameter("service").unwrap_or_default();
    let scope = match challenge.parameter("scope") {
        Some(scope) if !scope.is_empty() => scope.to_owned(),
        _ => format!("repository:{repository}:pull"),
    };
    let refresh = credential.and_then(|c| c.identity_token.as_deref());
    let kind = if credential.is_some() { "oauth" } else { "anonymous" };
    let call = match refresh {
        Some(token) => oauth_call(&url, service, &scope, token),
        None => get_call(&url, service, &scope, credential)?,
    };
    token_from(client, call)
        .await
        .map_err(|source| RegistryError::Authorize { kind, source: Box::new(source) })
}

fn get_call(
    url: &Uri,
    service: &str,
    scope: &str,
    credential: Option<&Credential>,
) -> Result<Call, RegistryError> {
    let mut query = Vec::new();
    if !service.is_empty() {
        query.push(format!("service={}", percent(service)));
    }
    query.extend(scope.split(' ').filter(|s| !s.is_empty()).map(|s| format!("scope={}", percent(s))));
    let separator = if url.query().is_some() { '&' } else { '?' };
    let text = format!("{url}{separator}{}", query.join("&"));
    let url = text.parse().map_err(|_| RegistryError::Protocol(format!("token service address {text:?}")))?;
    let mut call = Call::get(url);
    if let Some(credential) = credential.filter(|c| !c.username.is_empty()) {
        call.headers.insert(AUTHORIZATION, basic(credential)?);
    }
    Ok(call)
}

fn oauth_call(url: &Uri, service: &str, scope: &str, refresh_token: &str) -> Call {
    let form = format!(
        "grant_type=refresh_token&service={}&client_id=knarr&scope={}&refresh_token={}",
        percent(service),
        percent(scope),
        percent(refresh_token)
    );
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    Call { method: Method::POST, url: url.clone(), headers, body: Bytes::from(form) }
}

async fn token_from(client: &HttpClient, call: Call) -> Result<String, RegistryError> {
    #[derive(serde::Deserialize)]
    struct Answer {
        #[serde(default)]
        token: String,
        #[serde(default)]
        access_token: String,
    }
    let (call, response) = client.send(call).await?;
    if !response.status().is_success() {
        return Err(call.unexpected(response).await);
    }
    let body = read_body(response.into_body(), MAX_TOKEN_BYTES).await.map_err(|e| call.failed(e))?;
    let body = body.ok_or(RegistryError::TooLarge { what: "token".to_owned(), limit: MAX_TOKEN_BYTES })?;
    let answer: Answer = serde_json::from_slice(&body)
        .map_err(|e| RegistryError::Protocol(format!("token service's answer: {e}")))?;
    let token = if answer.token.is_empty() { answer.access_token } else { answer.token };
    if token.is_empty() {
        return Err(RegistryError::Protocol("token service returned no token".to_owned()));
    }
    Ok(token)
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// Parses `WWW-Authenticate` values, each of which may contain several challenges (RFC 9110, section 11.6.1).
/// Parts that cannot be parsed are skipped.
pub fn parse_challenges<'a>(values: impl Iterator<Item = &'a str>) -> Vec<Challenge> {
    const MAX_CHALLENGES: usize = 16;
    let mut out: Vec<Challenge> = Vec::new();
    for value in values {
        let mut rest = value.trim_start();
        while !rest.is_empty() && out.len() < MAX_CHALLENGES {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            let end = rest.find(|c: char| !is_token(c)).unwrap_or(rest.len());
            if end == 0 {
                break;
            }
            let word = rest[..end].to_ascii_lowercase();
            let after = rest[end..].trim_start();
            match (after.strip_prefix('='), out.last_mut()) {
                (Some(after), Some(challenge)) => {
                    let (text, after) = parse_value(after.trim_start());
                    challenge.parameters.push((word, text));
                    rest = after;
                }
                (Some(_), None) => break,
                (None, _) => {
                    out.push(Challenge { scheme: word, parameters: Vec::new() });
                    rest = after;
                }
            }
        }
    }
    out
}

fn parse_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut out = String::new();
    let mut escaped = false;
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => {
                out.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (out, &quoted[at + 1..]),
            c => out.push(c),
        }
    }
    (out, "")
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let challenge = |scheme: &str, parameters: &[(&str, &str)]| Challenge {
            scheme: scheme.to_owned(),
            parameters: parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        };
        for (value, wanted) in [
            (
                r#"Bearer realm="https://auth.io/token",service="reg",scope="repository:a/b:pull,push""#,
                vec![challenge(
                    "bearer",
                    &[
                        ("realm", "https://auth.io/token"),
                        ("service", "reg"),
                        ("scope", "repository:a/b:pull,push"),
                    ],
                )],
            ),
            (
                r#"Basic realm="a \"b\"", bearer Realm=x , service=y"#,
                vec![
                    challenge("basic", &[("realm", "a \"b\"")]),
                    challenge("bearer", &[("realm", "x"), ("service", "y")]),
                ],
            ),
            ("Negotiate", vec![challenge("negotiate", &[])]),
            ("realm=x", vec![]),
            ("", vec![]),
            ("\"", vec![]),
            ("Bearer realm=\"unterminated", vec![challenge("bearer", &[("realm", "unterminated")])]),
        ] {
            assert_eq!(parse_challenges([value].into_iter()), wanted, "{value}");
        }
    }

    #[test]
    fn token_requests_are_escaped() {
        let url = "https://a.io/t?x=1".parse().unwrap();
        let call =
            get_call(&url, "my reg", "repository:a/b:pull", Some(&Credential::basic("u", "p"))).unwrap();
        assert_eq!(
            call.url.to_string(),
            "https://a.io/t?x=1&service=my%20reg&scope=repository%3Aa%2Fb%3Apull"
        );
        assert_eq!(call.headers[AUTHORIZATION], "Basic dTpw");
        let call = oauth_call(&url, "s", "a b", "r&t");
        assert_eq!(
            call.body,
            "grant_type=refresh_token&service=s&client_id=knarr&scope=a%20b&refresh_token=r%26t"
        );
    }
}
