//! The clauses of an Accept header, in the client's order of preference.

/// One clause: a media type with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Clause<'a> {
    pub media: &'a str,
    pub parameters: Vec<(&'a str, &'a str)>,
    pub quality: f32,
}

impl<'a> Clause<'a> {
    /// Returns the value of a parameter; empty if the clause does not have it.
    pub fn parameter(&self, name: &str) -> &'a str {
        self.parameters.iter().find(|(n, _)| *n == name).map_or("", |(_, v)| v)
    }
}

pub fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept
        .split(',')
        .filter(|c| !c.trim().is_empty())
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or("");
            let parameters: Vec<(&str, &str)> = parts.map(|p| p.split_once('=').unwrap_or((p, ""))).collect();
            let quality = parameters.iter().find(|(n, _)| *n == "q").and_then(|(_, v)| v.parse().ok());
            Clause { media, parameters, quality: quality.unwrap_or(1.0) }
        })
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_liked_clause_is_first() {
        let found = clauses("text/plain;q=0.5, ,application/json; as=Table ;v=v1,*/*;q=x");
        let media: Vec<&str> = found.iter().map(|c| c.media).collect();
        assert_eq!(media, ["application/json", "*/*", "text/plain"]);
        assert_eq!((found[0].parameter("as"), found[0].parameter("g")), ("Table", ""));
        assert!(clauses("").is_empty());
    }
}
