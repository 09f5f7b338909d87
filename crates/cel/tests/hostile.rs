//! Hostile expressions: random, deep, large, growing. None may panic, overflow the stack or run for long.

use std::thread;
use std::time::{Duration, Instant};

use knarr_cel::{Activation, Budget, Declarations, Type, checked, compile, schema};
use serde_json::json;

/// The smallest stack of the server's threads, in bytes.
const STACK: usize = 2 << 20;

fn decls() -> Declarations {
    Declarations::new()
        .stored()
        .with_bindings()
        .with_json_patch()
        .with_object_literals()
        .variable("o", Type::Dyn)
}

/// Compiles, estimates and evaluates an expression within a time limit; ignores the result.
fn survive(source: &str) {
    let begun = Instant::now();
    let decls = decls();
    if let Ok(expression) = checked(source, &decls, &[]) {
        let range = expression.estimate(&decls);
        assert!(range.min <= range.max, "{source}");
        if let Ok(program) = expression.program() {
            let object = json!({"a": [1, 2, {"b": "text"}], "s": "some text", "n": 5, "m": {"k": null}});
            let activation = Activation::new().with("o", schema::dynamic(&object));
            let mut budget = Budget::default();
            if let Ok(value) = program.evaluate(&activation, &mut budget) {
                let _ = (value.to_json(), value.to_string());
            }
        }
    }
    let shown: String = source.chars().take(200).collect();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}: {shown}", begun.elapsed());
}

fn in_small_stack(work: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(STACK).spawn(work).unwrap();
    thread.join().unwrap();
}

const PARTS: &[&str] = &[
    "o",
    ".a",
    ".s",
    "[0]",
    "[?1]",
    ".?b",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "?",
    "+",
    "-",
    "*",
    "/",
    "%",
    "!",
    "==",
    "!=",
    "<",
    ">=",
    "in",
    "&&",
    "||",
    "1",
    "2u",
    "1.5",
    "'x'",
    "b'y'",
    "r'\\d+'",
    "null",
    "true",
    "x",
    "y",
    ".map(x, ",
    ".all(x, ",
    ".exists(x, y, ",
    ".filter(x, ",
    ".transformMap(x, y, ",
    ".optMap(x, ",
    ".sortBy(x, ",
    "cel.bind(x, ",
    "has(",
    "dyn(",
    "size(",
    "string(",
    "duration('1h')",
    "timestamp('2020-01-01T00:00:00Z')",
    ".matches(",
    ".split(",
    ".join()",
    ".format([",
    "quantity('1Gi')",
    "optional.of(",
    ".orValue(",
    "Object{",
    "JSONPatch{op: ",
    "`",
    "\"",
    "\\",
    "é",
    "\u{0}",
    "//",
    "\n",
    " ",
    ".",
    "'''",
    "type(",
    "ip('::1')",
    "url('/a')",
    ".flatten()",
];

#[test]
fn random_expressions_do_no_harm() {
    in_small_stack(|| {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..6000 {
            let length = rng.usize(1..24);
            let source: String = (0..length).map(|_| PARTS[rng.usize(..PARTS.len())]).collect();
            survive(&source);
        }
    });
}

#[test]
fn random_bytes_do_no_harm() {
    in_small_stack(|| {
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..3000 {
            let bytes: Vec<u8> = (0..rng.usize(1..60)).map(|_| rng.u8(..)).collect();
            survive(&String::from_utf8_lossy(&bytes));
        }
    });
}

#[test]
fn deep_expressions_fit_on_the_stack() {
    let around = |open: &str, n: usize, inner: &str, close: &str| open.repeat(n) + inner + &close.repeat(n);
    let sources = [
        around("(", 249, "1", ")"),
        around("[", 249, "1", "]"),
        around("{'a': ", 249, "1", "}"),
        around("!(", 240, "true", ")"),
        around("-(", 240, "1", ")"),
        around("dyn(", 249, "1", ")"),
        around("true ? (", 240, "1", ") : 2"),
        around("optional.of(", 240, "1", ")"),
        around("[1].map(x, ", 100, "1", ")"),
        around("[1].all(x, ", 100, "true", ")"),
        around("cel.bind(x, 1, ", 200, "x", ")"),
        "o".to_owned() + &".a".repeat(249),
        "o".to_owned() + &"[0]".repeat(249),
        "1".to_owned() + &" + 1".repeat(249),
        "true".to_owned() + &" && true".repeat(5000),
        around("1 + (", 240, "1", ")"),
        around("o[", 240, "0", "]"),
        around("(true && (", 120, "true", "))"),
        around("1 == (", 200, "1", ") == 1"),
    ];
    for source in sources {
        in_small_stack(move || survive(&source));
    }
}

#[test]
fn growth_has_an_end() {
    let doubled = |step: &str, n: usize| "[1]".to_owned() + &step.repeat(n);
    let sources = [
        // Types, values and trees that double with every step.
        doubled(".map(x, [x, x])", 60),
        doubled(".map(x, {'a': x, 'b': x})", 60),
        doubled(".map(x, {x: x})", 60),
        "optional.of(1)".to_owned() + &".optMap(x, x)".repeat(60),
        (0..40).fold("'0123456789'".to_owned(), |s, _| format!("cel.bind(x, {s}, x + x)")),
        (0..40).fold("[1, 2, 3]".to_owned(), |s, _| format!("cel.bind(x, {s}, x + x)")),
        (0..40).fold("'ab'".to_owned(), |s, _| format!("cel.bind(x, {s}, x.replace('', x))")),
        // Nested loops.
        "lists.range(1000000).map(a, lists.range(1000000).map(b, a * b))".to_owned(),
        "lists.range(100000).all(a, lists.range(100000).all(b, true))".to_owned(),
        "lists.range(300000).distinct()".to_owned(),
        // Patterns.
        "'a'.matches('((((a{1000}){1000}){1000}){1000})')".to_owned(),
        "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!'.matches('^(a+)+$')".to_owned(),
        "'x'.matches('".to_owned() + &"(".repeat(20000) + "')",
        "'%.999999999f'.format([1.0])".to_owned(),
        "[[[1]]].flatten(9223372036854775807)".to_owned(),
    ];
    for source in sources {
        in_small_stack(move || survive(&source));
    }
}

#[test]
fn an_evaluation_can_be_interrupted() {
    let program = compile("lists.range(1000).all(a, a >= 0)", &decls(), &[Type::Bool]).unwrap();
    let stop = || true;
    let mut budget = Budget::default().interruptible(&stop);
    let error = program.evaluate(&Activation::new(), &mut budget).unwrap_err();
    assert_eq!(error.to_string(), "operation interrupted");
}

#[test]
fn budgets_are_kept() {
    let program = compile("lists.range(200000).all(a, a >= 0)", &decls(), &[Type::Bool]).unwrap();
    let mut budget = Budget::default();
    let error = program.evaluate(&Activation::new(), &mut budget).unwrap_err();
    assert_eq!(error.to_string(), "operation cancelled: actual cost limit exceeded");
    let cheap = compile("lists.range(30000).all(a, a >= 0)", &decls(), &[Type::Bool]).unwrap();
    let mut budget = Budget::new(300_000);
    assert!(cheap.evaluate(&Activation::new(), &mut budget).is_ok());
    assert!(cheap.evaluate(&Activation::new(), &mut budget).is_ok());
    assert!(budget.is_exhausted());
    assert!(cheap.evaluate(&Activation::new(), &mut budget).is_err());
}
