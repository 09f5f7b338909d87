"""Pushes the one image of an OCI archive to a registry: push.py ARCHIVE HOST:PORT REPOSITORY TAG USER:PASSWORD."""

import base64
import http.client
import json
import sys
import tarfile

archive, host, repository, tag, credentials = sys.argv[1:]
tar = tarfile.open(archive)
connection = http.client.HTTPConnection(host, timeout=30)
authorization = "Basic " + base64.b64encode(credentials.encode()).decode()


def blob(digest):
    return tar.extractfile("blobs/" + digest.replace(":", "/")).read()


def call(method, path, expected, body=None, media_type="application/octet-stream"):
    headers = {"Authorization": authorization, "Content-Type": media_type}
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != expected:
        sys.exit(f"{method} {path}: {answer.status} {text!r}")
    return answer


def push_blob(digest):
    place = call("POST", f"/v2/{repository}/blobs/uploads/", 202).getheader("Location")
    place = place.split(host, 1)[-1]
    mark = "&" if "?" in place else "?"
    call("PUT", f"{place}{mark}digest={digest}", 201, blob(digest))


index = json.load(tar.extractfile("index.json"))
manifest = blob(index["manifests"][0]["digest"])
media_type = index["manifests"][0]["mediaType"]
parsed = json.loads(manifest)
if "manifests" in parsed:
    manifest = blob(parsed["manifests"][0]["digest"])
    media_type = parsed["manifests"][0]["mediaType"]
    parsed = json.loads(manifest)
for item in [parsed["config"], *parsed["layers"]]:
    push_blob(item["digest"])
call("PUT", f"/v2/{repository}/manifests/{tag}", 201, manifest, media_type)
