//! The checks of supervised tasks, named after the tasks.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use knarr_client::supervisor::{Health, Name};

use super::{Check, Endpoint, Health as All, check};

pub fn checks(all: &All, endpoint: Endpoint) -> Vec<Check> {
    let others = all.others.lock().unwrap_or_else(PoisonError::into_inner);
    let others = others.iter().flat_map(knarr_client::Supervisor::health).collect();
    decide(all.supervisor.health(), others, endpoint)
}

/// Returns the checks sorted by name. A task name that the server shares with another component appears once.
fn decide(own: Vec<Health>, others: Vec<Health>, endpoint: Endpoint) -> Vec<Check> {
    let ready = endpoint == Endpoint::Readyz;
    let mut all: BTreeMap<Name, Check> = BTreeMap::new();
    for task in own {
        let result = if ready { task.result } else { task.lasting };
        all.insert(task.name.clone(), check(task.name, result));
    }
    for task in others {
        let result = if ready { task.result } else { task.lasting };
        let shown = all.entry(task.name.clone()).or_insert_with(|| check(task.name, Ok(())));
        if shown.result.is_ok() {
            (shown.informs, shown.result) = (result.is_err(), result);
        }
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &'static str, result: Result<(), &str>, lasting: Result<(), &str>) -> Health {
        Health {
            name: name.into(),
            result: result.map_err(str::to_owned),
            lasting: lasting.map_err(str::to_owned),
        }
    }

    fn shown(own: &[Health], others: &[Health], endpoint: Endpoint) -> Vec<String> {
        let line = |c: Check| {
            let mark = if c.informs { "?" } else { "" };
            format!("{}{mark}={}", c.name, c.result.err().unwrap_or_default())
        };
        decide(own.to_vec(), others.to_vec(), endpoint).into_iter().map(line).collect()
    }

    #[test]
    fn own_tasks_count_and_others_inform() {
        let own = [task("feed", Err("now"), Ok(())), task("informers", Ok(()), Err("often"))];
        let others = [task("informers", Err("theirs"), Ok(())), task("scheduler", Err("down"), Err("down"))];
        let ready = shown(&own, &others, Endpoint::Readyz);
        assert_eq!(ready, ["feed=now", "informers?=theirs", "scheduler?=down"]);
        for endpoint in [Endpoint::Livez, Endpoint::Healthz] {
            let lasting = shown(&own, &others, endpoint);
            assert_eq!(lasting, ["feed=", "informers=often", "scheduler?=down"]);
        }
        let both = [task("informers", Err("own"), Ok(()))];
        assert_eq!(shown(&both, &others[..1], Endpoint::Readyz), ["informers=own"]);
    }
}
