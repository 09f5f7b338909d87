# kube-state-metrics: all of its resources are listed and watched, and its metrics of a pod.
set -eu

trap 'kill "$metrics" 2>/dev/null || true' EXIT
kubectl() { command kubectl --namespace "$KNARR_NAMESPACE" "$@"; }

echo "try: start"
kube-state-metrics --kubeconfig "$KUBECONFIG" --host 127.0.0.1 --port 18080 --telemetry-host 127.0.0.1 \
    --telemetry-port 18081 >out 2>&1 &
metrics=$!
# scraped PORT PATTERN: waits until a scrape has a matching line.
scraped() {
    left=600
    until curl --silent --max-time 10 "http://127.0.0.1:$1/metrics" >scrape && grep -q "$2" scrape; do
        left=$((left - 1))
        if [ "$left" = 0 ]; then
            tail -n 5 out
            echo "no $2 in a scrape after 60 s"
            exit 1
        fi
        sleep 0.1
    done
}

echo "try: kube_pod_info of a new pod"
kubectl run seen --image busybox --image-pull-policy IfNotPresent --command -- sleep 1000
scraped 18080 "^kube_pod_info{namespace=\"$KNARR_NAMESPACE\",pod=\"seen\""
scraped 18080 "^kube_pod_status_phase{namespace=\"$KNARR_NAMESPACE\",pod=\"seen\".*phase=\"Running\"} 1"
scraped 18080 "^kube_node_status_condition{.*condition=\"Ready\",status=\"true\"} 1"

echo "try: pod deleted"
kubectl delete pod seen --now
left=600
while curl --silent "http://127.0.0.1:18080/metrics" | grep -q "kube_pod_info{namespace=\"$KNARR_NAMESPACE\",pod=\"seen\""; do
    left=$((left - 1))
    [ "$left" != 0 ] || { echo "the deleted pod is still there"; exit 1; }
    sleep 0.1
done

# Lists are streamed: they are counted as watches.
echo "try: lists and watches"
scraped 18081 '^kube_state_metrics_watch_total{.*result="success"}'
if grep 'result="error"' scrape; then
    echo "lists or watches failed"
    exit 1
fi
