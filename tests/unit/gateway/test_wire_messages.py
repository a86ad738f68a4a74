"""The codec against itself, against bytes written by hand from the protocol's description, and against garbage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modak.errors import ModakError, Problem, Refused
from modak.gateway.wire import messages as m

LIMIT = 1 << 20

# Text as the wire carries it: anything but NUL and lone surrogates.
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
uint16 = st.integers(0, 2**16 - 1)
uint32 = st.integers(0, 2**32 - 1)
codes = st.lists(st.sampled_from([m.TEXT, m.BINARY]), max_size=4).map(tuple)
values = st.lists(st.none() | st.binary(max_size=12), max_size=6).map(tuple)


def decode_all(data: bytes, *, startup: bool = False) -> list[m.Message]:
    decoder = m.Decoder(LIMIT, startup=startup)
    decoder.feed(data)
    found = []
    while message := decoder.next():
        found.append(message)
    assert decoder.buffered == 0, "bytes were left over"
    return found


def decode(data: bytes, *, startup: bool = False) -> m.Message:
    (message,) = decode_all(data, startup=startup)
    return message


@st.composite
def binds(draw: st.DrawFn) -> m.Bind:
    given_values = draw(values)
    formats = draw(st.sampled_from([(), (m.TEXT,), (m.BINARY,), (m.BINARY,) * len(given_values)]))
    return m.Bind(draw(text), draw(text), formats, given_values, draw(codes))


frontend = st.one_of(
    st.builds(m.Query, text),
    st.builds(m.Parse, text, text, st.lists(uint32, max_size=4).map(tuple)),
    binds(),
    st.builds(m.Describe, st.sampled_from([b"S", b"P"]), text),
    st.builds(m.Execute, text, st.integers(-(2**31), 2**31 - 1)),
    st.builds(m.Close, st.sampled_from([b"S", b"P"]), text),
    st.sampled_from([m.Sync(), m.Flush(), m.Terminate(), m.CopyDone()]),
    st.builds(m.CopyData, st.binary(max_size=40)),
    st.builds(m.CopyFail, text),
    st.builds(m.FunctionCall, st.binary(max_size=10)),
)


# --- framing


@given(st.lists(st.builds(m.Message, st.binary(min_size=1, max_size=1), st.binary(max_size=50)), max_size=20), st.data())
def test_any_chunking_gives_the_same_messages(sent: list[m.Message], data: st.DataObject) -> None:
    stream = b"".join(message.encode() for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    decoder, found = m.Decoder(LIMIT), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:end])
        while message := decoder.next():
            found.append(message)
    assert found == sent
    assert decoder.buffered == 0


@settings(max_examples=400)
@given(st.lists(st.binary(max_size=30), max_size=8), st.booleans())
def test_garbage_gives_messages_or_a_protocol_error(chunks: list[bytes], startup: bool) -> None:
    decoder = m.Decoder(64, startup=startup)
    try:
        for chunk in chunks:
            decoder.feed(chunk)
            while message := decoder.next():
                parse = m.parse_frontend if message.tag else m.parse_startup
                parse(message)
    except m.ProtocolError:
        return


PARSERS: dict[bytes, Callable[[m.Message], object]] = {
    b"R": lambda message: m.parse_authentication(message).mechanisms(),
    b"S": m.parse_parameter_status,
    b"K": m.parse_backend_key_data,
    b"Z": m.parse_ready_for_query,
    b"T": m.parse_row_description,
    b"t": m.parse_parameter_description,
    b"D": m.parse_data_row,
    b"C": m.parse_command_complete,
    b"E": m.parse_error,
    b"N": m.parse_error,
}
AUTHENTICATION: list[Callable[[m.Message], object]] = [m.parse_password, m.parse_sasl_initial, m.parse_sasl_response]


@settings(max_examples=300)
@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=40))
def test_garbage_from_a_server_is_a_protocol_error(tag: bytes, body: bytes) -> None:
    try:
        PARSERS[tag](m.Message(tag, body))
    except m.ProtocolError:
        return


@settings(max_examples=300)
@given(st.sampled_from(list(b"QPBDECSHXdcfF")), st.binary(max_size=40))
def test_a_garbled_body_is_a_protocol_error(tag: int, body: bytes) -> None:
    """With a known tag, so that the parsers are reached more often than by pure chance."""
    try:
        m.parse_frontend(m.Message(bytes([tag]), body))
    except m.ProtocolError:
        return


@given(st.sampled_from(AUTHENTICATION), st.binary(max_size=30))
def test_a_garbled_answer_to_authentication_is_a_protocol_error(parse: Callable[[m.Message], object], body: bytes) -> None:
    try:
        parse(m.Message(b"p", body))
    except m.ProtocolError:
        return


@pytest.mark.parametrize("length", [0, 3, 65, 2**31, 2**32 - 1])
def test_a_wrong_length_is_refused_before_the_body_comes(length: int) -> None:
    decoder = m.Decoder(64)
    decoder.feed(b"Q" + struct.pack("!I", length))
    for _ in range(2):
        with pytest.raises(m.ProtocolError, match="invalid message length"):
            decoder.next()


def test_the_limit_itself_is_allowed() -> None:
    decoder = m.Decoder(64)
    decoder.feed(m.Message(b"d", b"x" * 60).encode())
    assert decoder.next() == m.Message(b"d", b"x" * 60)


@pytest.mark.parametrize("length", [0, 4, 7, 10_001, 2**32 - 1])
def test_a_startup_packet_has_a_limit_of_its_own(length: int) -> None:
    decoder = m.Decoder(LIMIT, startup=True)
    decoder.feed(struct.pack("!I", length))
    with pytest.raises(m.ProtocolError, match="startup packet"):
        decoder.next()


def test_many_messages_in_one_buffer_do_not_pile_up() -> None:
    decoder = m.Decoder(LIMIT)
    message = m.Message(b"d", b"x" * 1000)
    half = message.encode()[:500]
    for _ in range(300):
        decoder.feed(message.encode() + half)
        assert decoder.next() == message
        decoder.feed(message.encode()[500:])
        assert decoder.next() == message
        assert decoder.next() is None
    assert len(decoder._buffer) < 10_000


def test_consumed_bytes_are_let_go_under_a_steady_backlog() -> None:
    decoder = m.Decoder(LIMIT)
    one = m.Message(b"d", b"x" * 1000).encode()
    decoder.feed(one * 10)
    for _ in range(2000):
        decoder.feed(one)
        assert decoder.next() is not None
    assert decoder.buffered == 10 * len(one)
    assert len(decoder._buffer) < 200_000


def test_a_run_of_rows_is_handed_through_unread() -> None:
    rows = [m.data_row([b"%d" % number, None]) for number in range(5)]
    decoder = m.Decoder(LIMIT)
    decoder.feed(b"".join(rows) + m.command_complete("SELECT 5") + rows[0][:3])
    assert decoder.next_run(b"D") == b"".join(rows)
    assert decoder.next_run(b"D") == b""
    assert decoder.next() == m.Message(b"C", b"SELECT 5\0")
    assert decoder.next_run(b"D") == b""
    decoder.feed(rows[0][3:])
    assert decoder.next_run(b"D") == rows[0]


# --- start-up


def test_startup_after_a_declined_encryption() -> None:
    decoder = m.Decoder(LIMIT, startup=True)
    decoder.feed(bytes.fromhex("00000008 04d2162f"))
    assert m.parse_startup(decoder.next() or pytest.fail("no packet")) == m.SSLRequest()
    decoder.expect_startup()
    decoder.feed(bytes.fromhex("00000008 04d21630"))
    assert m.parse_startup(decoder.next() or pytest.fail("no packet")) == m.GSSENCRequest()
    decoder.expect_startup()
    wanted = m.StartupMessage(m.PROTOCOL_3_0, {"user": "ana", "database": "shop"})
    decoder.feed(wanted.encode() + m.Sync().encode())
    assert m.parse_startup(decoder.next() or pytest.fail("no packet")) == wanted
    assert decoder.next() == m.Message(b"S", b"")


def test_nothing_in_the_clear_may_follow_an_accepted_encryption_request() -> None:
    decoder = m.Decoder(LIMIT, startup=True)
    decoder.feed(m.SSLRequest().encode() + m.StartupMessage(m.PROTOCOL_3_0, {"user": "mallory"}).encode())
    decoder.next()
    with pytest.raises(m.ProtocolError, match="unencrypted data"):
        decoder.expect_startup(encrypted=True)


def test_startup_by_the_byte() -> None:
    body = b"\0\x03\0\0user\0ana\0options\0-c x=1\0\0"
    raw = struct.pack("!I", len(body) + 4) + body
    wanted = m.StartupMessage(m.PROTOCOL_3_0, {"user": "ana", "options": "-c x=1"})
    assert m.parse_startup(decode(raw, startup=True)) == wanted
    assert wanted.encode() == raw


def test_bytes_in_another_encoding_survive_the_relay() -> None:
    raw = m.Message(b"", b"\0\x03\0\0user\0\xe9lise\0\0").encode()
    startup = m.parse_startup(decode(raw, startup=True))
    assert startup.encode() == raw


@pytest.mark.parametrize(
    "body",
    [
        b"\0\x03\0\0user\0ana\0",
        b"\0\x03\0\0user\0ana",
        b"\0\x03\0\0user\0",
        b"\0\x03\0\0\0more",
        b"\0\x03\0\0",
        struct.pack("!II", 80877103, 0),
        struct.pack("!II", 80877102, 7),
        struct.pack("!II", 80877102, 7) + b"abc",
        struct.pack("!II", 80877102, 7) + bytes(257),
    ],
)
def test_a_broken_startup_packet(body: bytes) -> None:
    with pytest.raises(m.ProtocolError):
        m.parse_startup(m.Message(b"", body))


def test_other_major_versions_are_refused() -> None:
    with pytest.raises(m.UnsupportedProtocol, match=r"2\.0") as refused:
        m.parse_startup(m.Message(b"", b"\0\x02\0\0user\0ana\0\0"))
    assert refused.value.sqlstate == "0A000"


@pytest.mark.parametrize("secret", [b"\0\x01\xfe\xff", b"s" * 32, b"s" * 256])
def test_cancel_requests(secret: bytes) -> None:
    request = m.CancelRequest(2**32 - 2, secret)
    assert request.encode()[4:12] == bytes.fromhex("04d2162e fffffffe")
    assert m.parse_startup(decode(request.encode(), startup=True)) == request
    assert secret.hex() not in repr(request)
    assert repr(secret) not in repr(request)


def test_negotiation() -> None:
    plain = {"user": "ana"}
    assert m.negotiation(m.StartupMessage(m.PROTOCOL_3_0, plain)) is None
    assert m.negotiation(m.StartupMessage(m.PROTOCOL_3_2, plain), newest=m.PROTOCOL_3_2) is None
    assert m.negotiation(m.StartupMessage(m.PROTOCOL_3_2, plain)) == b"v\0\0\0\x0c\0\x03\0\0\0\0\0\0"
    asked = m.StartupMessage(m.PROTOCOL_3_0, plain | {"_pq_.speed": "9"})
    assert m.negotiation(asked, newest=m.PROTOCOL_3_2) == b"v\0\0\0\x17\0\x03\0\0\0\0\0\x01_pq_.speed\0"


# --- what clients send


@given(frontend)
def test_frontend_messages_round_trip(sent: m.FrontendMessage) -> None:
    assert m.parse_frontend(decode(sent.encode())) == sent


@given(frontend, st.data())
def test_a_cut_frontend_message_is_never_read_as_whole(sent: m.FrontendMessage, data: st.DataObject) -> None:
    message = decode(sent.encode())
    if isinstance(sent, m.CopyData | m.FunctionCall) or not message.body:
        return
    cut = message.body[: data.draw(st.integers(0, len(message.body) - 1))]
    with pytest.raises(m.ProtocolError):
        m.parse_frontend(m.Message(message.tag, cut))


@given(frontend, st.binary(min_size=1, max_size=3))
def test_trailing_bytes_are_refused(sent: m.FrontendMessage, more: bytes) -> None:
    message = decode(sent.encode())
    if isinstance(sent, m.CopyData | m.FunctionCall):
        return
    with pytest.raises(m.ProtocolError):
        m.parse_frontend(m.Message(message.tag, message.body + more))


def test_bind_by_the_byte() -> None:
    body = b"c1\0s1\0" + bytes.fromhex("0001 0000  0003  00000001 31  ffffffff  00000000  0002 0001 0000")
    bind = m.Bind("c1", "s1", (m.TEXT,), (b"1", None, b""), (m.BINARY, m.TEXT))
    assert m.parse_frontend(m.Message(b"B", body)) == bind
    assert bind.encode() == m.Message(b"B", body).encode()


def test_bind_takes_all_the_parameters_of_a_large_insert() -> None:
    bind = m.Bind("", "s1", (), tuple(b"%d" % number for number in range(65_535)))
    assert m.parse_frontend(decode(bind.encode())) == bind


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (bytes.fromhex("00 00 0002 0000 0000 0003 ffffffff ffffffff ffffffff 0000"), "number of parameter formats"),
        (bytes.fromhex("00 00 0001 0002 0000 0000"), "format code"),
        (bytes.fromhex("00 00 0000 0000 0001 ffff"), "format code"),
        (bytes.fromhex("00 00 0000 0001 fffffffe 0000"), "negative length"),
        (bytes.fromhex("00 00 0000 0001 00000005 61 0000"), "truncated"),
        (bytes.fromhex("00 00 0000 0001 7fffffff 61 0000"), "truncated"),
    ],
)
def test_a_broken_bind(body: bytes, why: str) -> None:
    with pytest.raises(m.ProtocolError, match=why):
        m.parse_frontend(m.Message(b"B", body))


def test_formats_of_a_bind() -> None:
    assert [m.format_at((), at) for at in range(2)] == [m.TEXT, m.TEXT]
    assert [m.format_at((m.BINARY,), at) for at in range(2)] == [m.BINARY, m.BINARY]
    assert [m.format_at((m.TEXT, m.BINARY), at) for at in range(3)] == [m.TEXT, m.BINARY, m.TEXT]


def test_describe_wants_a_statement_or_a_portal() -> None:
    with pytest.raises(m.ProtocolError, match="neither"):
        m.parse_frontend(m.Message(b"D", b"Xname\0"))


def test_sql_that_is_not_utf8_has_an_error_of_its_own() -> None:
    with pytest.raises(m.InvalidText) as refused:
        m.parse_frontend(m.Message(b"Q", b"select '\xe9'\0"))
    assert refused.value.sqlstate == "22021"


@pytest.mark.parametrize("tag", [b"p", b"Z", b"\0", b"\xff"])
def test_an_unknown_frontend_message(tag: bytes) -> None:
    with pytest.raises(m.ProtocolError, match="unexpected frontend message"):
        m.parse_frontend(m.Message(tag, b""))


def test_answers_to_authentication() -> None:
    assert m.parse_password(decode(m.Password("pass wörd").encode())) == m.Password("pass wörd")
    assert "secret" not in repr(m.Password("secret"))
    for data in (b"n,,n=,r=abc", b"", None):
        initial = m.SASLInitialResponse("SCRAM-SHA-256", data)
        assert m.parse_sasl_initial(decode(initial.encode())) == initial
    assert m.parse_sasl_response(decode(m.SASLResponse(b"c=biws").encode())) == m.SASLResponse(b"c=biws")
    with pytest.raises(m.ProtocolError, match="expected password"):
        m.parse_password(m.Message(b"Q", b"select 1\0"))
    with pytest.raises(m.ProtocolError, match="negative length"):
        m.parse_sasl_initial(m.Message(b"p", b"X\0\xff\xff\xff\xfe"))


def test_a_nul_cannot_smuggle_anything_into_a_message() -> None:
    with pytest.raises(m.InvalidText):
        m.Query("select 1\0select 2").encode()
    with pytest.raises(m.InvalidText):
        m.parameter_status("a\0b", "c")


# --- what servers send


def test_backend_messages_by_the_byte() -> None:
    assert m.authentication_ok() == b"R\0\0\0\x08\0\0\0\0"
    assert m.authentication_cleartext() == b"R\0\0\0\x08\0\0\0\x03"
    assert m.authentication_sasl_continue(b"r=x") == b"R\0\0\0\x0b\0\0\0\x0br=x"
    assert m.authentication_sasl_final(b"v=x") == b"R\0\0\0\x0b\0\0\0\x0cv=x"
    assert m.ready_for_query(b"I") == b"Z\0\0\0\x05I"
    assert m.command_complete("SELECT 1") == b"C\0\0\0\x0dSELECT 1\0"
    assert m.empty_query() == b"I\0\0\0\x04"
    assert m.parse_complete() + m.bind_complete() + m.close_complete() == b"1\0\0\0\x042\0\0\0\x043\0\0\0\x04"
    assert m.no_data() + m.portal_suspended() == b"n\0\0\0\x04s\0\0\0\x04"
    assert m.copy_out_response([0, 0]) == b"H\0\0\0\x0b\0\0\x02\0\0\0\0"
    assert m.copy_in_response([1], binary=True) == b"G\0\0\0\x09\x01\0\x01\0\x01"
    assert m.copy_data(b"a\tb\n") + m.copy_done() == b"d\0\0\0\x08a\tb\nc\0\0\0\x04"
    assert m.data_row([b"ab", None, b""]) == b"D\0\0\0\x14\0\x03\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0"
    field = m.FieldDescription("n", 16384, 2, 1700, -1, 786438, 1)
    assert m.row_description([field]) == b"T\0\0\0\x1a\0\x01n\0" + bytes.fromhex("00004000 0002 000006a4 ffff 000c0006 0001")


@given(st.lists(st.builds(m.FieldDescription, text, uint32, st.integers(0, 1600), uint32, st.integers(-2, 100)), max_size=5))
def test_row_descriptions_round_trip(sent: list[m.FieldDescription]) -> None:
    assert m.parse_row_description(decode(m.row_description(sent))) == tuple(sent)


@given(values, st.lists(uint32, max_size=5))
def test_rows_and_parameters_round_trip(row: tuple[bytes | None, ...], oids: list[int]) -> None:
    assert m.parse_data_row(decode(m.data_row(row))) == row
    assert m.parse_parameter_description(decode(m.parameter_description(oids))) == tuple(oids)


def test_what_the_relay_reads() -> None:
    offer = m.parse_authentication(decode(m.authentication_sasl(["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"])))
    assert (offer.kind, offer.mechanisms()) == (m.AUTH_SASL, ("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"))
    assert m.parse_authentication(decode(m.authentication_ok())) == m.Authentication(m.AUTH_OK, b"")
    with pytest.raises(m.ProtocolError):
        m.Authentication(m.AUTH_OK, b"").mechanisms()
    assert m.parse_parameter_status(decode(m.parameter_status("TimeZone", "UTC"))) == ("TimeZone", "UTC")
    assert m.parse_backend_key_data(decode(m.backend_key_data(5, b"k" * 32))) == m.BackendKeyData(5, b"k" * 32)
    assert [m.parse_ready_for_query(decode(m.ready_for_query(status))) for status in (b"I", b"T", b"E")] == [b"I", b"T", b"E"]
    assert m.parse_command_complete(decode(m.command_complete("INSERT 0 3"))) == "INSERT 0 3"
    for status in (b"X", b"", b"II"):
        with pytest.raises(m.ProtocolError, match="status"):
            m.parse_ready_for_query(m.Message(b"Z", status))


def test_a_parser_refuses_another_message() -> None:
    other = m.Message(b"?", b"\0\0\0\0\0\0\0\0")
    for parse in PARSERS.values():
        with pytest.raises(m.ProtocolError):
            parse(other)


def test_error_fields_round_trip() -> None:
    every = m.ErrorFields(**{entry.name: f"<{entry.name}>" for entry in fields(m.ErrorFields)})
    assert m.parse_error(decode(m.error_response(every))) == every
    assert m.parse_error(decode(m.notice_response(m.ErrorFields("WARNING", "01000", "careful")))) == m.ErrorFields(
        "WARNING", "01000", "careful"
    )


def test_an_error_by_the_byte() -> None:
    raw = m.error_response(m.ErrorFields("FATAL", "28P01", "no", hint="ask"))
    assert raw == m.Message(b"E", b"SFATAL\0VFATAL\0C28P01\0Mno\0Hask\0\0").encode()


def test_an_error_of_an_old_server_and_one_of_a_later() -> None:
    found = m.parse_error(m.Message(b"E", b"SFEHLER\0C42P01\0Mfehlt\0\xfenew\0\0"))
    assert found == m.ErrorFields("FEHLER", "42P01", "fehlt")


@given(st.text(max_size=20))
def test_reporting_an_error_never_fails_over_its_text(message: str) -> None:
    found = m.parse_error(decode(m.error_response(m.ErrorFields(message=message))))
    assert found.severity == "ERROR"
    if "\0" not in message and message.isprintable():
        assert found.message == message


def test_our_errors_in_postgres_words() -> None:
    found = m.ErrorFields.of(ModakError("it broke", hint="mend it", table="public.events"), severity="FATAL")
    assert found == m.ErrorFields("FATAL", "XX000", "it broke", "table=public.events", "mend it")
    refused = m.ErrorFields.of(Refused("no", [Problem("a", "first", "do this"), Problem("b", "second")]))
    assert (refused.sqlstate, refused.detail) == ("0A000", "first; do this\nsecond")
