//! Paths and parameters in forms that servers may parse differently.

use super::requests::{METHODS, Question};

/// The number of random requests.
const RANDOM: usize = 1_500;

/// Hand-written paths.
const PATHS: &[&str] = &[
    "/",
    "//",
    "/healthz",
    "/healthz/",
    "/healthz/ping",
    "/healthz/ping/",
    "/healthz%2fping",
    "/healthz/nonsense",
    "/healthz?verbose",
    "/Healthz",
    "/livez",
    "/livez/ping",
    "/livez/ping/",
    "/livez?exclude=etcd",
    "/readyz",
    "/readyz/etcd",
    "/readyz/../metrics",
    "/readyz/%2e%2e/metrics",
    "/metrics",
    "/metrics/",
    "/metrics/slis",
    "/metricsx",
    "//metrics",
    "/./metrics",
    "/METRICS",
    "/%6detrics",
    "/version",
    "/version/",
    "/version/x",
    "/openapi",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/",
    "/openapi/v3/apis/apps/v1",
    "/openapi/v3/version",
    "/debug/pprof",
    "/debug/pprof/",
    "/debug/pprof/cmdline",
    "/debug/flags/v",
    "/debug/api_priority_and_fairness/dump_queues",
    "/logs",
    "/logs/",
    "/logs/x",
    "/statusz",
    "/flagz",
    "/api",
    "/api/",
    "/api?x",
    "/api/v1",
    "/api/v1/",
    "/api/v1//",
    "/api/v2",
    "/api/v2/pods",
    "/apix",
    "/API/v1/pods",
    "/apis",
    "/apis/",
    "/apis/apps",
    "/apis/apps/",
    "/apis/apps/v1",
    "/apis/apps/v1/",
    "/apis/apps/v9",
    "/apis/nobodys.example.com",
    "/apis/nobodys.example.com/v1",
    "/apis/remote.example.com",
    "/apis/remote.example.com/v1",
    "/apis/remote.example.com/v1/things",
    "/apis/example.com/v1",
    "/apis/example.com/v9/widgets",
    "/apis/Apps/v1/deployments",
    "/a/x/b",
    "/a/*/b",
    "/a*",
    "/nonsense",
    "/.well-known/openid-configuration",
    "/openid/v1/jwks",
    "/swagger.json",
    "/favicon.ico",
    "/index.html",
    "/api/v1/namespaces",
    "/api/v1/namespaces/",
    "/api/v1/namespaces/alpha",
    "/api/v1/namespaces/alpha/",
    "/api/v1/namespaces/alpha/status",
    "/api/v1/namespaces/alpha/status/",
    "/api/v1/namespaces/alpha/status/x",
    "/api/v1/namespaces/alpha/finalize",
    "/api/v1/namespaces/alpha/finalize/pods",
    "/api/v1/namespaces/alpha/scale",
    "/api/v1/namespaces/alpha/namespaces",
    "/api/v1/namespaces/alpha/namespaces/alpha",
    "/api/v1/namespaces/alpha/namespaces/beta",
    "/api/v1/namespaces/alpha/namespaces/alpha/status",
    "/api/v1/namespaces/alpha/nodes",
    "/api/v1/namespaces/alpha/nodes/n1",
    "/api/v1/namespaces/alpha/nodes/n1/proxy",
    "/api/v1/namespaces/alpha/nodes/n1/proxy/pods",
    "/api/v1/namespaces/alpha/nodes/n1/status",
    "/api/v1/namespaces//pods",
    "/api/v1/namespaces//pods/p1",
    "/api/v1/namespaces/alpha//pods",
    "/api/v1/namespaces/alpha/pods//",
    "/api/v1/namespaces/alpha/pods//log",
    "/api/v1/namespaces/alpha/pods/p1//log",
    "/api/v1/namespaces/alpha/pods/p1/log/",
    "/api/v1/namespaces/alpha/pods/p1/log/x",
    "/api/v1/namespaces/alpha/pods/p1/exec/x",
    "/api/v1/namespaces/alpha/pods/p1/",
    "/api/v1/namespaces/alpha/pods/p1%2flog",
    "/api/v1/namespaces/alpha/pods/p1%2Fexec",
    "/api/v1/namespaces/alpha/pods/p%31",
    "/api/v1/namespaces/alpha/pods/P1",
    "/api/v1/namespaces/Alpha/pods",
    "/api/v1/namespaces/alpha/Pods",
    "/api/v1/namespaces/alpha/pod",
    "/api/v1/namespaces/alpha/po",
    "/api/v1/namespaces%2falpha/pods",
    "/api/v1/namespaces/alpha%2fpods",
    "/api/v1%2fnamespaces/alpha/secrets/mounted",
    "/api%2fv1/namespaces/alpha/secrets/mounted",
    "/%61pi/v1/namespaces/alpha/secrets/mounted",
    "/api/v1/namespaces/alpha/secrets/mounted%00",
    "/api/v1/namespaces/alpha/secrets/mounted%20",
    "/api/v1/namespaces/alpha/secrets/mounted%3f",
    "/api/v1/namespaces/alpha/secrets/mounted;x",
    "/api/v1/namespaces/alpha/secrets/mounted%3bx",
    "/api/v1/namespaces/alpha/secrets/mounted%25",
    "/api/v1/namespaces/alpha/secrets/mounted%252f",
    "/api/v1/namespaces/alpha/secrets/%c3%bc",
    "/api/v1/namespaces/alpha/secrets/%ff",
    "/api/v1/namespaces/alpha/secrets/a+b",
    "/api/v1/namespaces/alpha/secrets/.",
    "/api/v1/namespaces/alpha/secrets/..",
    "/api/v1/namespaces/alpha/secrets/../secrets/mounted",
    "/api/v1/namespaces/alpha/./secrets/mounted",
    "/api/v1/./namespaces/alpha/secrets",
    "/api/v1/../v1/namespaces/alpha/secrets",
    "/api/v1/namespaces/alpha/../beta/secrets",
    "/api/v1/namespaces/alpha/%2e%2e/beta/secrets",
    "/api/v1/namespaces/../secrets",
    "/api/v1/namespaces/./secrets",
    "//api/v1/secrets",
    "///api/v1/secrets",
    "/api//v1/secrets",
    "/api/v1//secrets",
    "/api/v1/secrets//",
    "/apis//v1/secrets",
    "/apis/v1/secrets",
    "/apis//apps/v1/deployments",
    "/apis/apps//v1/deployments",
    "/api/v1/watch",
    "/api/v1/watch/",
    "/api/v1/watch/pods",
    "/api/v1/watch/pods/",
    "/api/v1/watch/pods/p1",
    "/api/v1/watch/nodes",
    "/api/v1/watch/nodes/n1",
    "/api/v1/watch/nodes/n1/status",
    "/api/v1/watch/namespaces",
    "/api/v1/watch/namespaces/alpha",
    "/api/v1/watch/namespaces/alpha/status",
    "/api/v1/watch/namespaces/alpha/pods",
    "/api/v1/watch/namespaces/alpha/pods/p1",
    "/api/v1/watch/namespaces/alpha/pods/p1/log",
    "/api/v1/watch/namespaces/alpha/secrets/mounted",
    "/api/v1/watch/watch/pods",
    "/api/v1/watch//pods",
    "/api/v1/Watch/pods",
    "/api/v1/proxy",
    "/api/v1/proxy/nodes/n1",
    "/api/v1/proxy/namespaces/alpha/pods/p1",
    "/api/v1/proxy/namespaces/alpha/services/web/x",
    "/api/v1/redirect/nodes/n1",
    "/apis/apps/v1/watch/deployments",
    "/apis/apps/v1/watch/namespaces/alpha/deployments/web",
    "/apis/example.com/v1/watch/namespaces/alpha/widgets",
    "/apis/example.com/v1/watch/namespaces/alpha/widgets/one",
    "/apis/example.com/v1/namespaces/alpha/widgets/one/status",
    "/apis/example.com/v1/namespaces/alpha/widgets/one/nonsense",
    "/apis/example.com/v1/widgets/one",
    "/apis/example.com/v1/namespaces/alpha/namespaces",
    "/api/v1/nodes/n1",
    "/api/v1/nodes/n1/proxy",
    "/api/v1/nodes/n1/proxy/",
    "/api/v1/nodes/n1/proxy//",
    "/api/v1/nodes/n1/proxy/../status",
    "/api/v1/nodes/n1/metrics",
    "/api/v1/nodes/n1/stats",
    "/api/v1/nodes/n1/log",
    "/api/v1/nodes/n1/configz",
    "/api/v1/nodes/n1/local-path",
    "/api/v1/nodes/n1/proxy/volumes/local-path/x",
    "/api/v1/pods/p1",
    "/api/v1/pods/p1/log",
    "/api/v1/secrets/mounted",
    "/api/v1/%70ods",
    "/api/v1/pods%3fwatch=true",
    "/api/v1/pods;watch=true",
    "/api/v1/pods%",
    "/api/v1/pods%zz",
    "/apis/authorization.k8s.io/v1/namespaces/alpha/localsubjectaccessreviews",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval",
    "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/status",
    "/apis/metrics.k8s.io/v1beta1/nodes",
    "/apis/metrics.k8s.io/v1beta1/namespaces/alpha/pods",
];

/// Query strings for lists and watches.
const PARAMETERS: &[&str] = &[
    "watch=1",
    "watch=true",
    "watch=TRUE",
    "watch=t",
    "watch=yes",
    "watch=nonsense",
    "watch=",
    "watch",
    "watch=0",
    "watch=false",
    "watch=False",
    "watch=f",
    "watch=no",
    "Watch=true",
    "%77atch=true",
    "watch=true&watch=false",
    "watch=false&watch=true",
    "watch=%20true",
    "watch=true;x",
    "x;watch=true",
    "watch=true%00",
    "watch=%zz",
    "&&watch=true",
    "watch=true&resourceVersion=0",
    "watch=true&allowWatchBookmarks=true",
    "limit=1",
    "limit=nonsense",
    "limit=",
    "timeoutSeconds=",
    "resourceVersion=nonsense",
    "pretty=1",
    "timeout=nonsense",
    "timeout=1s",
    "dryRun=nonsense",
    "gracePeriodSeconds=0",
];

pub fn listed() -> Vec<Question> {
    let mut all = Vec::new();
    for path in PATHS {
        all.extend(METHODS.map(|m| Question::new(m, path)));
        all.push(Question::new("GET", &format!("{path}?watch=true")));
    }
    let watched = [
        "/api/v1/pods",
        "/api/v1/namespaces/alpha/secrets",
        "/api/v1/namespaces/alpha/secrets/mounted",
        "/api/v1/namespaces",
        "/api/v1/namespaces/alpha",
        "/apis/example.com/v1/widgets",
        "/apis/remote.example.com/v1/widgets",
        "/api/v1/nodes/n1/proxy",
        "/metrics",
    ];
    for path in watched {
        for parameters in PARAMETERS {
            let uri = format!("{path}?{parameters}");
            all.extend(["GET", "HEAD", "DELETE", "POST"].map(|m| Question::new(m, &uri)));
        }
    }
    all
}

const ROOTS: &[&str] = &[
    "api/v1",
    "api/v1",
    "api/v1",
    "apis/apps/v1",
    "apis/example.com/v1",
    "apis/batch/v1",
    "api",
    "apis",
    "apis/x/v1",
    "API/v1",
];
const RESOURCES: &[&str] = &[
    "pods",
    "secrets",
    "configmaps",
    "nodes",
    "services",
    "deployments",
    "widgets",
    "namespaces",
    "persistentvolumes",
    "jobs",
    "serviceaccounts",
    "nonsense",
    "watch",
    "proxy",
    "",
];
const NAMES: &[&str] =
    &["p1", "mounted", "n1", "web", "one", "alpha", "volume-1", "nothing", "", ".", "..", "status", "watch"];
const PARTS: &[&str] =
    &["status", "scale", "log", "exec", "proxy", "finalize", "token", "eviction", "nonsense", "", "p1"];

fn one<'a>(random: &mut fastrand::Rng, of: &[&'a str]) -> &'a str {
    of[random.usize(..of.len())]
}

/// Returns a slash, sometimes in another form.
fn slash(random: &mut fastrand::Rng) -> &'static str {
    match random.u8(..40) {
        0 => "//",
        1 => "%2f",
        2 => "%2F",
        3 => "/./",
        4 => "/../",
        _ => "/",
    }
}

/// Returns the text, sometimes with one letter escaped.
fn escaped(random: &mut fastrand::Rng, text: &str) -> String {
    if text.is_empty() || random.u8(..20) > 0 {
        return text.to_owned();
    }
    let at = random.usize(..text.len());
    text.bytes()
        .enumerate()
        .map(|(i, b)| if i == at { format!("%{b:02x}") } else { char::from(b).to_string() })
        .collect()
}

pub fn random(seed: u64) -> Vec<Question> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..RANDOM).map(|_| question(&mut random)).collect()
}

fn question(random: &mut fastrand::Rng) -> Question {
    let mut segments = vec![one(random, ROOTS)];
    match random.u8(..12) {
        0 | 1 => segments.push("watch"),
        2 => segments.push("proxy"),
        _ => {}
    }
    if random.bool() {
        segments.extend(["namespaces", one(random, &["alpha", "alpha", "alpha", "beta", "nothing", ""])]);
    }
    segments.push(one(random, RESOURCES));
    if random.u8(..4) > 0 {
        segments.push(one(random, NAMES));
        if random.u8(..2) > 0 {
            segments.push(one(random, PARTS));
            if random.u8(..4) == 0 {
                segments.push(one(random, &["x", "a/b", "", ".."]));
            }
        }
    }
    let mut path = String::new();
    for segment in segments {
        path.push_str(if path.is_empty() { "/" } else { slash(random) });
        path.push_str(&escaped(random, segment));
    }
    if random.u8(..10) == 0 {
        path.push('/');
    }
    if random.u8(..4) == 0 {
        path = format!("{path}?{}", one(random, PARAMETERS));
    }
    Question::new(one(random, &METHODS), &path)
}
