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

echo "try: lint, dry run"
helm lint "$chart"
helm install har "$chart" --dry-run=server >rendered
grep -q "har serves one beside default" rendered

echo "try: install"
helm install har "$chart" --wait --timeout 2m
is 2 "$(get deployment har -o 'jsonpath={.status.readyReplicas}')"
is 90 "$(get berth har -o 'jsonpath={.spec.length}')"

echo "try: test"
helm test har --logs --timeout 2m

echo "try: upgrade"
helm upgrade har "$chart" --set page=two --set replicas=3 --wait --timeout 2m
is 3 "$(get deployment har -o 'jsonpath={.status.readyReplicas}')"

echo "try: failing upgrade"
if helm upgrade har "$chart" --set image=registry.invalid/none:1 --wait --timeout 5s; then
    echo "an upgrade without an image succeeded"
    exit 1
fi
is failed "$(helm status har -o json | sed 's/.*"status":"\([a-z]*\)".*/\1/')"

echo "try: rollback"
helm rollback har 1 --wait --timeout 2m
is one "$(get configmap har-page -o 'jsonpath={.data.page}')"
is 4 "$(helm history har | grep -c '^[0-9]')"

echo "try: uninstall"
helm uninstall har --wait --timeout 2m
is "" "$(get deployments,services,berths -o name)"
