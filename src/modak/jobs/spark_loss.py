"""A Spark session that is gone: its Java process died, its context was stopped, or its Connect server forgot it.

Nothing brings such a session back, and PySpark goes on handing it out: what it remembers of it, and has no public word for, is cleared
here, so that the next session is a new one.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A process that dies closes its sockets a moment before it can be waited for.
_LAST_SECONDS = 5.0
_END_SECONDS = 30.0
_FORGOTTEN = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION")


def is_lost(spark: SparkSession | None = None, cause: BaseException | None = None) -> bool:
    """Whether a session is of no use any more. Java is asked, which takes a millisecond; a Connect server is not.

    ``cause`` is what the session's last use raised. Without a session it is PySpark's own that is meant.
    """
    from pyspark.sql import SparkSession

    if _is_forgotten(cause):
        return True
    if spark is None:
        spark = SparkSession._instantiatedSession
    if spark is None:
        return False
    return _has_no_java(spark, cause) if isinstance(spark, SparkSession) else bool(spark.is_stopped)


def how_it_ended() -> str | None:
    """Of Java in this process, as long as nobody has let go of it."""
    from pyspark import SparkContext

    code = getattr(getattr(SparkContext._gateway, "proc", None), "returncode", None)
    if code is None:
        return None
    return f"its Java process was killed by signal {-code}" if code < 0 else f"its Java process ended with code {code}"


def let_go(spark: SparkSession) -> None:
    """Forget a lost session. Another one that was started meanwhile, and its Java, stay."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    if not isinstance(spark, SparkSession):
        _let_go_of_connect(spark)
        return
    context = spark._sc
    with SparkContext._lock:
        if SparkContext._active_spark_context not in (context, None):
            return
        # Java is not asked to stop it: it is not there, or has done so.
        context._jsc = None
        context.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    _end(gateway)


def _is_forgotten(cause: BaseException | None) -> bool:
    """What a Connect client raises when the server is away, began anew, or let the session go because nobody used it."""
    from pyspark.errors import PySparkException

    if not isinstance(cause, PySparkException):
        return False
    if (cause.getCondition() or "").startswith(_FORGOTTEN):
        return True
    code = getattr(cause, "getGrpcStatusCode", lambda: None)()
    return getattr(code, "name", None) == "UNAVAILABLE"


def _has_no_java(spark: SparkSession, cause: BaseException | None) -> bool:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    java = spark._sc._jsc
    if java is None:
        return True
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and _has_ended(process, _LAST_SECONDS if _is_cut_off(cause) else 0.0):
        return True
    try:
        # As when the master of a cluster gave the application up.
        return bool(java.sc().isStopped())
    except (Py4JError, OSError):
        return True


def _is_cut_off(cause: BaseException | None) -> bool:
    """Whether Java did not answer, or not to the end; what it answers itself comes as an exception of Java's."""
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(cause, Py4JError | ConnectionError | EOFError) and not isinstance(cause, Py4JJavaError)


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(gateway: Any) -> None:
    """A Java that does not answer, or whose context is stopped, would keep its memory for as long as this process lives."""
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    # Sockets and threads of this side; whatever it has to say, nobody is there to hear it.
    with contextlib.suppress(Exception):
        gateway.shutdown()


def _let_go_of_connect(spark: Any) -> None:
    """Without a word to the server: a client that says goodbye tries for minutes if nobody is there."""
    with contextlib.suppress(Exception):
        spark.client._channel.close()
    spark.client._closed = True
    kind = type(spark)
    with kind._lock:
        if kind._default_session is spark:
            kind._default_session = None
