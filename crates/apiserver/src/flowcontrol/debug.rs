//! `/debug/api_priority_and_fairness/*`: the current levels, queues and requests as text tables.

use std::fmt::Write;

use super::Fairness;

impl Fairness {
    /// Returns one of the dumps; `None` for an unknown name.
    pub fn dump(&self, what: &str, details: bool) -> Option<String> {
        let rows = match what {
            "dump_priority_levels" => self.level_rows(),
            "dump_queues" => self.queue_rows(),
            "dump_requests" => self.request_rows(details),
            _ => return None,
        };
        Some(align(&rows))
    }

    fn level_rows(&self) -> Vec<Vec<String>> {
        let headers = [
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ];
        let mut rows = vec![headers.map(str::to_owned).to_vec()];
        for (name, level) in &self.lock().levels.levels {
            let queues = &level.queues;
            let active = queues.show().iter().filter(|q| !q.waiting.is_empty()).count();
            rows.push(vec![
                name.clone(),
                active.to_string(),
                queues.is_idle().to_string(),
                level.quiescing.to_string(),
                queues.waiting().to_string(),
                queues.executing().to_string(),
                queues.dispatched.to_string(),
                queues.rejected.to_string(),
                "0".to_owned(),
                queues.cancelled.to_string(),
            ]);
        }
        rows
    }

    fn queue_rows(&self) -> Vec<Vec<String>> {
        let headers = [
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ];
        let mut rows = vec![headers.map(str::to_owned).to_vec()];
        for (name, level) in &self.lock().levels.levels {
            for (index, queue) in level.queues.show().iter().enumerate() {
                rows.push(vec![
                    name.clone(),
                    index.to_string(),
                    queue.waiting.len().to_string(),
                    queue.executing.to_string(),
                    queue.seats.to_string(),
                    format!("{:.8}ss", queue.next),
                    queue.initial_seats_sum.to_string(),
                    queue.max_seats_sum.to_string(),
                    format!("{:.8}ss", queue.total_work_sum),
                ]);
            }
        }
        rows
    }

    fn request_rows(&self, details: bool) -> Vec<Vec<String>> {
        let mut headers = vec![
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
        ];
        if details {
            headers.extend([
                "UserName",
                "Verb",
                "APIPath",
                "Namespace",
                "Name",
                "APIVersion",
                "Resource",
                "SubResource",
            ]);
        }
        let mut rows = vec![headers.into_iter().map(str::to_owned).collect::<Vec<_>>()];
        let state = self.lock();
        let (now, wall) = (self.clock.monotonic(), self.clock.now());
        for (name, level) in &state.levels.levels {
            let mut places: Vec<(u64, i64, i64, String)> = Vec::new();
            for (index, queue) in level.queues.show().iter().enumerate() {
                for (at, id) in queue.waiting.iter().enumerate() {
                    places.push((*id, index as i64, at as i64, "0001-01-01T00:00:00Z".to_owned()));
                }
            }
            for (id, queue, started) in level.queues.running() {
                let ago = jiff::SignedDuration::try_from(now.saturating_sub(started)).unwrap_or_default();
                places.push((id, queue.map_or(-1, |q| q as i64), -1, (wall - ago).to_string()));
            }
            for (id, queue, at, started) in places {
                let Some(detail) = state.details.get(&id) else { continue };
                let mut row = vec![
                    name.clone(),
                    detail.schema.clone(),
                    queue.to_string(),
                    at.to_string(),
                    detail.flow.clone(),
                    detail.arrived.to_string(),
                    detail.work.initial_seats.to_string(),
                    detail.work.final_seats.to_string(),
                    format!("{}s", detail.work.additional_latency.as_secs_f64()),
                    started,
                ];
                if details {
                    let info = &detail.info;
                    let version = if info.group.is_empty() {
                        info.version.clone()
                    } else {
                        format!("{}/{}", info.group, info.version)
                    };
                    let path = info.path.clone();
                    let more = [&detail.user, &info.verb, &path, &info.namespace, &info.name, &version];
                    row.extend(more.into_iter().cloned());
                    row.extend([info.resource.clone(), info.subresource.clone()]);
                }
                rows.push(row);
            }
        }
        rows
    }
}

/// Aligns the cells in columns, each as wide as its widest cell and followed by a comma.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width =
        |at: usize| rows.iter().filter_map(|r| r.get(at)).map(|c| c.chars().count() + 1).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(|at| width(at).max(7) + 1).collect();
    let mut out = String::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            // Writing to a String cannot fail.
            if at + 1 == row.len() {
                let _ = writeln!(out, "{cell}");
            } else {
                let _ = write!(out, "{:width$}", format!("{cell},"), width = widths[at]);
            }
        }
    }
    out
}
