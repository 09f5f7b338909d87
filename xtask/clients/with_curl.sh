# curl: requests with HEAD, whose answers have no body, over HTTP/2 and HTTP/1.1, as load balancers and monitors send.
set -eu

for part in certificate-authority:clusters[0].cluster client-certificate:users[0].user client-key:users[0].user; do
    name=${part%%:*}
    kubectl config view --raw -o "jsonpath={.${part#*:}.$name-data}" | base64 -d >"$name"
done
server=$(kubectl config view -o 'jsonpath={.clusters[0].cluster.server}')

# head VERSION CODE URL [OPTION…]: checks that the answer to HEAD has this version of HTTP and this code.
head() {
    version=$1 code=$2 url=$3
    shift 3
    said=$(curl --silent --show-error --head --max-time 60 --cert client-certificate --key client-key "$@" \
        --output /dev/null --write-out '%{http_version} %{http_code}' "$url")
    if [ "$said" != "$version $code" ]; then
        echo "HEAD $url: $said, not $version $code"
        exit 1
    fi
}

echo "try: HEAD over HTTP/2"
for path in livez readyz healthz; do
    head 2 200 "$server/$path" --http2 --cacert certificate-authority
done

# Other paths may not support HEAD, but the answer has to be complete.
echo "try: HEAD of other paths"
for path in version openapi/v2 apis api/v1/namespaces/default; do
    curl --silent --show-error --head --http2 --max-time 60 --cacert certificate-authority \
        --cert client-certificate --key client-key --output /dev/null "$server/$path"
done

echo "try: HEAD over HTTP/1.1"
head 1.1 200 "$server/readyz" --http1.1 --cacert certificate-authority

echo "try: many requests over one connection"
urls=$(for _ in 1 2 3 4 5 6 7 8 9 10; do echo "$server/readyz"; done)
# shellcheck disable=SC2086 # one word for each address
count=$(curl --silent --show-error --http2 --max-time 60 --cacert certificate-authority --cert client-certificate \
    --key client-key --write-out '\n%{num_connects}\n' $urls | grep -c '^1$')
if [ "$count" != 1 ]; then
    echo "$count connections for ten requests"
    exit 1
fi

echo "try: HEAD of the kubelet"
head 2 200 https://127.0.0.1:10250/healthz --http2 --insecure
