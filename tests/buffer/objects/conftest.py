"""One moto server per test process, real S3 requests on loopback; Azurite, where there is one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from email.utils import formatdate
from pathlib import Path

import pytest

from spark_eoc.testing.ports import free_port
from spark_eoc.testing.reaper import reaper
from spark_eoc.testing.wait import until


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """A running S3 with the bucket `eoc`, and its settings in the environment."""
    command = Path(sys.executable).with_name("moto_server")
    if not command.exists():
        if os.environ.get("CI"):
            pytest.fail("moto is missing: pip install 'moto[server]'")
        pytest.skip("moto is missing: pip install 'moto[server]'")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = (tmp_path_factory.mktemp("s3") / "moto.log").open("wb")
    process = subprocess.Popen(
        [command, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
    )
    reaper().process(process.pid)  # also when this process is killed
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIATESTING",
        "AWS_SECRET_ACCESS_KEY": "very-secret-indeed",
    }
    patch = pytest.MonkeyPatch()
    try:
        for name, value in settings.items():
            patch.setenv(name, value)
        until(lambda: _answers(f"{url}/moto-api/"), 60, "moto answers")
        request = urllib.request.Request(f"{url}/eoc", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield url
    finally:
        patch.undo()
        process.kill()
        process.wait()
        reaper().forget(process.pid)
        log.close()


@pytest.fixture
def s3_url(s3_server):
    """A prefix of its own in the bucket."""
    return f"s3://eoc/{uuid.uuid4().hex}"


AZURE_ACCOUNT = "devstoreaccount1"
#: Of the emulator, published by its makers; it opens nothing else.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory):
    """A running Azurite with the container `eoc`, and its settings in the environment. Optional:
    no package that the tests bring has it."""
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("azurite-blob is not on PATH: npm install -g azurite")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ["--blobPort", str(port), "--location", str(tmp_path_factory.mktemp("azure"))]
    options += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    process = subprocess.Popen([command, *options], stdout=subprocess.DEVNULL)
    settings = {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": url,
    }
    patch = pytest.MonkeyPatch()
    try:
        for name, value in settings.items():
            patch.setenv(name, value)
        until(lambda: _listens(port), 60, "azurite listens")
        _make_container(url, "eoc")
        yield url
    finally:
        patch.undo()
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _make_container(url: str, name: str) -> None:
    """One signed request; obstore makes no containers."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + 12 * "\n" + signed + resource
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    path = f"{url}/{AZURE_ACCOUNT}/{name}?restype=container"
    request = urllib.request.Request(path, method="PUT", headers=headers)
    request.add_header("Content-Length", "0")
    urllib.request.urlopen(request, timeout=10).close()
