"""Which failures mean that Spark itself is gone, and not what it was asked for."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from grpc import StatusCode
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.connect import SparkConnectException, SparkConnectGrpcException

from modak.errors import LakeError, MissingComponent, SparkLost
from modak.jobs import spark as spark_module
from modak.jobs.spark import spark_failures, use_again
from modak.jobs.spark_loss import is_lost


@dataclass
class Client:
    _closed: bool = False
    asked: int = 0

    @property
    def _channel(self) -> Any:
        raise OSError("closed already")


@dataclass
class Connected:
    """A session of Spark Connect as far as it matters: ``raises`` is what the server answers."""

    raises: Exception | None = None
    client: Client = field(default_factory=Client)

    _default_session = None
    _lock = contextlib.nullcontext()

    @property
    def is_stopped(self) -> bool:
        return self.client._closed

    @property
    def conf(self) -> Any:
        return self

    def set(self, *_: str) -> None:
        self.client.asked += 1
        if self.raises is not None:
            raise self.raises


def forgotten(condition: str) -> Exception:
    return SparkConnectException("gone", errorClass=condition, messageParameters={})


LOST = [
    forgotten("INVALID_HANDLE.SESSION_NOT_FOUND"),
    forgotten("INVALID_HANDLE.SESSION_CLOSED"),
    forgotten("INVALID_HANDLE.SESSION_CHANGED"),
    forgotten("NO_ACTIVE_SESSION"),
    SparkConnectGrpcException("failed to connect to all addresses", grpc_status_code=StatusCode.UNAVAILABLE),
]
OTHERS = [
    AnalysisException("no such table", errorClass="TABLE_OR_VIEW_NOT_FOUND", messageParameters={}),
    SparkConnectGrpcException("too large", grpc_status_code=StatusCode.RESOURCE_EXHAUSTED),
    forgotten("INVALID_HANDLE.OPERATION_NOT_FOUND"),
]


@pytest.mark.parametrize("cause", LOST, ids=str)
def test_a_session_that_its_server_forgot_is_replaced(cause: Exception) -> None:
    session: Any = Connected(cause)
    assert is_lost(session, cause)
    assert not is_lost(session)
    assert use_again(session, []) is False
    assert session.is_stopped, "nobody of this process gets it again"
    # Who uses it meanwhile is told of Spark, whatever it raised.
    with pytest.raises(SparkLost, match="the flush did not end, because Spark is gone"), spark_failures("the flush", session):
        raise ConnectionRefusedError(111, "Connection refused")
    assert use_again(session, []) is False
    assert session.client.asked == 1, "a session that is known to be lost is not asked again"


@pytest.mark.parametrize("cause", OTHERS, ids=str)
def test_what_was_asked_failed_and_the_session_goes_on(cause: Exception) -> None:
    session: Any = Connected(cause)
    assert not is_lost(session, cause)
    with pytest.raises(type(cause)):
        use_again(session, [])
    assert not session.is_stopped
    with pytest.raises(LakeError, match="failed in Spark"), spark_failures("the flush", session):
        raise cause


def test_what_is_not_of_spark_passes() -> None:
    session: Any = Connected()
    with pytest.raises(FileNotFoundError), spark_failures("the flush", session):
        raise FileNotFoundError("warehouse")
    assert use_again(session, []) is True


def test_a_connect_server_that_is_away_is_told_without_its_token() -> None:
    with pytest.raises(MissingComponent, match=r"Spark at sc://127\.0\.0\.1:1 does not answer") as told:
        spark_module.session("sc://127.0.0.1:1/;token=hunter2", [])
    assert "hunter2" not in str(told.value)
