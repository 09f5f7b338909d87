//! Tests of issuers' rules, and of tokens with keys fetched from a server.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use knarr_client::clock::SystemClock;
use serde_json::json;

use super::*;
use crate::authn::keys::SigningKey;

const CONFIG: &str = r#"
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}]}
jwt:
- issuer: {url: "https://issuer.example", audiences: [me, other], audienceMatchPolicy: MatchAny}
  claimValidationRules: [{claim: hd, requiredValue: example.com}]
  claimMappings:
    username: {claim: email, prefix: "oidc:"}
    groups: {claim: roles, prefix: "g:"}
    uid: {claim: sub}
"#;

fn rules() -> Jwt {
    config::parse(CONFIG.as_bytes()).unwrap().issuers.remove(0)
}

#[test]
fn claims_become_users() {
    let rules = rules();
    let usual = json!({"email": "ann@example.com", "email_verified": true, "roles": ["a", "b"], "sub": "7",
        "hd": "example.com", "jti": "x"});
    let user = claims::user(&rules, &usual).unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("oidc:ann@example.com", "7"));
    assert_eq!(user.groups, ["g:a", "g:b", "system:authenticated"]);
    assert_eq!(user.extra["authentication.kubernetes.io/credential-id"], ["JTI=x"]);
    for (change, why) in [
        (json!({"email_verified": false}), "oidc: email not verified"),
        (json!({"hd": "else"}), "value does not match"),
        (json!({"email": null}), "parse username claims"),
        (json!({"roles": 7}), "parse groups claim"),
    ] {
        let mut claims = usual.clone();
        for (key, value) in change.as_object().unwrap() {
            claims[key] = value.clone();
        }
        let error = claims::user(&rules, &claims).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert!(check_audience(&rules, &json!({"aud": ["x", "other"]})).is_ok());
    assert!(check_audience(&rules, &json!({"aud": "x"})).is_err());
    assert!(check_time(&json!({"exp": 100}), 101).is_err() && check_time(&json!({"exp": 100}), 99).is_ok());
    assert!(check_time(&json!({}), 0).is_err());
}

#[test]
fn wrong_configurations_say_what_is_wrong() {
    for (from, to, why) in [
        ("https://issuer.example", "http://issuer.example", "URL scheme must be https"),
        ("audienceMatchPolicy: MatchAny", "audienceMatchPolicy: \"\"", "must be MatchAny"),
        (
            "{claim: email, prefix: \"oidc:\"}",
            "{expression: claims.email}",
            "claims.email_verified must be used",
        ),
        (
            "{claim: email, prefix: \"oidc:\"}",
            "{expression: user.name}",
            "jwt[0].claimMappings.username.expression: Invalid value: \"user.name\": compilation failed: ERROR: \
             <input>:1:1: undeclared reference to 'user'",
        ),
        ("{claim: sub}", "{claim: sub, expression: claims.sub}", "can't both be set"),
        ("{claim: hd, requiredValue: example.com}", "{expression: claims.hd}", "must evaluate to bool"),
        (
            "uid: {claim: sub}",
            "extra: [{key: a.kubernetes.io/b, valueExpression: claims.sub}]",
            "are reserved for Kubernetes use",
        ),
        ("{claim: email, prefix: \"oidc:\"}", "{claim: email}", "prefix is required"),
        ("{enabled: true, ", "{enabled: false, ", "enabled should be set to true"),
        ("AuthenticationConfiguration", "Other", "no kind \"Other\""),
    ] {
        let text = CONFIG.replace(from, to);
        let error = config::parse(text.as_bytes()).err().unwrap_or_default();
        assert!(error.contains(why), "{to}: {error}");
    }
    let flags = crate::authn::options::Oidc {
        issuer_url: "https://issuer.example".into(),
        client_id: "me".into(),
        ..Default::default()
    };
    let jwt = config::of_flags(&flags).unwrap();
    assert_eq!(jwt.claim_mappings.username.prefix.as_deref(), Some("https://issuer.example#"));
    assert_eq!(jwt.signing_algs, ["RS256"]);
}

#[test]
fn expressions_make_users() {
    let text = CONFIG
        .replace("{claim: email, prefix: \"oidc:\"}", "{expression: \"'o:' + claims.name\"}")
        .replace("{claim: roles, prefix: \"g:\"}", "{expression: \"claims.roles.map(r, 'g-' + r)\"}")
        .replace(
            "uid: {claim: sub}",
            "uid: {expression: claims.sub}\n    extra: [{key: example.com/team, valueExpression: claims.?team.orValue('')}]",
        )
        .replace(
            "[{claim: hd, requiredValue: example.com}]",
            "[{expression: claims.level > 2.0, message: too low}]\n  userValidationRules: \
             [{expression: \"!user.username.startsWith('o:system')\", message: reserved}]",
        );
    let rules = config::parse(text.as_bytes()).unwrap().issuers.remove(0);
    let usual = json!({"name": "ann", "roles": ["a"], "sub": "7", "level": 3, "team": "x"});
    let user = claims::user(&rules, &usual).unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("o:ann", "7"));
    assert_eq!(user.groups, ["g-a", "system:authenticated"]);
    assert_eq!(user.extra["example.com/team"], ["x"]);
    for (field, value, why) in [
        (
            "level",
            json!(1),
            "oidc: error evaluating claim validation expression: validation expression \
            'claims.level > 2.0' failed: too low",
        ),
        ("name", json!("system:x"), "failed: reserved"),
        (
            "name",
            json!(7),
            "oidc: error evaluating username claim expression: expression ''o:' + claims.name' \
            resulted in error: no such overload",
        ),
        ("sub", json!(7), "uid claim expression must return a string"),
    ] {
        let mut claims = usual.clone();
        claims[field] = value;
        let error = claims::user(&rules, &claims).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn an_issuer_that_cannot_be_reached_lets_nobody_in() {
    let mut rules = rules();
    rules.issuer.url = "https://127.0.0.1:1".into();
    let issuer = Arc::new(Issuer::new(rules).unwrap());
    let key = SigningKey::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let token =
        |iss: &str| jwt::sign(&json!({"iss": iss, "aud": "me", "exp": 9_999_999_999_i64}), &key).unwrap();
    let ours = issuer.authenticate(&token("https://127.0.0.1:1"), &[], &SystemClock).await;
    assert!(ours.unwrap_err().contains("is not initialized"));
    let foreign = issuer.authenticate(&token("https://else"), &[], &SystemClock).await;
    assert_eq!(foreign, Ok(None));
    let none = BASE64.encode(r#"{"alg":"none"}"#);
    let claims = BASE64.encode(r#"{"iss":"https://127.0.0.1:1","aud":"me","exp":9999999999}"#);
    let unsigned = issuer.authenticate(&format!("{none}.{claims}."), &[], &SystemClock).await;
    assert!(unsigned.unwrap_err().contains("unexpected signature algorithm"));
}

#[test]
fn keys_verify_what_they_signed() {
    let key = SigningKey::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let mut set = json!({"keys": [key.public.jwk(), {"kty": "oct", "k": "x"}, {"kty": "RSA", "use": "enc"}]});
    let keys = jwk::keys(&set);
    assert_eq!(keys.len(), 1);
    let token = jwt::sign(&json!({"a": 1}), &key).unwrap();
    let parsed = jwt::parse(&token).unwrap();
    assert!(parsed.verify_with(|a, m, s| keys[0].verify(a, m, s)));
    assert!(!parsed.verify_with(|_, m, s| keys[0].verify("RS256", m, s)));
    set["keys"][0]["x"] = BASE64.encode([1; 32]).into();
    assert!(!parsed.verify_with(|a, m, s| jwk::keys(&set).iter().any(|k| k.verify(a, m, s))));
}
