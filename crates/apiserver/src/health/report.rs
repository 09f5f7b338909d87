//! Formats the answer of a health endpoint.

use super::Check;

pub struct Report {
    pub code: u16,
    pub text: String,
    /// The reasons of the failed checks, for the log.
    pub log: String,
}

/// Returns the answer of the endpoint. On failure it is always verbose.
pub fn of(endpoint: &str, checks: &[Check], excluded: &[&str], verbose: bool) -> Report {
    let (mut lines, mut log, mut failed) = (String::new(), String::new(), false);
    for check in checks {
        let name = &check.name;
        if excluded.contains(&&**name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let Err(why) = &check.result else {
            lines.push_str(&format!("[+]{name} ok\n"));
            continue;
        };
        failed |= !check.informs;
        let counts = if check.informs { ", which is not counted" } else { "" };
        lines.push_str(&format!("[-]{name} failed{counts}: reason withheld\n"));
        log.push_str(&format!("{}{name}: {why}", if log.is_empty() { "" } else { "; " }));
    }
    let mut unknown: Vec<String> =
        excluded.iter().filter(|e| !checks.iter().any(|c| c.name == **e)).map(|e| format!("{e:?}")).collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let names = unknown.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    let (code, text) = match (failed, verbose) {
        (true, _) => (500, format!("{lines}{endpoint} check failed\n")),
        (false, true) => (200, format!("{lines}{endpoint} check passed\n")),
        (false, false) => (200, "ok".to_owned()),
    };
    Report { code, text, log }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::check;

    fn checks() -> Vec<Check> {
        let ill = |why: &str| Err(why.to_owned());
        vec![
            check("ping", Ok(())),
            check("etcd", ill("it is away")),
            Check { informs: true, ..check("scheduler", ill("it panicked")) },
        ]
    }

    #[test]
    fn a_failure_is_shown_without_its_reason() {
        for verbose in [false, true] {
            let report = of("readyz", &checks(), &[], verbose);
            assert_eq!(report.code, 500);
            assert_eq!(
                report.text,
                "[+]ping ok\n[-]etcd failed: reason withheld\n\
                 [-]scheduler failed, which is not counted: reason withheld\nreadyz check failed\n"
            );
            assert_eq!(report.log, "etcd: it is away; scheduler: it panicked");
        }
    }

    #[test]
    fn what_is_excluded_or_only_informs_does_not_count() {
        let excluded = ["etcd", "b", "a", "b"];
        assert_eq!(of("livez", &checks(), &excluded, false).text, "ok");
        let report = of("livez", &checks(), &excluded, true);
        assert_eq!(report.code, 200);
        assert_eq!(
            report.text,
            "[+]ping ok\n[+]etcd excluded: ok\n[-]scheduler failed, which is not counted: reason withheld\n\
             warn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nlivez check passed\n"
        );
    }
}
