//! Table cells: ages, lists cut after three, labels, containers and images, as `kubectl get` shows them.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use serde_json::{Value, json};

use crate::object::Object;

/// What cells need besides the object.
pub struct CellContext {
    pub now: jiff::Timestamp,
}

/// A table column, as `kubectl get` shows it.
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `date`, `boolean`.
    pub type_: &'static str,
    /// `name` for the name column, otherwise empty.
    pub format: &'static str,
    /// 0: always shown; 1 and above: only with `-o wide`.
    pub priority: i32,
    pub description: &'static str,
}

impl Column {
    /// Returns the column in the form of the Table kind.
    pub fn definition(&self) -> Value {
        json!({
            "name": self.name, "type": self.type_, "format": self.format,
            "description": self.description, "priority": self.priority,
        })
    }

    /// Returns a column that is always shown.
    pub const fn new(name: &'static str, type_: &'static str, description: &'static str) -> Self {
        Self { name, type_, format: "", priority: 0, description }
    }

    /// Returns a column of `-o wide`.
    pub const fn wide(name: &'static str, type_: &'static str, description: &'static str) -> Self {
        Self { name, type_, format: "", priority: 1, description }
    }
}

/// The name column, which every table begins with.
pub const NAME: Column = Column {
    name: "Name",
    type_: "string",
    format: "name",
    priority: 0,
    description: "The object's name, unique among its kind in its namespace.",
};
/// The column with the time since creation.
pub const AGE: Column = Column::new("Age", "string", "The time since the object was created.");

/// Upstream's default columns, for resources that define none.
pub const PLAIN_COLUMNS: &[Column] =
    &[NAME, Column::new("Created At", "date", "The time at which the object was created.")];

/// Returns the cells of [`PLAIN_COLUMNS`].
pub fn plain_cells(object: &Object, _: &CellContext) -> Vec<Value> {
    let created = object.metadata().ok().and_then(|m| m.creation_timestamp);
    let created = created.map_or(Value::Null, |t| Value::from(rfc3339(t.0)));
    vec![Value::from(object.name()), created]
}

/// Formats a time with a resolution of seconds, as API times are written.
pub fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the time since `then`, such as `5m12s`; `<unknown>` if there is none.
pub fn age(then: Option<&Time>, cx: &CellContext) -> Value {
    Value::from(since(then.map(|t| t.0), cx.now))
}

/// Returns the time from `then` to `now` as text.
pub fn since(then: Option<Timestamp>, now: Timestamp) -> String {
    match then {
        None => "<unknown>".to_owned(),
        Some(then) => human_duration(now.as_nanosecond() - then.as_nanosecond()),
    }
}

/// Formats a duration in nanoseconds with two or three significant digits, as upstream's `duration.HumanDuration`
/// does.
pub fn human_duration(nanoseconds: i128) -> String {
    let seconds = i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        i64::MIN..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// Returns the text, or `<none>` if it is empty.
pub fn or_none(text: &str) -> Value {
    Value::from(if text.is_empty() { "<none>" } else { text })
}

/// Returns a count that the API omits if it is zero.
pub fn count(n: Option<i32>) -> Value {
    Value::from(n.unwrap_or(0))
}

/// Returns at most three items: `a,b,c + 2 more...`; `empty` if there are none.
pub fn three_of<T: Display>(items: impl Iterator<Item = T>, empty: &str) -> String {
    const SHOWN: usize = 3;
    let (mut shown, mut all) = (Vec::new(), 0usize);
    for item in items {
        if all < SHOWN {
            shown.push(item.to_string());
        }
        all += 1;
    }
    match all {
        0 => empty.to_owned(),
        1..=SHOWN => shown.join(","),
        _ => format!("{} + {} more...", shown.join(","), all - SHOWN),
    }
}

/// Returns `a=1,b=2`, sorted by key; `<none>` if there are none.
pub fn labels(map: Option<&BTreeMap<String, String>>) -> String {
    match map {
        Some(map) if !map.is_empty() => {
            map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
        }
        _ => "<none>".to_owned(),
    }
}

/// Returns the text form of a label selector; `<none>` if it is empty, `<error>` if it is invalid.
pub fn selector(selector: Option<&LabelSelector>) -> String {
    match knarr_apimachinery::selector::Selector::from_label_selector(selector) {
        Ok(s) if s.is_nothing() || s.is_everything() => "<none>".to_owned(),
        Ok(s) => s.to_string(),
        Err(_) => "<error>".to_owned(),
    }
}

/// Returns the names and the images of the containers, each joined by commas.
pub fn containers(containers: &[Container]) -> [Value; 2] {
    let names: Vec<&str> = containers.iter().map(|c| c.name.as_str()).collect();
    let images: Vec<&str> = containers.iter().map(|c| c.image.as_deref().unwrap_or("")).collect();
    [Value::from(names.join(",")), Value::from(images.join(","))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_durations() {
        let (m, h, d, y) = (60, 3600, 86400, 365 * 86400);
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (2 * m, "2m"),
            (5 * m + 12, "5m12s"),
            (10 * m - 1, "9m59s"),
            (10 * m + 5, "10m"),
            (3 * h - 1, "179m"),
            (3 * h + 7 * m, "3h7m"),
            (3 * h, "3h"),
            (8 * h + 59 * m, "8h"),
            (48 * h - 1, "47h"),
            (2 * d, "2d"),
            (2 * d + 5 * h, "2d5h"),
            (8 * d + 5 * h, "8d"),
            (2 * y - 1, "729d"),
            (2 * y + 3 * d, "2y3d"),
            (8 * y, "8y"),
            (8 * y + 3 * d, "8y"),
        ] {
            assert_eq!(human_duration(i128::from(seconds) * 1_000_000_000), text, "{seconds}");
        }
    }

    #[test]
    fn three_then_more() {
        assert_eq!(three_of([0u8; 0].iter(), "<none>"), "<none>");
        assert_eq!(three_of([1, 2, 3].iter(), ""), "1,2,3");
        assert_eq!(three_of([1, 2, 3, 4, 5].iter(), ""), "1,2,3 + 2 more...");
    }
}
