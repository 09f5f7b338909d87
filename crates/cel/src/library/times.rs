//! Parts of timestamps and durations.

use jiff::Zoned;

use super::function::Function;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::time;
use crate::value::Value;

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "getFullYear",
        overloads: &[
            ("timestamp_to_year", "timestamp.()int"),
            ("timestamp_to_year_with_tz", "timestamp.(string)int"),
        ],
        call: |args, _| part(args, |z| i64::from(z.year())),
    },
    Function {
        name: "getMonth",
        overloads: &[
            ("timestamp_to_month", "timestamp.()int"),
            ("timestamp_to_month_with_tz", "timestamp.(string)int"),
        ],
        call: |args, _| part(args, |z| i64::from(z.month()) - 1),
    },
    Function {
        name: "getDayOfYear",
        overloads: &[
            ("timestamp_to_day_of_year", "timestamp.()int"),
            ("timestamp_to_day_of_year_with_tz", "timestamp.(string)int"),
        ],
        call: |args, _| part(args, |z| i64::from(z.day_of_year()) - 1),
    },
    Function {
        name: "getDayOfMonth",
        overloads: &[
            ("timestamp_to_day_of_month", "timestamp.()int"),
            ("timestamp_to_day_of_month_with_tz", "timestamp.(string)int"),
        ],
        call: |args, _| part(args, |z| i64::from(z.day()) - 1),
    },
    Function {
        name: "getDate",
        overloads: &[
            ("timestamp_to_day_of_month_1_based", "timestamp.()int"),
            ("timestamp_to_day_of_month_1_based_with_tz", "timestamp.(string)int"),
        ],
        call: |args, _| part(args, |z| i64::from(z.day())),
    },
    Function {
        name: "getDayOfWeek",
        overloads: &[
            ("timestamp_to_day_of_week", "timestamp.()int"),
            ("timestamp_to_day_of_week_with_tz", "timestamp.(string)int"),
        ],
        call: |args, _| part(args, |z| i64::from(z.weekday().to_sunday_zero_offset())),
    },
    Function {
        name: "getHours",
        overloads: &[
            ("timestamp_to_hours", "timestamp.()int"),
            ("timestamp_to_hours_with_tz", "timestamp.(string)int"),
            ("duration_to_hours", "duration.()int"),
        ],
        call: |args, _| span(args, 3_600_000_000_000).unwrap_or_else(|| part(args, |z| i64::from(z.hour()))),
    },
    Function {
        name: "getMinutes",
        overloads: &[
            ("timestamp_to_minutes", "timestamp.()int"),
            ("timestamp_to_minutes_with_tz", "timestamp.(string)int"),
            ("duration_to_minutes", "duration.()int"),
        ],
        call: |args, _| span(args, 60_000_000_000).unwrap_or_else(|| part(args, |z| i64::from(z.minute()))),
    },
    Function {
        name: "getSeconds",
        overloads: &[
            ("timestamp_to_seconds", "timestamp.()int"),
            ("timestamp_to_seconds_tz", "timestamp.(string)int"),
            ("duration_to_seconds", "duration.()int"),
        ],
        call: |args, _| span(args, 1_000_000_000).unwrap_or_else(|| part(args, |z| i64::from(z.second()))),
    },
    Function {
        name: "getMilliseconds",
        overloads: &[
            ("timestamp_to_milliseconds", "timestamp.()int"),
            ("timestamp_to_milliseconds_with_tz", "timestamp.(string)int"),
            ("duration_to_milliseconds", "duration.()int"),
        ],
        call: milliseconds,
    },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

fn part<'a>(args: &[Value<'a>], part: impl Fn(&Zoned) -> i64) -> Outcome<'a> {
    let (timestamp, zone) = match args {
        [Value::Timestamp(t)] => (t, jiff::tz::TimeZone::UTC),
        [Value::Timestamp(t), Value::String(name)] => (t, time::zone(name)?),
        _ => return Err(EvalError::NoSuchOverload),
    };
    Ok(Value::Int(part(&timestamp.to_zoned(zone))))
}

/// Converts a duration to a unit, if the value is a duration.
fn span<'a>(args: &[Value<'a>], unit: i64) -> Option<Outcome<'a>> {
    if let [Value::Duration(nanos)] = args { Some(Ok(Value::Int(nanos / unit))) } else { None }
}

fn milliseconds<'a>(args: &[Value<'a>], _: &mut Budget<'_>) -> Outcome<'a> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000)),
        _ => part(args, |z| i64::from(z.millisecond())),
    }
}
