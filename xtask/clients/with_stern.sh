# stern: the logs of several pods, including pods that are created later.
set -eu

trap 'kill "$follower" 2>/dev/null || true' EXIT
follower=
kubectl() { command kubectl --namespace "$KNARR_NAMESPACE" "$@"; }
# pod NAME WORD: creates a pod that logs a word and keeps running.
pod() {
    kubectl run "$1" --image busybox --image-pull-policy IfNotPresent --labels "app=said" --command -- \
        sh -c "echo $2; sleep 1000"
    kubectl wait --for condition=Ready "pod/$1" --timeout 120s
}
# within SECONDS FILE TEXT: waits until the file contains the text.
within() {
    left=$(($1 * 10))
    until grep -q "$3" "$2"; do
        left=$((left - 1))
        if [ "$left" = 0 ]; then
            echo "no $3 in the logs after $1 s"
            exit 1
        fi
        sleep 0.1
    done
}

echo "try: logs of pods by label"
pod one ahoy
pod two avast
stern --namespace "$KNARR_NAMESPACE" --selector app=said --no-follow --color never >logs
grep -q '^one main ahoy$\|^one one ahoy$' logs
grep -q 'avast$' logs

echo "try: following logs, a later pod too"
stern --namespace "$KNARR_NAMESPACE" --selector app=said --color never >followed 2>errors &
follower=$!
within 60 followed 'ahoy$'
pod three belay
within 60 followed 'belay$'

echo "try: by owner, as JSON"
kubectl create deployment boat --image busybox -- sh -c 'echo aye; sleep 1000'
kubectl patch deployment boat --type json --patch \
    '[{"op": "add", "path": "/spec/template/spec/containers/0/imagePullPolicy", "value": "IfNotPresent"}]'
kubectl rollout status deployment boat --timeout 120s
stern deployment/boat --namespace "$KNARR_NAMESPACE" --no-follow --output json >json
grep -q '"message":"aye' json
