"""One moto server per test process: real S3 requests on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

from spark_eoc.testing.ports import free_port
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
        log.close()


@pytest.fixture
def s3_url(s3_server):
    """A prefix of its own in the bucket."""
    return f"s3://eoc/{uuid.uuid4().hex}"
