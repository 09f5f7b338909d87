"""Cases of kinds that administrators and extensions use: admission, aggregation, flow control, devices, migrations."""
import copy
import json

out = []


def add(name, obj, old=None, sub=None, rows=False):
    case = {"name": name, "obj": obj}
    if old is not None:
        case["old"] = old
    if sub:
        case["sub"] = sub
    if rows:
        case["rows"] = True
    out.append(case)


def merge(base, patch):
    result = copy.deepcopy(base)

    def into(a, b):
        for k, v in b.items():
            if isinstance(v, dict) and isinstance(a.get(k), dict) and v:
                into(a[k], v)
            elif v == "__del__":
                a.pop(k, None)
            else:
                a[k] = copy.deepcopy(v)

    into(result, patch)
    return result


def O(kind, av, spec=None, name="a", ns=None, **kw):
    o = {"apiVersion": av, "kind": kind, "metadata": {"name": name}}
    if ns:
        o["metadata"]["namespace"] = ns
    if spec is not None:
        o["spec"] = spec
    o.update(kw)
    return o


def stored(o):
    return merge(o, {"metadata": {"resourceVersion": "1", "uid": "u", "generation": 1}})


def upd(name, base, patch, sub=None):
    old = stored(base)
    add(name, merge(old, patch), old, sub)


# admissionregistration.k8s.io
A = "admissionregistration.k8s.io/v1"
RULE = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
HOOK = {"name": "a.b.c", "clientConfig": {"url": "https://x.y/z"}, "rules": [RULE], "sideEffects": "None",
        "admissionReviewVersions": ["v1"]}


def hooks(kind, *hs):
    return O(kind, A, webhooks=list(hs))


for K in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
    add(K + " fine", hooks(K, HOOK))
    add(K + " none", hooks(K))
    add(K + " static name", merge(hooks(K, HOOK), {"metadata": {"name": "x.static.k8s.io"}}))
    add(K + " service", hooks(K, merge(HOOK, {"clientConfig": {"url": "__del__", "service": {"name": "s", "namespace": "n", "path": "/a/b/"}}})))
    add(K + " bad service", hooks(K, merge(HOOK, {"clientConfig": {"url": "__del__", "service": {"name": "", "namespace": "n", "path": "a//B", "port": 70000}}})))
    add(K + " bad service 2", hooks(K, merge(HOOK, {"clientConfig": {"url": "__del__", "service": {"name": "s", "namespace": "", "path": "//"}}})))
    add(K + " both", hooks(K, merge(HOOK, {"clientConfig": {"service": {"name": "s", "namespace": "n"}}})))
    add(K + " neither", hooks(K, merge(HOOK, {"clientConfig": {"url": "__del__"}})))
    for url in ["http://a/b", "https://", "https://u:p@h/#f?q", "https://h/?q=1", ":bad", "https://h:x/", "a:b/c", "1:b"]:
        add(K + " url " + url, hooks(K, merge(HOOK, {"clientConfig": {"url": url}})))
    add(K + " names", hooks(K, merge(HOOK, {"name": "a.b"}), merge(HOOK, {"name": ""}), merge(HOOK, {"name": "A.b.c"}), HOOK, HOOK))
    add(K + " policies", hooks(K, merge(HOOK, {"failurePolicy": "x", "matchPolicy": "y", "sideEffects": "Some", "timeoutSeconds": 31, "admissionReviewVersions": []}), merge(HOOK, {"name": "a.b.d", "sideEffects": "__del__", "timeoutSeconds": 0, "admissionReviewVersions": ["v2", "v2", "V3"]})))
    add(K + " selectors", hooks(K, merge(HOOK, {"namespaceSelector": {"matchLabels": {"a b": "c d"}}, "objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "b", "operator": "In", "values": ["x y"]}]}})))
    add(K + " rules", hooks(K, merge(HOOK, {"rules": [
        {"operations": [], "apiGroups": [], "apiVersions": [], "resources": []},
        {"operations": ["*", "CREATE"], "apiGroups": ["*", "a"], "apiVersions": ["*", ""], "resources": ["*", "pods"], "scope": "x"},
        {"operations": ["create"], "apiGroups": ["a"], "apiVersions": ["v1"], "resources": ["*/*", "", "pods/*", "pods/status", "*/status", "nodes/status"], "scope": "Cluster"}]})))
    add(K + " conditions", hooks(K, merge(HOOK, {"matchConditions": [{"name": "", "expression": ""}, {"name": "a b", "expression": "true"}, {"name": "c", "expression": "true"}, {"name": "c", "expression": "true"}]})))
    add(K + " many conditions", hooks(K, merge(HOOK, {"matchConditions": [{"name": "c%d" % i, "expression": "true"} for i in range(65)]})))
    base = hooks(K, HOOK)
    upd(K + " same", base, {})
    upd(K + " changed", base, {"webhooks": [merge(HOOK, {"timeoutSeconds": 5})]})
    lenient = hooks(K, merge(HOOK, {"sideEffects": "Some", "admissionReviewVersions": ["v9"], "objectSelector": {"matchExpressions": [{"key": "b", "operator": "In", "values": ["x y"]}]}}), merge(HOOK, {"matchConditions": [{"name": "", "expression": ""}]}))
    upd(K + " lenient", lenient, {"metadata": {"labels": {"a": "b"}}})
    upd(K + " lenient still checked", lenient, {"webhooks": [merge(HOOK, {"sideEffects": "x", "admissionReviewVersions": ["V9"]})]})
    add("row " + K, base, rows=True)
add("reinvocation", hooks("MutatingWebhookConfiguration", merge(HOOK, {"reinvocationPolicy": "x"})))

MC = {"resourceRules": [RULE]}
VAP = O("ValidatingAdmissionPolicy", A, {"matchConstraints": MC, "validations": [{"expression": "true"}]})
MAP = O("MutatingAdmissionPolicy", A, {"matchConstraints": MC, "reinvocationPolicy": "Never", "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'test', path: '/x'}]"}}]})
for base in (VAP, MAP):
    K = base["kind"]
    add(K + " fine", base)
    add(K + " static", merge(base, {"metadata": {"name": "x.static.k8s.io"}}))
    add(K + " empty", O(K, A, {}))
    add(K + " empty constraints", O(K, A, {"matchConstraints": {}}))
    add(K + " policies", merge(base, {"spec": {"failurePolicy": "x", "matchConstraints": {"matchPolicy": "y", "namespaceSelector": {"matchLabels": {"a b": "c"}}, "excludeResourceRules": [merge(RULE, {"resourceNames": ["a", "a", "b/c", ".."], "operations": ["DELETE", "x"]})]}}}))
    for av, k in [("", ""), ("/", "x"), ("a/b/c", "Ab"), ("A/v1", "a-b-"), ("apps/V1", "Deployment"), ("apps/", "1a"), ("v1", "ConfigMap")]:
        add(K + " param kind " + av, merge(base, {"spec": {"paramKind": {"apiVersion": av, "kind": k}}}))
    add(K + " conditions", merge(base, {"spec": {"matchConditions": [{"name": "", "expression": " "}, {"name": "c", "expression": "true"}, {"name": "c", "expression": "true"}]}}))
    add(K + " variables", merge(base, {"spec": {"variables": [{"name": "", "expression": ""}, {"name": "a-b", "expression": "1"}, {"name": "if", "expression": "1"}, {"name": "ok", "expression": "1"}]}}))
    add(K + " delete", merge(base, {"spec": {"matchConstraints": {"resourceRules": [merge(RULE, {"operations": ["DELETE", "CREATE"]})]}}}))
    upd(K + " same", base, {"metadata": {"labels": {"a": "b"}}})
    upd(K + " changed", base, {"spec": {"failurePolicy": "Ignore"}})
    old = merge(base, {"spec": {"matchConditions": [{"name": "", "expression": ""}]}})
    upd(K + " old conditions", old, {"spec": {"failurePolicy": "Ignore"}})
    upd(K + " old conditions, new param", old, {"spec": {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}})
    add("row " + K, merge(base, {"spec": {"paramKind": {"apiVersion": "apps/v1", "kind": "Deployment"}}}), rows=True)
    add("row bare " + K, base, rows=True)
add("vap validations", merge(VAP, {"spec": {"validations": [{"expression": ""}, {"expression": "true", "message": " ", "messageExpression": " ", "reason": "x"}, {"expression": "true", "message": "a\nb", "reason": "Forbidden"}, {"expression": "true", "reason": "Unauthorized"}]}}))
add("vap annotations", merge(VAP, {"spec": {"validations": "__del__", "auditAnnotations": [{"key": "k", "valueExpression": "'a'"}, {"key": "k", "valueExpression": ""}, {"key": "a b", "valueExpression": "'x'"}, {"key": "", "valueExpression": "'" + "x" * 6000 + "'"}]}}))
add("vap many annotations", merge(VAP, {"spec": {"auditAnnotations": [{"key": "k%d" % i, "valueExpression": "'a'"} for i in range(21)]}}))
upd("vap status", VAP, {"metadata": {"labels": {"x": "y"}}, "spec": {"failurePolicy": "Ignore"}, "status": {"observedGeneration": 1, "typeChecking": {"expressionWarnings": [{"fieldRef": "spec.validations[0].expression", "warning": "w"}, {"fieldRef": "", "warning": ""}]}, "conditions": [
    {"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z"},
    {"type": "A", "status": "x", "reason": "1", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z", "observedGeneration": -1},
    {"type": "", "status": "", "reason": "", "message": "", "lastTransitionTime": None}]}}, "status")
add("map patches", merge(MAP, {"spec": {"reinvocationPolicy": "x", "mutations": [{"patchType": ""}, {"patchType": "x"}, {"patchType": "JSONPatch"}, {"patchType": "ApplyConfiguration", "jsonPatch": {"expression": "[JSONPatch{op: 'test', path: '/x'}]"}}, {"patchType": "JSONPatch", "jsonPatch": {"expression": " "}, "applyConfiguration": {"expression": "x"}}, {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": ""}}]}}))

VAPB = O("ValidatingAdmissionPolicyBinding", A, {"policyName": "p", "validationActions": ["Deny"]})
MAPB = O("MutatingAdmissionPolicyBinding", A, {"policyName": "p"})
for base in (VAPB, MAPB):
    K = base["kind"]
    add(K + " fine", base)
    add(K + " empty", O(K, A, {}))
    add(K + " resources", merge(base, {"spec": {"matchResources": {"resourceRules": [merge(RULE, {"operations": ["DELETE"]})]}}}))
    add(K + " policy name", merge(base, {"spec": {"policyName": "A b"}}))
    for n, p in enumerate([{}, {"name": "a/b", "selector": {}, "parameterNotFoundAction": "x"}, {"selector": {"matchLabels": {"a b": "c"}}, "parameterNotFoundAction": "Deny"}]):
        b = merge(base, {"spec": {"paramRef": p}})
        add(K + " param %d" % n, b)
        add("row %s %d" % (K, n), b, rows=True)
    upd(K + " same", base, {"metadata": {"labels": {"a": "b"}}})
    upd(K + " changed", base, {"spec": {"policyName": "q"}})
    add("row " + K, merge(base, {"spec": {"paramRef": {"selector": {"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]}, "parameterNotFoundAction": "Deny"}}}), rows=True)
add("vapb actions", merge(VAPB, {"spec": {"validationActions": ["Deny", "Warn", "Deny", "x"]}}))

# apiregistration.k8s.io
R = "apiregistration.k8s.io/v1"
APIS = O("APIService", R, {"group": "g.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
                           "service": {"name": "s", "namespace": "n"}}, name="v1.g.example.com")
add("apiservice", APIS)
add("apiservice local", merge(APIS, {"spec": {"service": "__del__"}}))
add("apiservice local tls", merge(APIS, {"spec": {"service": "__del__", "caBundle": "aGk=", "insecureSkipTLSVerify": True}}))
add("apiservice name", merge(APIS, {"metadata": {"name": "x"}}))
add("apiservice empty", O("APIService", R, {}))
add("apiservice bad", merge(APIS, {"metadata": {"name": "V1.G"}, "spec": {"group": "G", "version": "V1", "groupPriorityMinimum": 20001, "versionPriority": 0, "service": {"name": "", "namespace": "", "port": 70000}, "insecureSkipTLSVerify": True, "caBundle": "aGk="}}))
upd("apiservice", APIS, {"metadata": {"labels": {"a": "b"}}, "spec": {"versionPriority": 11}})

# flowcontrol.apiserver.k8s.io
F = "flowcontrol.apiserver.k8s.io/v1"
RR = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}
FS = O("FlowSchema", F, {"priorityLevelConfiguration": {"name": "p"}, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "g"}}], "resourceRules": [RR]}]})
add("fs", FS)
add("fs empty", O("FlowSchema", F, {}))
for n in (-1, 1, 10001):
    add("fs precedence %d" % n, merge(FS, {"spec": {"matchingPrecedence": n}}))
add("fs method", merge(FS, {"spec": {"distinguisherMethod": {"type": "x"}, "priorityLevelConfiguration": {"name": "A b"}}}))
add("fs subjects", merge(FS, {"spec": {"rules": [{"subjects": [{"kind": "x"}, {"kind": "User"}, {"kind": "Group", "user": {"name": "u"}, "serviceAccount": {"name": "a", "namespace": "b"}}, {"kind": "User", "user": {"name": ""}}, {"kind": "ServiceAccount"}, {"kind": "ServiceAccount", "serviceAccount": {"name": "A", "namespace": ""}}, {"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "B"}, "group": {"name": "x"}}]}, {"subjects": []}]}}))
add("fs rules", merge(FS, {"spec": {"rules": [{"subjects": [{"kind": "Group", "group": {"name": "g"}}], "resourceRules": [{}, {"verbs": ["*", "get"], "apiGroups": ["*", "a"], "resources": ["*", "b"], "namespaces": ["*", "c"]}, {"verbs": ["fly"], "apiGroups": [""], "resources": ["x"], "namespaces": ["A"]}, {"verbs": ["get"], "apiGroups": [""], "resources": ["x"], "clusterScope": True}], "nonResourceRules": [{}, {"verbs": ["get"], "nonResourceURLs": ["", "/", "a", "/a b", "/a//b", "/a*", "/a/*", "/*/b*"]}, {"verbs": ["*"], "nonResourceURLs": ["*", "/a"]}]}]}}))
EX = O("FlowSchema", F, {"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "system:masters"}}], "resourceRules": [dict(RR, clusterScope=True)], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}, name="exempt")
add("fs exempt fine", EX)
upd("fs", FS, {"spec": {"matchingPrecedence": 5}})
upd("fs status", FS, {"spec": {"matchingPrecedence": 5}, "metadata": {"labels": {"a": "b"}}, "status": {"conditions": [{"type": "Dangling", "status": "True"}, {"type": "Dangling"}, {"type": ""}]}}, "status")
add("row fs", merge(FS, {"spec": {"matchingPrecedence": 7, "distinguisherMethod": {"type": "ByUser"}}, "status": {"conditions": [{"type": "Dangling", "status": "False"}]}}), rows=True)
add("row fs bare", FS, rows=True)
PL = O("PriorityLevelConfiguration", F, {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}})
add("pl", PL)
add("pl empty", O("PriorityLevelConfiguration", F, {}))
add("pl type", merge(PL, {"spec": {"type": "x"}}))
add("pl exempt", O("PriorityLevelConfiguration", F, {"type": "Exempt", "exempt": {"nominalConcurrencyShares": -1, "lendablePercent": 101}, "limited": {"limitResponse": {"type": "Reject"}}}))
add("pl exempt name", O("PriorityLevelConfiguration", F, {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 5}}, name="exempt"))
add("pl limited none", O("PriorityLevelConfiguration", F, {"type": "Limited", "exempt": {}}))
add("pl limits", merge(PL, {"spec": {"limited": {"nominalConcurrencyShares": -1, "lendablePercent": -1, "borrowingLimitPercent": -1, "limitResponse": {"type": "Reject"}}}}))
for q in ({"queues": -1, "handSize": -1, "queueLengthLimit": -1}, {"queues": 10000001, "handSize": 3}, {"queues": 3, "handSize": 4}, {"queues": 1000, "handSize": 20}):
    add("pl queuing %s" % q, merge(PL, {"spec": {"limited": {"limitResponse": {"queuing": q}}}}))
add("pl queue none", merge(PL, {"spec": {"limited": {"limitResponse": {"queuing": "__del__"}}}}))
add("pl response", merge(PL, {"spec": {"limited": {"limitResponse": {"type": "x"}}}}))
upd("pl", PL, {"spec": {"limited": {"nominalConcurrencyShares": 3}}})
add("row pl", PL, rows=True)

# resource.k8s.io
D = "resource.k8s.io/v1"
DC = O("DeviceClass", D, {"selectors": [{"cel": {"expression": "true"}}]})
add("dc", DC)
add("dc bare", O("DeviceClass", D, {}))
add("dc bad", O("DeviceClass", D, {"selectors": [{}], "config": [{}, {"opaque": {"driver": "A b", "parameters": {"a": 1}}}], "extendedResourceName": "x"}))
add("dc extended", O("DeviceClass", D, {"extendedResourceName": "example.com/gpu"}))
upd("dc", DC, {"spec": {"extendedResourceName": "example.com/gpu"}})
add("row dc", DC, rows=True)
RC = O("ResourceClaim", D, {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}, ns="d")
add("rc", RC)
add("rc bare", O("ResourceClaim", D, {}, ns="d"))
add("rc first", O("ResourceClaim", D, {"devices": {"requests": [{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "c"}, {"name": "b", "deviceClassName": ""}, {"name": "B", "deviceClassName": "c", "count": -1}]}]}}, ns="d"))
add("rc bad", O("ResourceClaim", D, {"devices": {"requests": [{"name": "A"}, {"name": "r", "exactly": {"deviceClassName": "C c", "allocationMode": "All", "count": 2}}, {"name": "s", "exactly": {"deviceClassName": "", "allocationMode": "x"}}, {"name": "t", "exactly": {"deviceClassName": "c", "tolerations": [{"operator": "x"}, {"operator": "Exists", "value": "v"}, {"key": "a b", "operator": "Equal", "effect": "y"}]}}], "constraints": [{"requests": ["r", "nope", "r/x/y"], "matchAttribute": "a"}, {"distinctAttribute": "d.e/f"}, {}], "config": [{"requests": ["r", "r"], "opaque": {"driver": "", "parameters": {}}}, {}]}}, ns="d"))
upd("rc", RC, {"metadata": {"labels": {"a": "b"}}})
upd("rc changed", RC, {"spec": {"devices": {"requests": [{"name": "q", "exactly": {"deviceClassName": "c"}}]}}})
ALLOC = {"devices": {"results": [{"request": "r", "driver": "d.e", "pool": "p", "device": "x"}]}}
upd("rc status", RC, {"status": {"allocation": ALLOC, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}], "devices": [{"driver": "d.e", "pool": "p", "device": "x"}]}}, "status")
upd("rc status bad", RC, {"status": {"allocation": {"devices": {"results": [{"request": "nope", "driver": "D d", "pool": "", "device": "X", "shareID": "x"}], "config": [{"source": "x", "opaque": {"driver": "d", "parameters": {"a": 1}}}, {"source": "FromClaim"}]}}, "reservedFor": [{"resource": "", "name": "", "uid": ""}], "devices": [{"driver": "d.e", "pool": "p", "device": "y"}]}}, "status")
upd("rc reserved without", RC, {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}, "status")
add("row rc", merge(RC, {"status": {"allocation": ALLOC, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}), rows=True)
add("row rc pending", RC, rows=True)
RCT = O("ResourceClaimTemplate", D, {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}, ns="d")
add("rct", RCT)
add("rct labels", merge(RCT, {"spec": {"metadata": {"labels": {"a b": "c"}}}}))
add("row rct", RCT, rows=True)
RS = O("ResourceSlice", D, {"driver": "d.e", "pool": {"name": "p", "resourceSliceCount": 1, "generation": 1}, "nodeName": "n", "devices": [{"name": "x", "attributes": {"a": {"string": "s"}}, "capacity": {"m": {"value": "1Gi"}}}]})
add("rs", RS)
add("rs bare", O("ResourceSlice", D, {}))
add("rs nodes", merge(RS, {"spec": {"nodeName": "", "allNodes": False, "perDeviceNodeSelection": False}}))
add("rs two", merge(RS, {"spec": {"allNodes": True}}))
add("rs pool", merge(RS, {"spec": {"driver": "D d", "pool": {"name": "A/b", "resourceSliceCount": 0, "generation": -1}}}))
add("rs devices", merge(RS, {"spec": {"devices": [{"name": "X"}, {"name": "x"}, {"name": "x", "nodeName": "n"}, {"name": "y", "attributes": {"a": {}, "b-c": {"int": 1}, "d": {"int": 1, "string": "x"}, "e": {"version": "1"}, "D/x": {"bool": True}}}]}}))
add("rs binding", merge(RS, {"spec": {"devices": [{"name": "x", "bindingConditions": ["a", "a"], "bindingFailureConditions": ["a"]}, {"name": "y", "bindingConditions": ["a"]}, {"name": "z", "bindingFailureConditions": ["b"]}]}}))
upd("rs", RS, {"spec": {"driver": "f.g", "nodeName": "m", "pool": {"name": "q"}}})
add("row rs", RS, rows=True)
DT = O("DeviceTaintRule", D, {"deviceSelector": {"driver": "d.e", "pool": "p", "device": "x"}, "taint": {"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2024-01-01T00:00:00Z"}})
add("dt", DT)
add("dt bad", O("DeviceTaintRule", D, {"deviceSelector": {"driver": "D d", "pool": "A", "device": "X"}, "taint": {"key": "", "value": "a b", "effect": "x", "timeAdded": "2024-01-01T00:00:00Z"}}))
upd("dt", DT, {"spec": {"taint": {"value": "w"}}})

# certificates.k8s.io, storagemigration.k8s.io, coordination.k8s.io, internal.apiserver.k8s.io
CTB = O("ClusterTrustBundle", "certificates.k8s.io/v1", {"trustBundle": "x"})
add("ctb", CTB)
add("ctb name", merge(CTB, {"metadata": {"name": "a:b"}}))
add("ctb signer", merge(CTB, {"spec": {"signerName": "a.b/c"}}))
add("ctb signer name", merge(CTB, {"metadata": {"name": "a.b:c:d"}, "spec": {"signerName": "a.b/c"}}))
add("row ctb", CTB, rows=True)
SVM = O("StorageVersionMigration", "storagemigration.k8s.io/v1", {"resource": {"group": "apps", "resource": "deployments"}})
add("svm", SVM)
add("svm bad", merge(SVM, {"spec": {"resource": {"group": "A", "resource": "B"}}}))
add("svm none", merge(SVM, {"spec": {"resource": {"resource": ""}}}))
upd("svm", SVM, {"spec": {"resource": {"group": "batch"}}})
add("row svm", SVM, rows=True)
LC = O("LeaseCandidate", "coordination.k8s.io/v1beta1", {"leaseName": "l", "binaryVersion": "1.37.0", "emulationVersion": "1.37.0", "strategy": "OldestEmulationVersion"}, ns="d")
add("lc", LC)
add("lc bare", O("LeaseCandidate", "coordination.k8s.io/v1beta1", {}, ns="d"))
add("lc bad", merge(LC, {"spec": {"binaryVersion": "x", "emulationVersion": "1", "strategy": "y"}}))
add("lc versions", merge(LC, {"spec": {"binaryVersion": "1.36.0", "strategy": "a.b/c"}}))
upd("lc", LC, {"spec": {"leaseName": "m"}})
add("row lc", LC, rows=True)

for case in out:
    print(json.dumps(case, sort_keys=True))
