//! Validation of requests and limits: names, amounts, and requests within limits.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

use crate::validate;

const CONTAINER: &[&str] = &["cpu", "memory", "ephemeral-storage"];
const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
    "requests.storage",
    "storage",
];
/// Resources that are counted in whole units.
const INTEGER: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Returns whether this is a name without a prefix that Kubernetes knows.
pub fn is_standard_resource(name: &str) -> bool {
    STANDARD.contains(&name) || is_huge_page(name) || name.starts_with("requests.hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::label_key(&format!("requests.{name}")).is_empty()
}

/// Returns whether requests may exceed the capacity: the resource can be shared.
fn can_be_overcommitted(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Validates a resource name; returns whether it is valid.
pub fn resource_name(errors: &mut ErrorList, path: &Path, name: &str) -> bool {
    let found = names::label_key(name);
    let fine = found.is_empty();
    validate::problems(errors, path, name, found);
    if fine && !name.contains('/') && !is_standard_resource(name) {
        let problem = "must be a standard resource type or fully qualified";
        errors.push(Error::invalid(path, name, problem));
        return false;
    }
    fine
}

/// Validates the name of a resource that a container can request.
pub fn container_resource_name(errors: &mut ErrorList, path: &Path, name: &str) {
    resource_name(errors, path, name);
    if !name.contains('/') {
        if !CONTAINER.contains(&name) && !is_huge_page(name) {
            errors.push(Error::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(Error::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

fn pod_resource_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if resource_name(errors, path, name) && !matches!(name, "cpu" | "memory") && !is_huge_page(name) {
        errors.push(validate::not_supported(path, name, &["cpu", "hugepages-", "memory"]));
    }
}

/// Requires an amount that is not negative, and whole if the resource is counted.
pub fn quantity(errors: &mut ErrorList, path: &Path, name: &str, quantity: &ApiQuantity) {
    let Ok(quantity) = Quantity::try_from(quantity) else { return };
    if quantity.signum() < 0 {
        errors.push(Error::invalid(path, quantity.to_string(), validate::NEGATIVE));
    }
    let whole = INTEGER.contains(&name) || is_extended(name);
    if whole && quantity.nanos() % 1_000_000_000 != 0 {
        errors.push(Error::invalid(path, quantity.to_string(), "must be an integer"));
    }
}

type NameRule = fn(&mut ErrorList, &Path, &str);

pub fn of_container(
    errors: &mut ErrorList,
    path: &Path,
    requirements: &ResourceRequirements,
    spec: &PodSpec,
) {
    self::requirements(errors, path, requirements, container_resource_name);
    claims(errors, &path.child("claims"), requirements, spec);
}

/// Validates a list as limits, without requests.
pub fn limits_alone(errors: &mut ErrorList, path: &Path, limits: &BTreeMap<String, ApiQuantity>) {
    let requirements = ResourceRequirements { limits: Some(limits.clone()), ..Default::default() };
    self::requirements(errors, path, &requirements, container_resource_name);
}

fn requirements(
    errors: &mut ErrorList,
    path: &Path,
    requirements: &ResourceRequirements,
    name_rule: NameRule,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let (mut compute, mut huge) = (false, false);
    let mut look = |errors: &mut ErrorList, path: &Path, name: &str, amount: &ApiQuantity| {
        name_rule(errors, path, name);
        quantity(errors, path, name, amount);
        compute |= matches!(name, "cpu" | "memory");
        huge |= is_huge_page(name);
    };
    for (name, limit) in requirements.limits.iter().flatten() {
        look(errors, &limits_path.key(name), name, limit);
    }
    for (name, request) in requirements.requests.iter().flatten() {
        look(errors, &requests_path.key(name), name, request);
        let limit = requirements.limits.as_ref().and_then(|l| l.get(name));
        within_limit(errors, [&requests_path, &limits_path], name, request, limit);
    }
    if huge && !compute {
        errors.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
}

fn within_limit(
    errors: &mut ErrorList,
    [requests_path, limits_path]: [&Path; 2],
    name: &str,
    request: &ApiQuantity,
    limit: Option<&ApiQuantity>,
) {
    let shared = can_be_overcommitted(name);
    let Some(limit) = limit else {
        if !shared {
            let why = "Limit must be set for non overcommitable resources";
            errors.push(Error::required(limits_path, why));
        }
        return;
    };
    let (Ok(request), Ok(limit)) = (Quantity::try_from(request), Quantity::try_from(limit)) else { return };
    let how = if request != limit && !shared {
        "equal to"
    } else if request > limit {
        "less than or equal to"
    } else {
        return;
    };
    let problem = format!("must be {how} {name} limit of {limit}");
    errors.push(Error::invalid(requests_path, request.to_string(), problem));
}

fn claims(errors: &mut ErrorList, path: &Path, requirements: &ResourceRequirements, spec: &PodSpec) {
    let of_pod: BTreeSet<&str> = spec.resource_claims.iter().flatten().map(|c| c.name.as_str()).collect();
    let mut seen = BTreeSet::new();
    for (i, claim) in requirements.claims.iter().flatten().enumerate() {
        let path = path.index(i);
        if !validate::required(errors, &path, &claim.name) {
            continue;
        }
        let key = match claim.request.as_deref() {
            Some(request) if !request.is_empty() => format!("{}/{request}", claim.name),
            _ => claim.name.clone(),
        };
        if !seen.insert(key.clone()) {
            errors.push(Error::duplicate(&path, key));
        }
        if !of_pod.contains(claim.name.as_str()) {
            let mut error = Error::not_found(&path, claim.name.as_str());
            let names: Vec<&str> = of_pod.iter().copied().collect();
            error.detail = match names.as_slice() {
                [] => "must be one of the names in pod.spec.resourceClaims which is empty".to_owned(),
                names => format!("must be one of the names in pod.spec.resourceClaims: {}", names.join(", ")),
            };
            errors.push(error);
        }
    }
}

/// Validates `spec.resources`: requests and limits of the pod as a whole.
pub fn of_pod(errors: &mut ErrorList, path: &Path, spec: &PodSpec) {
    let Some(requirements) = &spec.resources else { return };
    let path = path.child("resources");
    if requirements.claims.is_some() {
        let why = "claims may not be set for Resources at pod-level";
        errors.push(Error::forbidden(&path.child("claims"), why));
    }
    self::requirements(errors, &path, requirements, pod_resource_name);
}
