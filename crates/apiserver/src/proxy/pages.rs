//! Rewrites the links of proxied HTML pages so that they lead through the proxy.
//!
//! Source: the behaviour of `k8s.io/apimachinery/pkg/util/proxy` Transport.

use super::rewrite;

/// The attributes that contain links.
const LINKS: &[&str] = &[
    "action",
    "archive",
    "background",
    "cite",
    "classid",
    "codebase",
    "data",
    "formaction",
    "href",
    "icon",
    "longdesc",
    "manifest",
    "poster",
    "profile",
    "src",
    "usemap",
];

/// The path up to `proxy`, and the names under which the backend was called.
pub struct Links<'a> {
    pub prefix: &'a str,
    pub hosts: &'a [&'a str],
}

impl Links<'_> {
    /// Returns the page with the links in its tags rewritten. Text outside of tags is unchanged.
    pub fn html(&self, page: &str) -> String {
        let mut out = String::with_capacity(page.len() + 256);
        let mut rest = page;
        while let Some(at) = rest.find('<') {
            let (text, tag) = rest.split_at(at);
            out.push_str(text);
            if let Some(comment) = tag.strip_prefix("<!--") {
                let end = comment.find("-->").map_or(tag.len(), |end| end + "<!---->".len());
                out.push_str(&tag[..end]);
                rest = &tag[end..];
                continue;
            }
            let end = tag_end(tag);
            self.tag(&tag[..end], &mut out);
            rest = &tag[end..];
        }
        out.push_str(rest);
        out
    }

    fn tag(&self, tag: &str, out: &mut String) {
        let mut rest = tag;
        while let Some(at) = rest.find('=') {
            let (before, after) = (&rest[..at], &rest[at + 1..]);
            out.push_str(before);
            out.push('=');
            let name = before.trim_end().rsplit([' ', '\t', '\n', '\r', '"', '\'']).next().unwrap_or("");
            let quote = after.trim_start().chars().next().filter(|c| matches!(c, '"' | '\''));
            let blank = after.len() - after.trim_start().len();
            let Some(quote) = quote else {
                rest = after;
                continue;
            };
            let value = &after[blank + 1..];
            let Some(end) = value.find(quote) else {
                out.push_str(after);
                return;
            };
            out.push_str(&after[..blank + 1]);
            if LINKS.contains(&name.to_ascii_lowercase().as_str()) {
                out.push_str(&rewrite::location(&value[..end], self.prefix, self.hosts));
            } else {
                out.push_str(&value[..end]);
            }
            out.push(quote);
            rest = &value[end + 1..];
        }
        out.push_str(rest);
    }
}

/// Returns the index after the end of a tag: the first `>` that is not quoted.
fn tag_end(tag: &str) -> usize {
    let mut quote = None;
    for (at, c) in tag.char_indices() {
        match (quote, c) {
            (None, '>') => return at + 1,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    tag.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages() {
        let links = Links { prefix: "/api/v1/p/proxy", hosts: &["10.0.0.1:80"] };
        for (page, want) in [
            ("<a href=\"/rewriteme\">test</a>", "<a href=\"/api/v1/p/proxy/rewriteme\">test</a>"),
            ("<a href=\"http://10.0.0.1:80/x\">", "<a href=\"/api/v1/p/proxy/x\">"),
            ("<p title='/x' >a = \"/b\"</p>", "<p title='/x' >a = \"/b\"</p>"),
            ("<img alt=\"a > b\" src = '/i.png'/>", "<img alt=\"a > b\" src = '/api/v1/p/proxy/i.png'/>"),
            ("<!-- <a href=\"/x\"> --><b>", "<!-- <a href=\"/x\"> --><b>"),
            ("<a href=/x>", "<a href=/x>"),
            ("<a href=\"/open", "<a href=\"/open"),
            ("a < b", "a < b"),
        ] {
            assert_eq!(links.html(page), want, "{page}");
        }
    }
}
