# Helm with the chart of the examples: hooks, a custom resource, a test, upgrades and a rollback.
set -eu

chart=$KNARR_EXAMPLES/chart
helm() { command helm --namespace "$KNARR_NAMESPACE" "$@"; }
# is WANTED FOUND
is() {
    if [ "$1" != "$2" ]; then
        echo "$2, not $1"
        exit 1
    fi
}
get() { kubectl --namespace "$KNARR_NAMESPACE" get "$@"; }

echo "try: lint"
helm lint "$chart"

echo "try: install"
helm install har "$chart" --wait --timeout 2m
is 2 "$(get deployment har -o 'jsonpath={.status.readyReplicas}')"
is 90 "$(get berth har -o 'jsonpath={.spec.length}')"

echo "try: test"
helm test har --logs --timeout 2m

echo "try: dry run"
helm upgrade har "$chart" --dry-run=server --set page=dry >rendered
grep -q "har serves dry beside default" rendered
is 1 "$(helm history har | grep -c '^[0-9]')"

echo "try: upgrade"
helm upgrade har "$chart" --set page=two --set replicas=3 --wait --timeout 2m
is 3 "$(get deployment har -o 'jsonpath={.status.readyReplicas}')"

echo "try: failing upgrade"
if helm upgrade har "$chart" --set image=registry.invalid/none:1 --wait --timeout 5s; then
    echo "an upgrade without an image succeeded"
    exit 1
fi
helm history har | tail -n 1 | grep -w failed

echo "try: rollback"
helm rollback har 1 --wait --timeout 2m
is one "$(get configmap har-page -o 'jsonpath={.data.page}')"
is 4 "$(helm history har | grep -c '^[0-9]')"

echo "try: uninstall"
helm uninstall har --wait --timeout 2m
is "" "$(get deployments,services,berths -o name)"
