//! The expressions of an issuer: how claims map to a user, and which claims and users are valid.

use std::sync::{Arc, LazyLock};

use knarr_cel::schema::{self, DeclType, ListKind};
use knarr_cel::{Activation, Budget, CompileError, Declarations, Program, Type, Value as Cel, compile};
use serde_json::{Number, Value, json};

use super::config::Jwt;
use crate::authn::UserInfo;

static USER: LazyLock<Arc<DeclType>> = LazyLock::new(|| {
    let text = || DeclType::string(0);
    let list = || DeclType::list(text(), ListKind::Atomic, 0);
    Arc::new(DeclType::object(
        "kubernetes.UserInfo",
        [("username", text()), ("uid", text()), ("groups", list()), ("extra", DeclType::map(list(), 0))],
    ))
});

/// One compiled expression.
#[derive(Debug)]
pub struct Expression {
    text: String,
    program: Program,
}

/// All compiled expressions of an issuer.
#[derive(Debug, Default)]
pub struct Expressions {
    pub username: Option<Expression>,
    pub groups: Option<Expression>,
    pub uid: Option<Expression>,
    /// The expressions of extra values, by key.
    pub extra: Vec<(String, Expression)>,
    /// The claim validation rules, each with its message for a violation.
    pub claim_rules: Vec<(Expression, String)>,
    pub user_rules: Vec<(Expression, String)>,
}

fn of_claims() -> Declarations {
    Declarations::new().stored().variable("claims", Type::map(Type::String, Type::Dyn))
}

fn of_users() -> Declarations {
    Declarations::new().stored().declared("user", &USER)
}

fn ready(decls: &Declarations, path: &str, text: &str, wanted: &[Type]) -> Result<Expression, String> {
    let program = compile(text, decls, wanted).map_err(|error| match error {
        CompileError::Instantiation(_) => format!("{path}: Internal error: {error}"),
        CompileError::OutputType { .. } => format!("{path}: Invalid value: {text:?}: must evaluate to bool"),
        CompileError::Issues(_) => format!("{path}: Invalid value: {text:?}: {error}"),
    })?;
    Ok(Expression { text: text.to_owned(), program })
}

impl Expressions {
    /// Compiles the rules; errors name the path below `path`.
    pub fn of(jwt: &Jwt, path: &str) -> Result<Self, String> {
        let (claims, users) = (of_claims(), of_users());
        let mappings = &jwt.claim_mappings;
        let mapping = |name: &str, text: &str| match text {
            "" => Ok(None),
            text => ready(&claims, &format!("{path}.claimMappings.{name}.expression"), text, &[]).map(Some),
        };
        let mut all = Self {
            username: mapping("username", &mappings.username.expression)?,
            groups: mapping("groups", &mappings.groups.expression)?,
            uid: mapping("uid", &mappings.uid.expression)?,
            ..Self::default()
        };
        for (at, extra) in mappings.extra.iter().enumerate() {
            let path = format!("{path}.claimMappings.extra[{at}].valueExpression");
            all.extra.push((extra.key.clone(), ready(&claims, &path, &extra.value_expression, &[])?));
        }
        for (at, rule) in jwt.claim_validation_rules.iter().enumerate() {
            if !rule.expression.is_empty() {
                let path = format!("{path}.claimValidationRules[{at}].expression");
                let expression = ready(&claims, &path, &rule.expression, &[Type::Bool])?;
                all.claim_rules.push((expression, rule.message.clone()));
            }
        }
        for (at, rule) in jwt.user_validation_rules.iter().enumerate() {
            let path = format!("{path}.userValidationRules[{at}].expression");
            let expression = ready(&users, &path, &rule.expression, &[Type::Bool])?;
            all.user_rules.push((expression, rule.message.clone()));
        }
        all.check_email(path)?;
        Ok(all)
    }

    /// Requires a check that the address is verified: an unverified address may belong to another person.
    fn check_email(&self, path: &str) -> Result<(), String> {
        let Some(username) = self.username.as_ref().filter(|u| selects(&u.text, "email")) else {
            return Ok(());
        };
        let extra = self.extra.iter().map(|(_, e)| e);
        let mut all = extra.chain(self.claim_rules.iter().map(|(e, _)| e)).chain([username]);
        if all.any(|e| selects(&e.text, "email_verified")) {
            return Ok(());
        }
        let text = &username.text;
        Err(format!(
            "{path}.claimMappings.username.expression: Invalid value: {text:?}: claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression"
        ))
    }

    /// Checks the claim validation rules.
    pub fn check_claims(&self, claims: &Value) -> Result<(), String> {
        check("claims", &self.claim_rules, claims)
            .map_err(|why| format!("oidc: error evaluating claim validation expression: {why}"))
    }

    /// Checks the user validation rules.
    pub fn check_user(&self, user: &UserInfo) -> Result<(), String> {
        let shown =
            json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        check("user", &self.user_rules, &shown)
            .map_err(|why| format!("oidc: error evaluating user info validation rule: {why}"))
    }
}

fn check(variable: &str, rules: &[(Expression, String)], of: &Value) -> Result<(), String> {
    // All rules are evaluated before any of them decides.
    let values: Result<Vec<_>, String> = rules.iter().map(|(e, _)| e.evaluate(variable, of)).collect();
    for ((expression, message), value) in rules.iter().zip(values?) {
        match value {
            Cel::Bool(true) => {}
            Cel::Bool(false) => {
                return Err(format!("validation expression '{}' failed: {message}", expression.text));
            }
            _ => return Err("validation expression must return a boolean".to_owned()),
        }
    }
    Ok(())
}

impl Expression {
    fn evaluate<'v>(&self, variable: &str, of: &'v Value) -> Result<Cel<'v>, String> {
        let activation = Activation::new().with(variable, schema::dynamic(of));
        self.program
            .evaluate(&activation, &mut Budget::default())
            .map_err(|e| format!("expression '{}' resulted in error: {e}", self.text))
    }

    /// Maps the claims to a string; `what` is the mapped field, for errors.
    pub fn text(&self, claims: &Value, what: &str) -> Result<String, String> {
        let wrong = |why: String| format!("oidc: error evaluating {what} claim expression: {why}");
        match self.evaluate("claims", claims).map_err(wrong)? {
            Cel::String(text) => Ok(text.to_string()),
            _ => Err(wrong(format!("{what} claim expression must return a string"))),
        }
    }

    /// Maps the claims to strings, without empty ones; null yields none.
    pub fn texts(&self, claims: &Value) -> Result<Vec<String>, String> {
        let problem = || "expression must return a string or a list of strings".to_owned();
        let value = self.evaluate("claims", claims)?;
        let all = match &value {
            Cel::Null => Vec::new(),
            Cel::String(one) => vec![one.to_string()],
            Cel::List(list) => list
                .iter()
                .map(|item| item.ok().as_ref().and_then(Cel::as_str).map(str::to_owned).ok_or_else(problem))
                .collect::<Result<_, _>>()?,
            _ => return Err(problem()),
        };
        Ok(all.into_iter().filter(|text| !text.is_empty()).collect())
    }

    pub fn source(&self) -> &str {
        &self.text
    }
}

/// Returns the claims for expressions, in which all numbers are floating-point.
pub fn seen(claims: &Value) -> Value {
    match claims {
        Value::Number(n) => n.as_f64().and_then(Number::from_f64).map_or(Value::Null, Value::Number),
        Value::Array(items) => items.iter().map(seen).collect(),
        Value::Object(members) => members.iter().map(|(k, v)| (k.clone(), seen(v))).collect(),
        other => other.clone(),
    }
}

/// Returns whether an expression reads `claims.FIELD` or `claims.?FIELD` outside of quotes.
fn selects(source: &str, field: &str) -> bool {
    let bare = without_strings(source);
    let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let mut from = 0;
    while let Some(at) = bare[from..].find("claims") {
        let (start, end) = (from + at, from + at + "claims".len());
        from = end;
        let after = bare[end..].trim_start();
        let Some(after) = after.strip_prefix('.') else { continue };
        let after = after.strip_prefix('?').unwrap_or(after).trim_start();
        let name_end = after.find(|c| !is_part(c)).unwrap_or(after.len());
        let before = bare[..start].trim_end().chars().next_back();
        if !before.is_some_and(|c| is_part(c) || c == '.') && &after[..name_end] == field {
            return true;
        }
    }
    false
}

fn without_strings(source: &str) -> String {
    let (mut out, mut quote, mut escaped) = (String::with_capacity(source.len()), None, false);
    for c in source.chars() {
        match quote {
            None if matches!(c, '\'' | '"') => quote = Some(c),
            None => out.push(c),
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => {
                quote = None;
                out.push(' ');
            }
            Some(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read() {
        for (source, expected) in [
            ("claims.email", true),
            ("claims .?email.orValue('')", true),
            ("claims.email_verified", false),
            ("'claims.email'", false),
            ("x.claims.email", false),
            ("myclaims.email", false),
            ("claims.a.email", false),
            ("'it\\'s' + claims.email", true),
        ] {
            assert_eq!(selects(source, "email"), expected, "{source}");
        }
    }

    #[test]
    fn numbers_are_floating() {
        assert_eq!(seen(&json!({"a": [1, "x", null]})), json!({"a": [1.0, "x", null]}));
    }
}
