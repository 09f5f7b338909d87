"""One HTTPS request, answered as JSON: {"code": …, "headers": {…}, "body": "…"}.

raw.py METHOD PATH [--type MEDIA-TYPE] [--body TEXT | --body-size BYTES] [--header NAME:VALUE]…
       [--as nobody | --cert FILE --key FILE | --token TOKEN]
Without the last options it authenticates as the kubeconfig's user.
"""

import argparse
import base64
import http.client
import json
import os
import ssl
import tempfile
from urllib.parse import urlsplit

import yaml

parser = argparse.ArgumentParser()
parser.add_argument("method")
parser.add_argument("path")
parser.add_argument("--type")
parser.add_argument("--body")
parser.add_argument("--body-size", type=int)
parser.add_argument("--header", action="append", default=[])
parser.add_argument("--as", dest="who", default="admin")
parser.add_argument("--cert")
parser.add_argument("--key")
parser.add_argument("--token")
options = parser.parse_args()

with open(os.environ["KUBECONFIG"], encoding="utf-8") as file:
    config = yaml.safe_load(file)
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())


def kept(data):
    file = tempfile.NamedTemporaryFile(delete=False)
    file.write(base64.b64decode(data))
    file.close()
    return file.name


headers = {}
if options.cert:
    context.load_cert_chain(options.cert, options.key)
elif options.token:
    headers["Authorization"] = "Bearer " + options.token
elif options.who == "admin":
    files = kept(user["client-certificate-data"]), kept(user["client-key-data"])
    context.load_cert_chain(*files)
    for name in files:
        os.unlink(name)
if options.type:
    headers["Content-Type"] = options.type
for header in options.header:
    name, _, value = header.partition(":")
    headers[name] = value
body = options.body
if options.body_size:
    pad = options.body_size - len('{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"x":""}}')
    body = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"x":"' + "x" * pad + '"}}'

place = urlsplit(cluster["server"])
connection = http.client.HTTPSConnection(place.hostname, place.port, context=context, timeout=30)
try:
    connection.request(options.method, options.path, body=body, headers=headers)
except BrokenPipeError:
    pass  # the server answered before it had read everything
answer = connection.getresponse()
text = answer.read().decode(errors="replace")
print(json.dumps({"code": answer.status, "headers": {k.lower(): v for k, v in answer.getheaders()}, "body": text}))
