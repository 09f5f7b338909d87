//! CronJob: creates Jobs on a schedule.

use k8s_openapi::api::batch::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::job::{default_patterns, name_warning, spec_warnings};
use super::schedule::Schedule;
use super::{timezone, validation};
use crate::core::pod::default_template;
use crate::defaults::{Fields, blank, child, existing, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["cj"],
    categories: &["all"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::CronJob::RESOURCE, "CronJobList", "cronjob", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Schedule", "string", "The schedule in Cron format."),
    Column::new("Timezone", "string", "The time zone of the schedule."),
    Column::new("Suspend", "boolean", "Whether new runs are suspended."),
    Column::new("Active", "integer", "The number of running Jobs."),
    Column::new("Last Schedule", "string", "The time since a Job was last scheduled."),
    AGE,
    Column::wide("Containers", "string", "The names of the containers in the template."),
    Column::wide("Images", "string", "The images of the containers in the template."),
    Column::wide("Selector", "string", "The label selector for the pods."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::CronJob>().unwrap_or_default();
    let (spec, status) = (o.spec.clone(), o.status.clone().unwrap_or_default());
    let suspend = match spec.suspend {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let last = status.last_schedule_time.map_or(Value::from("<none>"), |t| table::age(Some(&t), cx));
    let job = spec.job_template.spec.unwrap_or_default();
    let [names, images] = table::containers(&job.template.spec.unwrap_or_default().containers);
    vec![
        Value::from(object.name()),
        Value::from(spec.schedule),
        Value::from(spec.time_zone.as_deref().unwrap_or("<none>")),
        Value::from(suspend),
        Value::from(status.active.map_or(0, |a| a.len())),
        last,
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        names,
        images,
        Value::from(table::selector(job.selector.as_ref())),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        blank(spec, "concurrencyPolicy", "Allow");
        unset(spec, "suspend", false);
        unset(spec, "successfulJobsHistoryLimit", 3);
        unset(spec, "failedJobsHistoryLimit", 1);
        let template = spec.entry("jobTemplate").or_insert_with(|| Value::Object(Fields::new()));
        if !template.is_object() {
            return;
        }
        default_template(template);
        if let Some(job) = existing(prepare::object(template), "spec") {
            default_patterns(job);
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
        prepare::drop_in(object, SCHEDULING);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        if subresource.is_none() && old.pointer("/spec/jobTemplate/spec/scheduling").is_none() {
            prepare::drop_in(new, SCHEDULING);
        }
        prepare::update_with_generation(new, old, subresource);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let Ok(cron) = object.typed::<api::CronJob>() else { return ErrorList::new() };
        let mut errors = ErrorList::new();
        validate_spec(&mut errors, &cron, None);
        if cron.name().len() > NAME_MAX {
            let path = Path::new("metadata").child("name");
            let problem = format!("must be no more than {NAME_MAX} characters");
            errors.push(Error::invalid(&path, cron.name(), problem));
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let mut errors = ErrorList::new();
        if let (None, Ok(new), Ok(old)) =
            (subresource, new.typed::<api::CronJob>(), old.typed::<api::CronJob>())
        {
            validate_spec(&mut errors, &new, Some(&old));
        }
        errors
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(cron) = new.typed::<api::CronJob>() else { return Vec::new() };
        let before = old.and_then(|o| o.typed::<api::CronJob>().ok());
        let mut warnings = Vec::new();
        if before.is_none() {
            warnings.extend(name_warning(new.name()));
        }
        let same = before.as_ref().is_some_and(|b| b.metadata.generation == cron.metadata.generation);
        if let Some(spec) = cron.spec.job_template.spec.as_ref().filter(|_| !same) {
            let path = Path::new("spec").child("jobTemplate").child("spec");
            warnings.extend(spec_warnings(&path, spec));
        }
        let zoned = cron.spec.schedule.contains("TZ");
        if before.is_some() && zoned {
            warnings.push(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                    .to_owned(),
            );
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const SCHEDULING: &[&str] = &["spec", "jobTemplate", "spec", "scheduling"];
/// The longest name: its Jobs' names add a dash and ten digits.
const NAME_MAX: usize = 52;

fn validate_spec(errors: &mut ErrorList, cron: &api::CronJob, before: Option<&api::CronJob>) {
    let spec = &cron.spec;
    let old = before.map(|b| &b.spec);
    let path = Path::new("spec");
    let at = path.child("schedule");
    if validate::required(errors, &at, &spec.schedule) {
        let zone_allowed = old.is_some_and(|o| o.schedule.contains("TZ"));
        validate_schedule(errors, &at, spec, zone_allowed);
    }
    let deadline = spec.starting_deadline_seconds.unwrap_or(0);
    validate::nonnegative(errors, &path.child("startingDeadlineSeconds"), deadline);
    if old.is_none_or(|o| o.time_zone != spec.time_zone) {
        validate_zone(errors, &path.child("timeZone"), spec.time_zone.as_deref());
    }
    let policy = spec.concurrency_policy.as_deref().unwrap_or("");
    validate::one_of(errors, &path.child("concurrencyPolicy"), policy, &["Allow", "Forbid", "Replace"]);
    let job = spec.job_template.spec.clone().unwrap_or_default();
    let job_path = path.child("jobTemplate").child("spec");
    validation::spec(errors, &job_path, &job);
    if let Some(selector) = &job.selector {
        let text = validate::selector_text(selector);
        let problem = "`selector` will be auto-generated";
        errors.push(validate::invalid_text(&job_path.child("selector"), &text, problem));
    }
    if job.manual_selector == Some(true) {
        let path = job_path.child("manualSelector");
        errors.push(validate::not_supported(&path, true, &["nil", "false"]));
    }
    for (field, limit) in [
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit),
    ] {
        validate::nonnegative(errors, &path.child(field), i64::from(limit.unwrap_or(0)));
    }
}

fn validate_schedule(errors: &mut ErrorList, path: &Path, spec: &api::CronJobSpec, zone_allowed: bool) {
    let schedule = spec.schedule.as_str();
    if let Err(problem) = Schedule::parse(schedule) {
        errors.push(Error::invalid(path, schedule, problem));
    }
    let problem = match (schedule.contains("TZ"), zone_allowed) {
        (true, true) if spec.time_zone.is_some() => {
            "cannot use both timeZone field and TZ or CRON_TZ in schedule"
        }
        (true, false) => "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        _ => return,
    };
    errors.push(Error::invalid(path, schedule, problem));
}

fn validate_zone(errors: &mut ErrorList, path: &Path, zone: Option<&str>) {
    let Some(zone) = zone else { return };
    let mut invalid = |problem: &str| errors.push(Error::invalid(path, zone, problem));
    if zone.is_empty() {
        invalid("timeZone must be nil or non-empty string");
        return;
    }
    let letter = |b: u8| b.is_ascii_alphanumeric() || b".-_+".contains(&b);
    let bad = |part: &str| {
        matches!(part, "." | "..")
            || part.starts_with('-')
            || !matches!(part.len(), 1..=14)
            || !part.bytes().all(letter)
    };
    if zone.split('/').any(bad) {
        invalid(&format!("unknown time zone {zone}"));
        return;
    }
    if zone.eq_ignore_ascii_case("Local") {
        invalid("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones");
    }
    if let Some(problem) = timezone::problem(zone) {
        invalid(&problem);
    }
}
