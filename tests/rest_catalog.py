"""A real Iceberg REST catalog: Apache Iceberg's reference server, from Maven, with its tables in a database of the test's cluster."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modak.app import App
from modak.embedded.jars import fetch, read_lock, spark_jars
from modak.embedded.java import find_java
from modak.lake.storage import jdbc_url
from modak.progress import SILENT
from tests.object_store import BUCKET, ObjectStore
from tests.ports import free_ports
from tests.spark_server import spark_home

LOCK = Path(__file__).with_name("rest_catalog.lock")
# What the server needs and Spark has anyway.
_OF_SPARK = (
    *("RoaringBitmap", "avro-1", "hadoop-client", "jackson-annotations", "jackson-core-2", "jackson-databind", "log4j", "slf4j-api"),
    *("httpclient-4", "httpcore-4", "commons-codec", "jcl-over-slf4j"),
)
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
_START_SECONDS_MAX = 90


@dataclass
class RestCatalog:
    folder: Path
    class_path: str
    java: Path
    environment: dict[str, str]
    port: int
    _process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            str(self.java),
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            self.class_path,
            "org.apache.iceberg.rest.RESTCatalogServer",
        ]
        environment = {"PATH": os.environ["PATH"], **self.environment, "CATALOG_REST_PORT": str(self.port)}
        with (self.folder / "rest.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)
        until = time.monotonic() + _START_SECONDS_MAX
        while True:
            assert self._process.poll() is None, (self.folder / "rest.log").read_text()[-3000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/v1/config", timeout=5):
                return
            assert time.monotonic() < until, (self.folder / "rest.log").read_text()[-3000:]
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def rest_catalog(app: App, folder: Path, dsn: str, store: ObjectStore) -> Iterator[RestCatalog]:
    """``dsn`` is an empty database for it. Its files go to the store, by credentials of its own."""
    java = find_java(os.environ, app.settings.cache)
    jars = fetch(read_lock(LOCK)["server"], app.settings.cache, java, SILENT, title="Fetching the REST catalog of the tests")
    jars += [jar for jar in spark_jars(app.settings.cache, java, SILENT, s3=True) if jar.name.startswith(("postgresql", "iceberg-aws"))]
    jars += [path for name in _OF_SPARK for path in sorted((spark_home() / "jars").glob(f"{name}*.jar"))]
    url, user, password = jdbc_url(dsn)
    environment = {
        "CATALOG_URI": url,
        "CATALOG_JDBC_USER": user,
        "CATALOG_JDBC_PASSWORD": password or "",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_WAREHOUSE": f"s3://{BUCKET}/rest",
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": store.endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": store.credentials["s3.access-key-id"],
        "AWS_SECRET_ACCESS_KEY": store.credentials["s3.secret-access-key"],
    }
    server = RestCatalog(folder, ":".join(map(str, jars)), java.java, environment, free_ports(1)[0])
    try:
        server.start()
        yield server
    finally:
        server.stop()
