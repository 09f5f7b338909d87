//! MutatingAdmissionPolicy: policies run one after the other; each receives the object as the previous ones changed
//! it.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_api::admissionregistration::expressions::{Offers, declarations};
use knarr_api::admissionregistration::{mutatingadmissionpolicy, mutatingadmissionpolicybinding};
use knarr_api::resource::Resource;
use knarr_apimachinery::schema::{self, validate::decode_request};
use knarr_apimachinery::status::StatusError;
use knarr_cel::library::authz::Check;
use serde_json::Value;

use super::definitions::{Binding, Bound, Compiled, Policies, Policy};
use super::expression::{Expression, named};
use super::inputs::{self, Inputs};
use super::params;
use super::patches::{Mutation, MutationKind, Schemas, mutated};
use super::questions::Questions;
use super::variables::Variables;
use crate::Context;
use crate::config::AdmissionConfig;
use crate::match_conditions::MatchConditions;
use crate::matching::{Invocation, concerned_policies, presented, versions, whole};
use crate::{Attributes, Operation, Plugin, Reinvocation};
use knarr_registry::served::Served;

pub struct MutatingAdmissionPolicy {
    policies: Policies<Mutations>,
}

const NAME: &str = "MutatingAdmissionPolicy";

/// The compiled expressions of a mutating policy.
pub struct Mutations {
    pub conditions: MatchConditions,
    pub variables: Variables,
    pub list: Vec<Mutation>,
    /// Whether `reinvocationPolicy` is `IfNeeded`.
    reinvoke: bool,
}

impl Compiled for Mutations {
    const POLICIES: &'static Resource = &mutatingadmissionpolicy::RESOURCE;
    const BINDINGS: &'static Resource = &mutatingadmissionpolicybinding::RESOURCE;

    fn compile(spec: &Value) -> Self {
        let params = spec["paramKind"].is_object();
        let with = |patches| declarations(Offers { params, authorizer: true, patches }).stored();
        let (variables, composition) = Variables::compile(&named(&spec["variables"]), &with(false));
        let decls = composition.declare(with(true));
        let mutation = |v: &Value| {
            let kind = match v["patchType"].as_str() {
                Some("JSONPatch") => MutationKind::JsonPatch,
                _ => MutationKind::ApplyConfiguration,
            };
            let text = v[kind.field()]["expression"].as_str().unwrap_or("");
            Mutation { kind, expression: Expression::new(text, &decls, &[kind.wanted()]) }
        };
        Self {
            conditions: MatchConditions::within(&named(&spec["matchConditions"]), &with(false)),
            list: spec["mutations"].as_array().into_iter().flatten().map(mutation).collect(),
            reinvoke: spec["reinvocationPolicy"] == "IfNeeded",
            variables,
        }
    }
}

/// A policy with a binding and one parameter object.
struct Task<'p> {
    policy: &'p Policy<Mutations>,
    binding: &'p str,
    invocation: Invocation,
    params: Value,
}

/// The errors of policies whose failure policy is Fail; the first one determines the reason.
#[derive(Default)]
struct Complaints {
    list: Vec<(String, &'static str)>,
}

impl Complaints {
    fn add(&mut self, policy: &Policy<Mutations>, binding: Option<&str>, why: &str, reason: &'static str) {
        if policy.ignores_failures {
            return;
        }
        let message = match binding {
            Some(binding) => {
                format!("policy '{}' with binding '{binding}' denied request: {why}", policy.name)
            }
            None => format!("policy \"{}\" denied request: {why}", policy.name),
        };
        self.list.push((message, reason));
    }

    fn answer(self, attributes: &Attributes<'_>) -> Result<(), StatusError> {
        let Some((message, reason)) = self.list.first() else { return Ok(()) };
        let mut error = attributes.forbidden("admission request denied by policy");
        error.0.message = Some(message.clone());
        if !reason.is_empty() {
            error.0.reason = Some((*reason).to_owned());
        }
        let causes = error.0.details.get_or_insert_default().causes.get_or_insert_default();
        causes.extend(
            self.list
                .into_iter()
                .map(|(message, _)| StatusCause { message: Some(message), ..StatusCause::default() }),
        );
        Err(error)
    }
}

impl MutatingAdmissionPolicy {
    pub fn new(settings: &AdmissionConfig) -> Result<Self, String> {
        Ok(Self { policies: Policies::new(settings.manifests.mutating_policies.as_deref())? })
    }
}

#[async_trait]
impl Plugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        let bound = self.policies.bound(concerned_policies(attributes), attributes.request, context)?;
        if bound.is_empty() {
            return Ok(());
        }
        let mut complaints = Complaints::default();
        let mut tasks = Vec::new();
        let object = presented(attributes, &attributes.object);
        for bound in bound.iter() {
            collect(bound, attributes, &object, &mut tasks, &mut complaints, context).await;
        }
        if tasks.is_empty() {
            return complaints.answer(attributes);
        }
        let namespace = inputs::namespace(attributes, context).await?;
        let mut memory = attributes.reinvocations.remove(NAME).unwrap_or_default();
        memory.begin(attributes.reinvoking, &attributes.object);
        let questions = Questions::new();
        let mut done = Ok(());
        for task in &tasks {
            let around = (&namespace, &questions);
            done = run(task, attributes, around, &mut memory, &mut complaints, context).await;
            if done.is_err() {
                break;
            }
        }
        memory.end(&attributes.object);
        attributes.reinvocations.insert(NAME, memory);
        done?;
        complaints.answer(attributes)
    }
}

/// Collects the tasks of one policy.
async fn collect<'p>(
    bound: &'p Bound<Mutations>,
    attributes: &Attributes<'_>,
    object: &Value,
    tasks: &mut Vec<Task<'p>>,
    complaints: &mut Complaints,
    context: &Context<'_>,
) {
    let policy = &*bound.policy;
    let invocation = match policy.constraints.invocation(attributes, object, context).await {
        Ok(Some(invocation)) => invocation,
        Ok(None) => return,
        Err(error) => {
            let why = format!("failed to configure policy: {}", error.message());
            return complaints.add(policy, None, &why, "");
        }
    };
    let kind = match policy.param_kind.as_ref().map(|kind| kind.resource(context)).transpose() {
        Ok(kind) => kind,
        Err(why) => return complaints.add(policy, None, &format!("failed to configure policy: {why}"), ""),
    };
    for binding in &bound.bindings {
        match params_of(kind.as_deref(), binding, attributes, object, context).await {
            Ok(found) => tasks.extend(found.into_iter().map(|params| Task {
                policy,
                binding: &binding.name,
                invocation: invocation.clone(),
                params,
            })),
            Err(why) => {
                let why = format!("failed to configure binding: {why}");
                complaints.add(policy, Some(&binding.name), &why, "");
            }
        }
    }
}

async fn params_of(
    kind: Option<&Served>,
    binding: &Binding,
    attributes: &Attributes<'_>,
    object: &Value,
    context: &Context<'_>,
) -> Result<Vec<Value>, String> {
    if let Some(resources) = &binding.resources {
        let matches = resources.invocation(attributes, object, context).await;
        if matches.map_err(|e| e.message().to_owned())?.is_none() {
            return Ok(Vec::new());
        }
    }
    params::collect(kind, binding.param_ref.as_ref(), attributes, context).await
}

/// The inputs of a task's expressions other than the object.
struct Around<'v> {
    old: Value,
    request: Value,
    namespace: &'v Value,
    params: &'v Value,
    questions: Arc<Questions>,
    about: Check,
}

impl Around<'_> {
    fn inputs<'v>(&'v self, object: &'v Value) -> Inputs<'v> {
        Inputs {
            object,
            old: &self.old,
            request: &self.request,
            namespace: self.namespace,
            params: self.params,
            authorizer: Some(self.questions.clone()),
            about: self.about.clone(),
        }
    }
}

/// Decodes a mutated object with strict field validation.
fn decoded(mutated: Value, invocation: &Invocation) -> Result<Value, StatusError> {
    if schema::for_kind(&invocation.kind).is_none() {
        return Ok(mutated);
    }
    let text = knarr_wire::output::to_json(&mutated);
    let decoded = decode_request(&text, &invocation.kind, true).map_err(|error| {
        let why = error.message();
        let own = why.split_once(" cannot be handled as a ").and_then(|(_, rest)| rest.split_once(": "));
        StatusError::internal(own.map_or(why, |(_, own)| own))
    })?;
    match decoded.strict_errors.as_slice() {
        [] => Ok(decoded.value),
        wrong => Err(StatusError::internal(format!("strict decoding error: {}", wrong.join(", ")))),
    }
}

async fn run(
    task: &Task<'_>,
    attributes: &mut Attributes<'_>,
    (namespace, questions): (&Value, &Arc<Questions>),
    memory: &mut Reinvocation,
    complaints: &mut Complaints,
    context: &Context<'_>,
) -> Result<(), StatusError> {
    let mutations: &Mutations = &task.policy.compiled;
    let old = presented(attributes, attributes.old.unwrap_or(&Value::Null));
    let old = versions::shown(&old, &task.invocation, attributes, context).await?;
    let mut object = presented(attributes, &attributes.object);
    object = versions::shown(&object, &task.invocation, attributes, context).await?;
    let request = inputs::request(attributes, &task.invocation);
    let about = inputs::about(attributes);
    let around =
        Around { old, request, namespace, params: &task.params, questions: Arc::clone(questions), about };
    let inputs = around.inputs(&object).without_namespace();
    match questions.settle(attributes, context, || mutations.conditions.hold(&inputs)).await {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(why) => {
            complaints.add(task.policy, Some(task.binding), &why, "Invalid");
            return Ok(());
        }
    }
    let param = |field: &str| task.params["metadata"][field].as_str().unwrap_or("");
    let key = format!("{}/{}/{}/{}", task.policy.name, task.binding, param("namespace"), param("name"));
    if attributes.reinvoking && !memory.is_wanted(&key) {
        return Ok(());
    }
    let schemas = Schemas::of(&task.invocation, context);
    let mut changed = false;
    for mutation in &mutations.list {
        if object.is_null() {
            continue;
        }
        let inputs = around.inputs(&object);
        let evaluate = || mutated(mutation, &mutations.variables, &inputs, &schemas);
        let outcome = questions.settle(attributes, context, evaluate).await;
        let why = outcome.as_ref().err().map(String::as_str);
        context.metrics.mutating_policy(&task.policy.name, task.binding, why);
        match outcome {
            Ok(new) => {
                let mut new = decoded(new, &task.invocation)?;
                if task.invocation.kind == attributes.resource.gvk() {
                    attributes.served.resource.default(&mut new, attributes.old);
                }
                changed |= new != object;
                object = new;
            }
            Err(why) => complaints.add(task.policy, Some(task.binding), &why, "Invalid"),
        }
    }
    if changed {
        let back = versions::returned(object, &task.invocation, attributes, context).await?;
        attributes.object = whole(attributes, back);
        memory.require();
        attributes.reinvoke = true;
    }
    if mutations.reinvoke {
        memory.note(&key);
    }
    Ok(())
}
