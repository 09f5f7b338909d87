//! The legacy log format: an event as one line of text.

use serde_json::Value;

/// Formats the line, without its line break.
pub fn line(event: &Value) -> String {
    let text = |value: &Value, none: &str| match value.as_str() {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => none.to_owned(),
    };
    let list = |value: &Value| {
        let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let all: Vec<String> = all.iter().map(|v| format!("{:?}", v.as_str().unwrap_or(""))).collect();
        all.join(",")
    };
    let user = &event["user"];
    let has_groups = !user["username"].is_null() && user["groups"].as_array().is_some_and(|g| !g.is_empty());
    let groups = if has_groups { list(&user["groups"]) } else { "<none>".to_owned() };
    let other = &event["impersonatedUser"];
    let other_groups =
        if other["groups"].is_array() { list(&other["groups"]) } else { "<lookup>".to_owned() };
    let response = event["responseStatus"]["code"].as_u64();
    format!(
        "{} AUDIT: id={:?} stage={:?} ip={:?} method={:?} user={:?} groups={groups} as={:?} \
         asgroups={other_groups} user-agent={:?} namespace={:?} uri={:?} response=\"{}\"",
        text(&event["requestReceivedTimestamp"], ""),
        text(&event["auditID"], ""),
        text(&event["stage"], ""),
        text(&event["sourceIPs"][0], "<unknown>"),
        text(&event["verb"], ""),
        text(&user["username"], "<none>"),
        text(&other["username"], "<self>"),
        text(&event["userAgent"], ""),
        text(&event["objectRef"]["namespace"], "<none>"),
        text(&event["requestURI"], ""),
        response.map_or("<deferred>".to_owned(), |code| code.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_event_is_one_line() {
        let event = json!({"requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z", "auditID": "i",
            "stage": "ResponseComplete", "sourceIPs": ["10.0.0.1"], "verb": "get", "userAgent": "a",
            "user": {"username": "ann", "groups": ["a", "b"]}, "requestURI": "/api", "responseStatus": {"code": 200}});
        assert_eq!(
            line(&event),
            "2026-01-01T00:00:00.000000Z AUDIT: id=\"i\" stage=\"ResponseComplete\" ip=\"10.0.0.1\" method=\"get\" \
             user=\"ann\" groups=\"a\",\"b\" as=\"<self>\" asgroups=<lookup> user-agent=\"a\" namespace=\"<none>\" \
             uri=\"/api\" response=\"200\""
        );
    }
}
