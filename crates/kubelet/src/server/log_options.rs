//! The options of a request for a container's log.

use jiff::Timestamp;

use super::route;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub previous: bool,
    /// Only lines that are not older are sent.
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub stream: Wanted,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wanted {
    #[default]
    All,
    Stdout,
    Stderr,
}

/// Why the query is invalid, with upstream's texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("{{\"message\": \"Unable to decode query.\"}}")]
    Query,
    #[error("{{\"message\": \"Invalid request.\"}}")]
    Invalid,
    #[error("invalid stream type {0:?}")]
    Stream(String),
}

impl LogOptions {
    pub fn parse(query: &str, now: Timestamp) -> Result<Self, OptionsError> {
        let query = route::query(query);
        let value = |name: &str| {
            query.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
        };
        let number =
            |name: &str| value(name).map(|v| v.parse::<i64>().map_err(|_| OptionsError::Query)).transpose();
        let since_time = value("sinceTime").map(|v| v.parse::<Timestamp>().map_err(|_| OptionsError::Query));
        let (since_seconds, since_time) = (number("sinceSeconds")?, since_time.transpose()?);
        let (tail, limit) = (number("tailLines")?, number("limitBytes")?);
        let valid = !(since_seconds.is_some() && since_time.is_some())
            && since_seconds.is_none_or(|n| n >= 1)
            && tail.is_none_or(|n| n >= 0)
            && limit.is_none_or(|n| n >= 1);
        if !valid {
            return Err(OptionsError::Invalid);
        }
        let ago = |seconds: i64| now.checked_sub(std::time::Duration::from_secs(seconds.unsigned_abs())).ok();
        let stream = match value("stream") {
            None | Some("All") => Wanted::All,
            Some("Stdout") => Wanted::Stdout,
            Some("Stderr") => Wanted::Stderr,
            Some(other) => return Err(OptionsError::Stream(other.to_owned())),
        };
        Ok(Self {
            follow: route::flag(&query, "follow"),
            previous: route::flag(&query, "previous"),
            since: since_seconds.and_then(ago).or(since_time),
            timestamps: route::flag(&query, "timestamps"),
            tail_lines: tail.map(i64::unsigned_abs),
            limit_bytes: limit.map(i64::unsigned_abs),
            stream,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let now = Timestamp::from_second(1000).unwrap();
        let parse = |text: &str| LogOptions::parse(text, now);
        assert_eq!(parse(""), Ok(LogOptions::default()));
        let all = parse("follow=true&previous=true&sinceSeconds=10&timestamps=true&tailLines=0&limitBytes=5")
            .unwrap();
        assert!(all.follow && all.previous && all.timestamps);
        assert_eq!(all.since, Timestamp::from_second(990).ok());
        assert_eq!((all.tail_lines, all.limit_bytes), (Some(0), Some(5)));
        let since = parse("sinceTime=1970-01-01T00%3A00%3A05Z").unwrap().since;
        assert_eq!(since, Timestamp::from_second(5).ok());
        for (bad, want) in [
            ("tailLines=x", OptionsError::Query),
            ("tailLines=-1", OptionsError::Invalid),
            ("limitBytes=0", OptionsError::Invalid),
            ("sinceSeconds=0", OptionsError::Invalid),
            ("sinceSeconds=1&sinceTime=1970-01-01T00:00:05Z", OptionsError::Invalid),
            ("stream=x", OptionsError::Stream("x".into())),
        ] {
            assert_eq!(parse(bad), Err(want), "{bad}");
        }
    }
}
