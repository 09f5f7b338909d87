"""Requests a page over HTTPS without verifying the server: prints the body; to standard error if the answer is not 200."""
import argparse
import ssl
import sys
import urllib.error
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--token")
parser.add_argument("--certificate")
parser.add_argument("--key")
asked = parser.parse_args()

context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
if asked.certificate:
    context.load_cert_chain(asked.certificate, asked.key)
request = urllib.request.Request(asked.url)
if asked.token:
    request.add_header("Authorization", f"Bearer {asked.token}")
try:
    with urllib.request.urlopen(request, context=context, timeout=20) as answer:
        sys.stdout.write(answer.read().decode())
except urllib.error.HTTPError as error:
    sys.stderr.write(error.read().decode())
    sys.exit(1)
