//! The results as a table that is also valid Markdown, and as JSON.

use serde_json::json;

use super::outcome::Row;

pub fn table(rows: &[Row]) -> String {
    let head = ["client", "version", "tried", "outcome"].map(str::to_owned);
    let mut lines = vec![head];
    lines.extend(rows.iter().map(cells));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    // The columns of steps and results are long, so only the short columns are padded.
    let widths = [width(0), width(1), 0, 0];
    let line = |cells: &[String; 4]| {
        let filled: Vec<String> = cells.iter().zip(widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        format!("| {} |\n", filled.join(" | "))
    };
    let mut text = line(&lines[0]) + "| --- | --- | --- | --- |\n";
    text.extend(lines[1..].iter().map(line));
    text
}

fn cells(row: &Row) -> [String; 4] {
    let outcome = match row.outcome.reason() {
        "" => row.outcome.word().to_owned(),
        reason => format!("{}: {reason}", row.outcome.word()),
    };
    [row.client.clone(), row.version.clone(), row.tried.join("; "), outcome]
        .map(|text| text.replace('|', "\\|").replace('\n', " "))
}

pub fn json(rows: &[Row]) -> serde_json::Value {
    let row = |row: &Row| {
        json!({
            "client": row.client, "version": row.version, "tried": row.tried, "seconds": row.seconds,
            "outcome": row.outcome.word(), "reason": row.outcome.reason(),
        })
    };
    json!({"clients": rows.iter().map(row).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Outcome;
    use super::*;

    #[test]
    fn rows_say_what_was_tried_and_what_came_of_it() {
        let row = |client: &str, tried: &[&str], outcome| Row {
            client: client.to_owned(),
            version: "1.2".to_owned(),
            tried: tried.iter().map(|step| (*step).to_owned()).collect(),
            outcome,
            seconds: 3,
        };
        let rows = [
            row("helm", &["install", "test"], Outcome::Works),
            row("a-client", &["watch"], Outcome::Failed("a|b".to_owned())),
        ];
        assert_eq!(
            table(&rows),
            "| client   | version | tried | outcome |\n| --- | --- | --- | --- |\n\
             | helm     | 1.2     | install; test | works |\n\
             | a-client | 1.2     | watch | failed: a\\|b |\n"
        );
        let json = json(&rows);
        assert_eq!(json["clients"][0]["tried"][1], "test");
        assert_eq!(json["clients"][0]["outcome"], "works");
        assert_eq!(json["clients"][1]["reason"], "a|b");
    }
}
