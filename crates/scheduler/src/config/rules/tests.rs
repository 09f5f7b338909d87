//! Files that upstream's kube-scheduler 1.37 accepts, and files that it refuses, with its messages.

use super::super::*;

/// Parses a file from the lines below apiVersion and kind.
fn read(more: &str) -> Result<Configuration, String> {
    let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{more}");
    Configuration::from_yaml(&text).map_err(|error| error.to_string())
}

fn with_args(plugin: &str, args: &str) -> Result<Configuration, String> {
    read(&format!("profiles: [{{schedulerName: x, pluginConfig: [{{name: {plugin}, args: {args}}}]}}]"))
}

/// Where upstream's message is from one of Go's libraries, only the beginning of ours is the same.
#[track_caller]
fn refused(read: Result<Configuration, String>, expected: &str, file: &str) {
    let error = read.map(drop).expect_err(file);
    assert!(error.starts_with(expected), "{file}\n  {error}\nnot\n  {expected}");
}

#[test]
fn what_upstream_takes_is_taken() {
    let files = [
        "",
        "profiles: [{}]",
        "profiles: []",
        "profiles:\n- schedulerName: x\n  plugins: {score: {enabled: [{name: NodeResourcesFit, weight: 2147483647}]}}",
        "clientConnection: {kubeconfig: /etc/x, qps: 10, burst: 20, acceptContentTypes: '', contentType: 'application/json'}",
        "leaderElection: {leaderElect: true, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 0s}",
        "leaderElection: {leaderElect: true, leaseDuration: 15s, renewDeadline: 2s, retryPeriod: 5s}",
        "leaderElection: {leaderElect: false, resourceLock: configmaps}",
        "leaderElection: {leaderElect: true, resourceNamespace: ''}",
        "enableProfiling: false\nenableContentionProfiling: true\ndelayCacheUntilActive: true",
        "profiles:\n- schedulerName: x\n  plugins: {score: {disabled: [{name: Nope}]}}",
    ];
    files.iter().for_each(|file| drop(read(file).unwrap_or_else(|error| panic!("{file}: {error}"))));
    let arguments = [
        (
            "InterPodAffinity",
            "{apiVersion: kubescheduler.config.k8s.io/v1, kind: InterPodAffinityArgs, hardPodAffinityWeight: 3}",
        ),
        ("MyPlugin", "{foo: 1}"),
        ("NodeName", "{foo: 1}"),
        ("InterPodAffinity", "null"),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: foo, operator: In, values: [a]}]}]}}}",
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101, preference: {matchExpressions: [{key: foo, operator: In, values: [a]}]}}]}}",
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}",
        ),
        ("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}]}"),
        ("NodeResourcesBalancedAllocation", "{resources: [{weight: 1}]}"),
        ("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu}]}}"),
        ("NodeResourcesFit", "{scoringStrategy: null}"),
        ("VolumeBinding", "{shape: [{utilization: 0, score: 0}]}"),
        ("DynamicResources", "{bindingTimeout: 10m}"),
    ];
    for (plugin, args) in arguments {
        let config = with_args(plugin, args).unwrap_or_else(|error| panic!("{plugin} {args}: {error}"));
        config.profiles(&Default::default()).unwrap_or_else(|error| panic!("{plugin} {args}: {error}"));
    }
}

#[test]
fn files_are_refused_in_upstreams_words() {
    let table = [
        ("foo: 1", r#"strict decoding error: unknown field "foo""#),
        ("foo: 1\nbar: 2", r#"strict decoding error: unknown field "bar", unknown field "foo""#),
        ("Parallelism: 3", r#"strict decoding error: unknown field "Parallelism""#),
        ("parallelism: 3\nparallelism: 4", "strict decoding error: "),
        (
            "profiles:\n- schedulerName: x\n  plugin: {}",
            r#"strict decoding error: unknown field "profiles[0].plugin""#,
        ),
        (
            "profiles:\n- schedulerName: x\n  plugins: {scoring: {}}",
            r#"strict decoding error: unknown field "profiles[0].plugins.scoring""#,
        ),
        (
            "profiles:\n- schedulerName: x\n  plugins: {score: {enable: []}}",
            r#"strict decoding error: unknown field "profiles[0].plugins.score.enable""#,
        ),
        (
            "profiles:\n- schedulerName: x\n  plugins: {score: {enabled: [{name: NodeResourcesFit, wieght: 2}]}}",
            r#"strict decoding error: unknown field "profiles[0].plugins.score.enabled[0].wieght""#,
        ),
        (
            "profiles:\n- schedulerName: x\n  pluginConfig:\n  - name: NodeAffinity\n    arg: {}",
            r#"strict decoding error: unknown field "profiles[0].pluginConfig[0].arg""#,
        ),
        (
            "profiles:\n- schedulerName: x\n  pluginConfig:\n  - name: InterPodAffinity\n    args:\n      hardPodAffinityWeight: 3\n      hardPodAffinityWeight: 4",
            "strict decoding error: ",
        ),
        ("parallelism: 4294967296", "parallelism: invalid value: integer `4294967296`, expected i32"),
        ("parallelism: abc", r#"parallelism: invalid type: string "abc", expected i32"#),
        ("profiles: 3", "profiles: invalid type: integer `3`, expected a sequence"),
        ("parallelism: -1", "parallelism: Invalid value: -1: should be an integer value greater than zero"),
        ("parallelism: 0", "parallelism: Invalid value: 0: should be an integer value greater than zero"),
        (
            "percentageOfNodesToScore: 101",
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
        ),
        (
            "profiles:\n- schedulerName: x\n  percentageOfNodesToScore: -1",
            "profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]",
        ),
        ("podInitialBackoffSeconds: 0", "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"),
        (
            "podInitialBackoffSeconds: -1",
            "podInitialBackoffSeconds: Invalid value: -1: must be greater than 0",
        ),
        (
            "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2",
            "podMaxBackoffSeconds: Invalid value: 2: must be greater than or equal to PodInitialBackoffSeconds",
        ),
        (
            "profiles: [{schedulerName: a},{schedulerName: a}]",
            r#"profiles[1].schedulerName: Duplicate value: "a""#,
        ),
        ("profiles: [{schedulerName: a},{}]", "profiles[1].schedulerName: Required value"),
        (r#"profiles: [{schedulerName: ""}]"#, "profiles[0].schedulerName: Required value"),
        (
            "profiles: [{schedulerName: a},{schedulerName: b, plugins: {queueSort: {enabled: [{name: Foo}]}}}]",
            r#"profiles[1].plugins.queueSort: Invalid value: {"Enabled":[{"Name":"Foo","Weight":0}],"Disabled":null}: must be the same for all profiles"#,
        ),
        (
            "profiles: [{schedulerName: a, plugins: {queueSort: {enabled: [{name: Foo},{name: Bar}]}}}]",
            "profiles[0].plugins.queueSort.Enabled: Invalid value: 2: only one queue sort plugin can be enabled",
        ),
        (
            "profiles:\n- schedulerName: x\n  pluginConfig: [{name: NodeAffinity},{name: NodeAffinity}]",
            r#"profiles[0].pluginConfig[1]: Duplicate value: "NodeAffinity""#,
        ),
        (
            "profiles:\n- schedulerName: x\n  plugins: {filter: {enabled: [{name: EBSLimits}]}}",
            r#"profiles[0].plugins.filter.enabled[0]: Invalid value: "EBSLimits": was invalid in version "v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")"#,
        ),
        (
            "profiles:\n- schedulerName: x\n  pluginConfig: [{name: EBSLimits}]",
            r#"profiles[0].pluginConfig[0]: Invalid value: "EBSLimits": was invalid in version "v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")"#,
        ),
        (
            "extenders: [{urlPrefix: http://x, prioritizeVerb: p}]",
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
        ),
        (
            "extenders: [{urlPrefix: http://x, bindVerb: p},{urlPrefix: http://y, bindVerb: p}]",
            r#"extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind"#,
        ),
        (
            "extenders: [{urlPrefix: http://x, managedResources: [{name: cpu}]}]",
            r#"extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name"#,
        ),
        (
            "extenders: [{urlPrefix: http://x, managedResources: [{name: 'foo bar/x'}]}]",
            r#"extenders[0].managedResources[0].name: Invalid value: "foo bar/x": prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#,
        ),
        (
            "extenders: [{urlPrefix: http://x, managedResources: [{name: a.b/c},{name: a.b/c}]}]",
            r#"extenders[0].managedResources[1].name: Invalid value: "a.b/c": duplicate extender managed resource name"#,
        ),
        (
            "extenders: [{urlprefix: http://x}]",
            r#"strict decoding error: unknown field "extenders[0].urlprefix""#,
        ),
        (
            "extenders: [{urlPrefix: http://x, httpTimeout: soon}]",
            r#"extenders[0].httpTimeout: time: invalid duration "soon""#,
        ),
        ("clientConnection: {burst: -1}", "clientConnection.burst: Invalid value: -1: must be non-negative"),
        ("clientConnection: {foo: 1}", r#"strict decoding error: unknown field "clientConnection.foo""#),
        (
            "leaderElection: {leaderElect: true, leaseDuration: 5s, renewDeadline: 10s}",
            r#"leaderElection.leaseDuration: Invalid value: "10s": must be greater than `RenewDeadline`"#,
        ),
        (
            "leaderElection: {leaderElect: true, resourceLock: configmaps}",
            r#"leaderElection.resourceLock: Invalid value: "configmaps": resourceLock value must be "leases""#,
        ),
        ("leaderElection: {foo: 1}", r#"strict decoding error: unknown field "leaderElection.foo""#),
        (
            "healthzBindAddress: 0.0.0.0:10251\nmetricsBindAddress: 0.0.0.0:10251",
            r#"strict decoding error: unknown field "healthzBindAddress", unknown field "metricsBindAddress""#,
        ),
        ("metadata: {name: x}", r#"strict decoding error: unknown field "metadata""#),
    ];
    table.iter().for_each(|(file, words)| refused(read(file), words, file));
    let kind = Configuration::from_yaml("kind: KubeSchedulerConfiguration").unwrap_err();
    assert_eq!(kind.to_string(), "Object 'apiVersion' is missing");
    for (text, words) in [
        ("", "Object 'Kind' is missing"),
        ("apiVersion: kubescheduler.config.k8s.io/v1", "Object 'Kind' is missing"),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: Foo",
            "no kind \"Foo\" is registered for version \"kubescheduler.config.k8s.io/v1\"",
        ),
    ] {
        assert_eq!(Configuration::from_yaml(text).unwrap_err().to_string(), words);
    }
}

#[test]
fn arguments_are_refused_in_upstreams_words() {
    const AT: &str = "profiles[0].pluginConfig[0].args.";
    let table = [
        (
            "InterPodAffinity",
            "{hardPodAffinityWieght: 3}",
            r#"strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin InterPodAffinity: strict decoding error: unknown field "hardPodAffinityWieght""#,
        ),
        (
            "InterPodAffinity",
            "{HardPodAffinityWeight: 3}",
            r#"strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin InterPodAffinity: strict decoding error: unknown field "HardPodAffinityWeight""#,
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: LeastAllocated, resource: []}}",
            r#"strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin NodeResourcesFit: strict decoding error: unknown field "scoringStrategy.resource""#,
        ),
        (
            "InterPodAffinity",
            "{apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs}",
            "decoding .profiles[0].pluginConfig[0]: args for plugin InterPodAffinity were not of type InterPodAffinityArgs.kubescheduler.config.k8s.io, got NodeAffinityArgs.kubescheduler.config.k8s.io",
        ),
        (
            "InterPodAffinity",
            r#""hello""#,
            r#"decoding .profiles[0].pluginConfig[0]: decoding args for plugin InterPodAffinity: invalid type: string "hello""#,
        ),
        (
            "InterPodAffinity",
            "[]",
            "decoding .profiles[0].pluginConfig[0]: decoding args for plugin InterPodAffinity: invalid type: sequence",
        ),
        (
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}",
            "[@minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute, @minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage]",
        ),
        (
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 101}",
            "@minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]",
        ),
        (
            "DefaultPreemption",
            "{minCandidateNodesAbsolute: -1}",
            "@minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)",
        ),
        (
            "InterPodAffinity",
            "{hardPodAffinityWeight: 101}",
            "@hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: foo, operator: Is, values: [a]}]}]}}}",
            r#"@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt""#,
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: foo, operator: In}]}]}}}",
            "@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: foo, operator: Gt, values: [a]}]}]}}}",
            r#"@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: "a": for 'Gt', 'Lt' operators, the value must be an integer"#,
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: foo, operator: Exists, values: [a]}]}]}}}",
            r#"@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Invalid value: ["a"]: values set must be empty for exists and does not exist"#,
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [a,b]}]}]}}}",
            r#"@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].values: Invalid value: ["a","b"]: must have one element"#,
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: Exists}]}]}}}",
            r#"@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].operator: Unsupported value: "Exists": supported values: "In", "NotIn""#,
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: foo, operator: Is, values: [a]}]}}]}}",
            r#"@addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt""#,
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: 'a b', operator: In, values: [a]}]}]}}}",
            r#"@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#,
        ),
        (
            "NodeAffinity",
            "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: ['a b']}]}]}}}",
            r#"@addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values[0][a]: Invalid value: "a b": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"#,
        ),
        (
            "NodeResourcesBalancedAllocation",
            "{resources: [{name: cpu, weight: 2}]}",
            "@resources[0].weight: Invalid value: 2: must be 1",
        ),
        (
            "NodeResourcesBalancedAllocation",
            "{resources: [{name: cpu, weight: 1},{name: cpu, weight: 1}]}",
            r#"@resources[1].name: Duplicate value: "cpu""#,
        ),
        (
            "PodTopologySpread",
            "{defaultingType: Foo}",
            r#"@defaultingType: Unsupported value: "Foo": supported values: "System", "List""#,
        ),
        (
            "PodTopologySpread",
            "{defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
            r#"@defaultingType: Invalid value: "System": when .defaultConstraints are not empty"#,
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 0, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
            "@defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)",
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: '', whenUnsatisfiable: ScheduleAnyway}]}",
            "@defaultConstraints[0].topologyKey: Required value: can not be empty",
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: 'a b', whenUnsatisfiable: ScheduleAnyway}]}",
            r#"@defaultConstraints[0].topologyKey: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#,
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: Foo}]}",
            r#"@defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Foo": supported values: "DoNotSchedule", "ScheduleAnyway""#,
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a}]}",
            "@defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty",
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {a: b}}}]}",
            "@defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod",
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway},{maxSkew: 2, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
            r#"@defaultConstraints[1]: Duplicate value: "{a, ScheduleAnyway}""#,
        ),
        (
            "VolumeBinding",
            "{bindTimeoutSeconds: -1}",
            "@bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value",
        ),
        (
            "DynamicResources",
            "{filterTimeout: -1s}",
            r#"@filterTimeout: Invalid value: "-1s": must be zero or positive"#,
        ),
        (
            "DynamicResources",
            "{bindingTimeout: 100ms}",
            r#"@bindingTimeout: Invalid value: "100ms": must be at least 1 second"#,
        ),
    ];
    for (plugin, args, words) in table {
        refused(with_args(plugin, args), &words.replace('@', AT), args);
    }
}
