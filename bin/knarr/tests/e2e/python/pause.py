"""Writes a docker archive with an image that only waits: what other runtimes hold a sandbox's namespaces with.

Arguments: the file to write, the image's name, a static busybox.
"""

import hashlib
import io
import json
import sys
import tarfile

path, name, busybox = sys.argv[1:]


def add(archive, member, content, mode=0o644):
    info = tarfile.TarInfo(member)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


layer = io.BytesIO()
with tarfile.open(fileobj=layer, mode="w") as archive, open(busybox, "rb") as program:
    add(archive, "busybox", program.read(), 0o755)
layer = layer.getvalue()
config = json.dumps({
    "architecture": "amd64",
    "os": "linux",
    "config": {"Entrypoint": ["/busybox", "sleep", "2147483647"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
}).encode()
manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
with tarfile.open(path, mode="w") as archive:
    add(archive, "config.json", config)
    add(archive, "layer.tar", layer)
    add(archive, "manifest.json", manifest)
