"""A real S3 server: SeaweedFS from its wheel, with signatures checked, in a process that a test may stop, kill and start again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs as pafs

from tests.ports import free_ports

ACCESS_KEY = "MODAKTESTKEY"
SECRET_KEY = "a-secret-that-must-not-be-found-anywhere-7f3c"
BUCKET = "lake"
_START_SECONDS_MAX = 60
_GRPC_ABOVE = 10_000


@dataclass
class ObjectStore:
    folder: Path
    ports: list[int] = field(default_factory=lambda: free_ports(4, companions=_GRPC_ABOVE))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[3]}"

    def config(self, endpoint: str | None = None) -> dict[str, str]:
        """What a storage profile says about it; the store has no region and no names of buckets in its host."""
        return {"s3.endpoint": endpoint or self.endpoint}

    @property
    def credentials(self) -> dict[str, str]:
        return {"s3.access-key-id": ACCESS_KEY, "s3.secret-access-key": SECRET_KEY}

    def files(self, prefix: str) -> list[str]:
        found = self._filesystem().get_file_info(pafs.FileSelector(f"{BUCKET}/{prefix}", recursive=True, allow_not_found=True))
        return sorted(info.path for info in found if info.is_file)

    def contents(self, prefix: str) -> Iterator[bytes]:
        for path in self.files(prefix):
            with self._filesystem().open_input_stream(path) as stream:
                yield stream.read()

    def start(self) -> None:
        master, volume, filer, s3 = self.ports
        identity = {"name": "modak", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]}
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        (self.folder / "s3.json").write_text(json.dumps({"identities": [{**identity, "actions": rights}]}))
        options = {
            "dir": self.folder,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.port": master,
            "master.electionTimeout": "1s",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 64,
            "volume.port": volume,
            "volume.max": 50,
            "volume.preStopSeconds": 0,
            "filer": "true",
            "filer.port": filer,
            "filer.localSocket": self.folder / "filer.sock",
            "s3": "true",
            "s3.port": s3,
            "s3.config": self.folder / "s3.json",
            "s3.iam": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.localSocket": self.folder / "s3.sock",
        }
        command = [str(Path(sys.executable).parent / "weed"), "-logtostderr=true", "server", *(f"-{k}={v}" for k, v in options.items())]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=_plain_environment())
        self._wait()

    def stop(self, *, hard: bool = False) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self._process.kill()
            self._process.wait()
            self._process = None

    def _filesystem(self) -> pafs.S3FileSystem:
        host = self.endpoint.removeprefix("http://")
        return pafs.S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=host, scheme="http", region="any", allow_bucket_creation=True
        )

    def _wait(self) -> None:
        """Until the bucket can be written to: the parts of the server find each other one after the other."""
        until = time.monotonic() + _START_SECONDS_MAX
        while True:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            try:
                filesystem = self._filesystem()
                filesystem.create_dir(BUCKET)
                with filesystem.open_output_stream(f"{BUCKET}/is-there") as stream:
                    stream.write(b"yes" * 4096)
                return
            except OSError:
                assert time.monotonic() < until, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.2)


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3_", "MODAK_"))}


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    store = ObjectStore(folder)
    try:
        store.start()
        yield store
    finally:
        store.stop(hard=True)
