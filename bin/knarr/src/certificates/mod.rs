//! `knarr certificates`: lists the certificates of a server or agent with their expiry, and rotates them.

pub mod authorities;
pub mod expiry;
pub mod facts;
pub mod folder_watch;
pub mod inventory;
pub mod issued;
pub mod published;
pub mod rotate;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::SystemClock;
use serde_json::{Value, json};

use self::inventory::Entry;
use crate::layout::{DEFAULT_DATA_DIR, Layout};
use crate::picture::{Output, print_table};
use crate::preflight;

#[derive(Args)]
#[command(after_help = "Examples:\n  knarr certificates\n  knarr certificates -o json\n  \
    knarr certificates --data-dir /var/lib/knarr-agent\n  \
    knarr certificates rotate --all\n  knarr certificates rotate-ca status\n\n\
    Reads the files of the data folder, whether or not the server or agent runs. Ends with code 1 where a certificate \
    has expired or cannot be read.")]
pub struct CertificatesArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Data folder of a server or agent
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR", global = true)]
    data_dir: PathBuf,
    #[arg(short, long, default_value = "table", global = true)]
    output: Output,
}

#[derive(Subcommand)]
enum Action {
    /// Show the certificates and when they expire
    List,
    /// Renew certificates now
    Rotate(rotate::RotateArgs),
    /// Replace the authorities, step by step
    RotateCa(authorities::RotateCaArgs),
}

pub fn run(args: CertificatesArgs) -> Result<()> {
    preflight::root("read the certificates of a data folder")?;
    let layout = Layout::at(&args.data_dir);
    match args.action {
        None | Some(Action::List) => list(&layout, args.output),
        Some(Action::Rotate(rotate)) => rotate::run(&layout, &rotate),
        Some(Action::RotateCa(rotate)) => authorities::run(&layout, &rotate),
    }
}

fn list(layout: &Layout, output: Output) -> Result<()> {
    let entries = inventory::read(layout)?;
    let now = SystemClock.now();
    match output {
        Output::Table => print_table(&table(&entries, now)),
        Output::Json => println!("{}", serde_json::to_string_pretty(&json(&entries, now))?),
    }
    let bad: Vec<String> = entries.iter().filter_map(|entry| trouble(entry, now)).collect();
    if !bad.is_empty() {
        bail!("{}", bad.join("; "));
    }
    Ok(())
}

/// Describes what is wrong with a certificate, in one sentence.
fn trouble(entry: &Entry, now: Timestamp) -> Option<String> {
    let (name, file) = (&entry.name, entry.file.display());
    match &entry.facts {
        Err(why) => Some(format!("{name} cannot be read: {file}: {why}")),
        Ok(facts) if facts.expires <= now => Some(format!("{name} expired at {}: {file}", facts.expires)),
        Ok(_) => None,
    }
}

/// Returns the rows of the table, with the columns of `kubeadm certs check-expiration`.
fn table(entries: &[Entry], now: Timestamp) -> Vec<Vec<String>> {
    let header = ["NAME", "SUBJECT", "USE", "AUTHORITY", "EXPIRES", "DAYS LEFT"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for entry in entries {
        let none = || "<unreadable>".to_owned();
        let left = match entry.days_left(now) {
            Some(_) if entry.has_expired(now) => "<expired>".to_owned(),
            Some(days) => days.to_string(),
            None => none(),
        };
        rows.push(match &entry.facts {
            Ok(facts) => vec![
                entry.name.clone(),
                facts.subject.clone(),
                facts.uses.join(","),
                entry.authority.clone(),
                facts.expires.to_string(),
                left,
            ],
            Err(_) => vec![entry.name.clone(), none(), none(), none(), none(), left],
        });
    }
    rows
}

fn json(entries: &[Entry], now: Timestamp) -> Value {
    let one = |entry: &Entry| {
        let mut shown = json!({"name": entry.name, "file": entry.file});
        match &entry.facts {
            Ok(facts) => {
                shown["subject"] = facts.subject.clone().into();
                shown["groups"] = facts.groups.clone().into();
                shown["uses"] = facts.uses.clone().into();
                shown["authority"] = entry.authority.clone().into();
                shown["expires"] = facts.expires.to_string().into();
                shown["daysLeft"] = entry.days_left(now).into();
                shown["expired"] = entry.has_expired(now).into();
            }
            Err(why) => shown["error"] = why.clone().into(),
        }
        shown
    };
    json!({"certificates": entries.iter().map(one).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::facts::Facts;
    use super::*;

    fn entry(name: &str, facts: Result<Facts, String>) -> Entry {
        Entry::new(name.to_owned(), PathBuf::from(format!("/d/{name}.crt")), facts, Vec::new())
    }

    fn facts(expires: Timestamp) -> Result<Facts, String> {
        Ok(Facts {
            subject: "jane".to_owned(),
            groups: vec!["dev".to_owned()],
            uses: vec!["server", "client"],
            issuer: "kubernetes".to_owned(),
            expires,
        })
    }

    #[test]
    fn expired_and_unreadable_certificates_are_shown_and_named() {
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        let day = Duration::from_secs(86_400);
        let entries = [
            entry("good", facts(now + 2 * day)),
            entry("late", facts(now)),
            entry("broken", Err("not PEM".to_owned())),
        ];
        let rows: Vec<String> = table(&entries, now).iter().map(|row| row.join("|")).collect();
        assert_eq!(
            rows,
            [
                "NAME|SUBJECT|USE|AUTHORITY|EXPIRES|DAYS LEFT",
                "good|jane|server,client|kubernetes|2026-01-12T00:00:00Z|2",
                "late|jane|server,client|kubernetes|2026-01-10T00:00:00Z|<expired>",
                "broken|<unreadable>|<unreadable>|<unreadable>|<unreadable>|<unreadable>",
            ]
        );
        let bad: Vec<String> = entries.iter().filter_map(|e| trouble(e, now)).collect();
        assert_eq!(
            bad,
            [
                "late expired at 2026-01-10T00:00:00Z: /d/late.crt",
                "broken cannot be read: /d/broken.crt: not PEM"
            ]
        );
        let shown = json(&entries, now);
        assert_eq!(shown["certificates"][0]["daysLeft"], 2);
        assert_eq!(shown["certificates"][0]["groups"], serde_json::json!(["dev"]));
        assert_eq!(shown["certificates"][1]["expired"], true);
        assert_eq!(shown["certificates"][2]["error"], "not PEM");
    }
}
