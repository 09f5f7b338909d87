//! A target for CEL: expressions are parsed, checked, estimated, and evaluated within a budget, like those of
//! policies and device selectors.

use std::str::from_utf8;

use knarr_api::admissionregistration::expressions::{Composition, Offers, declarations};
use knarr_api::devices::expressions as devices;
use knarr_cel::{Activation, Budget, Declarations, checked, schema};
use serde_json::{Value, json};

use crate::Target;

/// The cost that an evaluation may have here: a tenth of that in a server, which is optimized.
const BUDGET: u64 = 1_000_000;

const CORPUS: &[&str] = &[
    "object.spec.replicas > 1 && object.metadata.name.startsWith('a')",
    "object.spec.containers.all(c, c.image.matches('^[a-z]+(:[0-9.]+)?$') && !has(c.args))",
    "object.spec.containers.exists_one(c, c.name == 'x') ? [1, 2u, 3.0].size() : size({'a': b'c'})",
    "object.metadata.?labels['a'].orValue('').lowerAscii().split(',').map(x, x + 'y').join('-')",
    "request.userInfo.groups.filter(g, g in ['a', r'b\\']).sort().indexOf('a') == -1",
    "quantity('1.5Gi').add(quantity('20k')).isGreaterThan(quantity(object.spec.size))",
    "ip('::ffff:1.2.3.4').family() == 6 || cidr('10.0.0.0/8').containsIP('10.1.2.3')",
    "url('https://a.b:80/c?d=e').getQuery()['d'][0] + string(duration('1h30m').getMinutes())",
    "timestamp('2026-01-01T00:00:00Z') + duration('90s') < timestamp('2026-01-02T00:00:00.5+01:00')",
    "'%s is %d, %.3f and %x'.format(['a', 5, 2.5, 255]).replace('a', 'bb', 1).substring(1, 4)",
    "Object{spec: Object.spec{replicas: 3, containers: [Object.spec.containers{name: 'a'}]}}",
    "[JSONPatch{op: 'add', path: '/' + jsonpatch.escapeKey('a/b'), value: {'k': dyn([1])}}]",
    "authorizer.group('').resource('pods').namespace('a').check('get').allowed()",
    "variables.n % 2 == 0 && variables.list.exists(i, v, i < 3 && v > variables.n)",
    "lists.range(100).map(a, lists.range(100).map(b, a * b)).flatten().distinct().sum() / 7",
    "device.attributes['a.b'].c == 'x' && device.capacity['a'].m.compareTo(quantity('1')) > 0",
    "cel.bind(d, device.attributes['a.b'], d.x || d.y.isLessThan(semver('1.2.3-rc.1+b')))",
    "format.dns1123Label().validate(object.metadata.name).hasValue() // words\n|| \"\"\"x\ny\"\"\" == '\\u00e9\\x41'",
];

pub fn all() -> Vec<Target> {
    let corpus = CORPUS.iter().map(|text| text.as_bytes().to_vec()).collect();
    let (decls, object) = (surroundings(), object());
    let run = Box::new(move |input: &[u8]| {
        let Ok(source) = from_utf8(input) else { return };
        for decls in &decls {
            evaluate(source, decls, &object);
        }
    });
    vec![Target { name: "cel", corpus, run }]
}

fn surroundings() -> [Declarations; 2] {
    let mut variables = Composition::default();
    variables.add("n", None);
    variables.add("list", None);
    let all = Offers { params: true, authorizer: true, patches: true };
    [variables.declare(declarations(all).stored()), devices::declarations().stored()]
}

fn object() -> Value {
    json!({
        "metadata": {"name": "abc", "labels": {"a": "B,c"}},
        "spec": {"replicas": 3, "size": "2Gi", "containers": [
            {"name": "x", "image": "nginx:1.2", "args": ["a"]}, {"name": "y", "image": "redis"}]},
        "userInfo": {"groups": ["a", "b"], "username": "u"},
        "n": 4, "list": [1, 5, 9, null, {"deep": [[["x"]]]}],
        "attributes": {"a.b": {"c": "x", "x": true}}, "capacity": {"a": {}}, "driver": "d",
    })
}

fn evaluate(source: &str, decls: &Declarations, object: &Value) {
    let Ok(expression) = checked(source, decls, &[]) else { return };
    let range = expression.estimate(decls);
    assert!(range.min <= range.max, "an estimate from {} to {}", range.min, range.max);
    let Ok(program) = expression.program() else { return };
    let mut activation = Activation::new();
    for name in ["object", "oldObject", "request", "namespaceObject", "params", "variables", "device"] {
        activation = activation.with(name, schema::dynamic(object));
    }
    if let Ok(value) = program.evaluate(&activation, &mut Budget::new(BUDGET)) {
        let _ = (value.to_json(), value.type_of());
    }
}
