//! Validation of probes and lifecycle hooks and their actions: exec, HTTP, TCP, gRPC, sleep.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, PodSpec, Probe, SleepAction,
    TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::validate;

/// What probes and hooks have in common.
#[derive(Default)]
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

impl<'a> Handler<'a> {
    fn of_probe(probe: &'a Probe) -> Self {
        Self {
            exec: probe.exec.as_ref(),
            http_get: probe.http_get.as_ref(),
            tcp_socket: probe.tcp_socket.as_ref(),
            grpc: probe.grpc.as_ref(),
            sleep: None,
        }
    }

    fn of_hook(hook: &'a LifecycleHandler) -> Self {
        Self {
            exec: hook.exec.as_ref(),
            http_get: hook.http_get.as_ref(),
            tcp_socket: hook.tcp_socket.as_ref(),
            grpc: None,
            sleep: hook.sleep.as_ref(),
        }
    }
}

/// Validates all hooks and probes of a long-running container.
pub fn lifecycle_and_probes(errors: &mut ErrorList, path: &Path, container: &Container, spec: &PodSpec) {
    let grace = spec.termination_grace_period_seconds;
    if let Some(lifecycle) = &container.lifecycle {
        let path = path.child("lifecycle");
        if let Some(hook) = &lifecycle.post_start {
            handler(errors, &path.child("postStart"), &Handler::of_hook(hook), grace);
        }
        if let Some(hook) = &lifecycle.pre_stop {
            handler(errors, &path.child("preStop"), &Handler::of_hook(hook), grace);
        }
    }
    let at = path.child("livenessProbe");
    if let Some(liveness) = &container.liveness_probe {
        probe(errors, &at, liveness);
        succeeds_at_once(errors, &at, liveness);
    }
    let at = path.child("readinessProbe");
    if let Some(readiness) = &container.readiness_probe {
        probe(errors, &at, readiness);
        if let Some(seconds) = readiness.termination_grace_period_seconds {
            let problem = "must not be set for readinessProbes";
            errors.push(Error::invalid(&at.child("terminationGracePeriodSeconds"), seconds, problem));
        }
    }
    let at = path.child("startupProbe");
    if let Some(startup) = &container.startup_probe {
        probe(errors, &at, startup);
        succeeds_at_once(errors, &at, startup);
    }
}

fn succeeds_at_once(errors: &mut ErrorList, path: &Path, probe: &Probe) {
    let threshold = probe.success_threshold.unwrap_or(0);
    if threshold != 1 {
        errors.push(Error::invalid(&path.child("successThreshold"), threshold, "must be 1"));
    }
}

fn probe(errors: &mut ErrorList, path: &Path, probe: &Probe) {
    handler(errors, path, &Handler::of_probe(probe), None);
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        validate::nonnegative(errors, &path.child(field), i64::from(value.unwrap_or(0)));
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|s| *s <= 0) {
        let path = path.child("terminationGracePeriodSeconds");
        errors.push(Error::invalid(&path, seconds, "must be greater than 0"));
    }
}

/// Requires exactly one action; if there are several, only the first is validated.
fn handler(errors: &mut ErrorList, path: &Path, handler: &Handler<'_>, grace: Option<i64>) {
    let mut actions = 0;
    let mut first = |errors: &mut ErrorList, field: &str| {
        actions += 1;
        if actions > 1 {
            errors.push(Error::forbidden(&path.child(field), "may not specify more than 1 handler type"));
        }
        actions == 1
    };
    if let Some(exec) = handler.exec
        && first(errors, "exec")
        && exec.command.as_ref().is_none_or(Vec::is_empty)
    {
        errors.push(Error::required(&path.child("exec").child("command"), ""));
    }
    if let Some(get) = handler.http_get
        && first(errors, "httpGet")
    {
        http_get(errors, &path.child("httpGet"), get);
    }
    if let Some(tcp) = handler.tcp_socket
        && first(errors, "tcpSocket")
    {
        validate::port_or_name(errors, &path.child("tcpSocket").child("port"), &tcp.port);
    }
    if let Some(grpc) = handler.grpc
        && first(errors, "grpc")
    {
        let port = IntOrString::Int(grpc.port);
        validate::port_or_name(errors, &path.child("grpc").child("port"), &port);
    }
    if let Some(sleep) = handler.sleep
        && first(errors, "sleep")
        && let Some(grace) = grace
        && !(0..=grace).contains(&sleep.seconds)
    {
        let problem = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(Error::invalid(&path.child("sleep"), sleep.seconds, problem));
    }
    if actions == 0 {
        errors.push(Error::required(path, "must specify a handler type"));
    }
}

fn http_get(errors: &mut ErrorList, path: &Path, get: &HTTPGetAction) {
    validate::required(errors, &path.child("path"), get.path.as_deref().unwrap_or(""));
    validate::port_or_name(errors, &path.child("port"), &get.port);
    let scheme = get.scheme.as_deref().unwrap_or("");
    validate::supported_value(errors, &path.child("scheme"), scheme, &["HTTP", "HTTPS"]);
    for header in get.http_headers.iter().flatten() {
        let found = names::http_header_name(&header.name);
        validate::problems(errors, &path.child("httpHeaders"), &header.name, found);
    }
}
