"""Numbers that DuckDB rounds or prints by other rules than Postgres, done here: quotients of numerics and the digits of floats."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction

import duckdb
from duckdb import DuckDBPyConnection

_DIGIT = 10_000  # Postgres keeps numerics in base 10,000, and a quotient's scale follows from those digits
_DIGIT_PLACES = 4
_QUOTIENT_DIGITS_MIN = 16
_SCALE_MAX = 1000


def register_functions(connection: DuckDBPyConnection) -> None:
    """Makes the functions that translated SQL calls known to a DuckDB connection; once is enough, twice does no harm."""
    known = {
        row[0] for row in connection.execute("SELECT function_name FROM duckdb_functions() WHERE function_name LIKE 'modak_%'").fetchall()
    }
    varchar, double, single = (duckdb.type(name) for name in ("VARCHAR", "DOUBLE", "FLOAT"))
    functions = (
        ("modak_numeric_div", numeric_div, [varchar, varchar]),
        ("modak_numeric_round", numeric_round, [varchar, duckdb.type("INTEGER")]),
        ("modak_numeric_key", numeric_key, [varchar]),
        ("modak_float8_text", float8_text, [double]),
        ("modak_float4_text", float4_text, [single]),
    )
    for name, function, arguments in functions:
        if name not in known:
            connection.create_function(name, function, arguments, varchar)  # type: ignore[arg-type]


def _parts(text: str) -> tuple[int, int]:
    """A plain decimal as an integer and its scale."""
    whole, _, fraction = text.partition(".")
    return int(whole + fraction), len(fraction)


def _leading(value: int, scale: int) -> tuple[int, int]:
    """Weight and value of the first base-10,000 digit that is not zero."""
    if value == 0:
        return 0, 0
    padding = -scale % _DIGIT_PLACES
    value, groups = abs(value) * 10**padding, (scale + padding) // _DIGIT_PLACES
    count = (len(str(value)) + _DIGIT_PLACES - 1) // _DIGIT_PLACES
    return count - 1 - groups, value // _DIGIT ** (count - 1)


def _shown(value: int, scale: int) -> str:
    digits = str(abs(value)).rjust(scale + 1, "0")
    return ("-" if value < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def _divided(numerator: int, denominator: int) -> int:
    """Rounded half away from zero."""
    quotient = (2 * abs(numerator) + abs(denominator)) // (2 * abs(denominator))
    return quotient if (numerator < 0) == (denominator < 0) else -quotient


def numeric_div(dividend: str, divisor: str) -> str:
    """Postgres's numeric quotient: at least 16 significant digits, never fewer decimals than the operands have."""
    (left, left_scale), (right, right_scale) = _parts(dividend), _parts(divisor)
    if right == 0:
        raise ValueError("22012: division by zero")
    (left_weight, left_first), (right_weight, right_first) = _leading(left, left_scale), _leading(right, right_scale)
    weight = left_weight - right_weight - (left_first <= right_first)
    scale = min(max(_QUOTIENT_DIGITS_MIN - weight * _DIGIT_PLACES, left_scale, right_scale, 0), _SCALE_MAX)
    shift = scale + right_scale - left_scale
    return _shown(_divided(left * 10 ** max(shift, 0), right * 10 ** max(-shift, 0)), scale)


def numeric_round(number: str, decimals: int) -> str:
    """round(numeric, n): half away from zero; a negative n rounds before the point."""
    value, scale = _parts(number)
    decimals = max(min(decimals, 2000), -2000)
    if decimals >= scale:
        return _shown(value * 10 ** (decimals - scale), decimals)
    rounded = _divided(value, 10 ** (scale - decimals))
    return _shown(rounded, decimals) if decimals >= 0 else str(rounded * 10**-decimals)


def numeric_key(number: str) -> str:
    """A text that sorts by bytes as the number sorts by value, and is equal for equal numbers."""
    value = Decimal(number).normalize()
    if value == 0:
        return "1"
    sign, digits, _ = value.as_tuple()
    shown = f"{value.adjusted() + 5000:05d}" + "".join(map(str, digits))
    return "2" + shown if not sign else "0" + "".join(chr(ord("9") - int(digit) + ord("0")) for digit in shown) + "~"


def _gap(value: float, single: bool) -> tuple[Fraction, Fraction]:
    """Half the way to the floats below and above, exactly."""
    bits = 24 if single else 53
    least = -149 if single else -1074
    mantissa, exponent = math.frexp(abs(value))
    unit = max(exponent - bits, least)
    above = Fraction(2) ** unit / 2
    return (above / 2 if mantissa == 0.5 and unit > least else above), above


def _shortest(value: float, single: bool) -> str:
    """The fewest digits that lie strictly between the neighbours' midpoints; Postgres does not count the midpoints themselves."""
    exact = Fraction(abs(value))
    below, above = _gap(value, single)
    for places in range(9 if single else 17):
        nearest = Decimal(f"{abs(value):.{places}e}")
        step = Decimal(1).scaleb(nearest.adjusted() - places)
        for candidate in (nearest, nearest + step):
            if exact - below < Fraction(candidate) < exact + above:
                return format(candidate, "e").lower()
    return repr(abs(value))


def _quick_double(value: float) -> str | None:
    """Python's digits, where no midpoint of two float8 can have so few: below 2^53 and above 10^40."""
    return repr(value) if not 2**53 < value < 1e41 else None


def _quick_single(value: float) -> str | None:
    """The first of 6 to 9 digits that reads back; a float8 holds every midpoint of two float4, so meeting one is seen exactly."""
    if value < 1.2e-38:
        return None  # too small for all its digits
    below, above = _gap_single(value)
    for places in range(5, 9):
        shown = f"{value:.{places}e}"
        read = float(shown)
        if below < read < above:
            return shown
        if read in (below, above):
            return None
    return None


def _gap_single(value: float) -> tuple[float, float]:
    mantissa, exponent = math.frexp(value)
    unit = max(exponent - 24, -149)
    half = math.ldexp(0.5, unit)
    return value - (half / 2 if mantissa == 0.5 and unit > -149 else half), value + half


def _digits(shown: str) -> tuple[str, int]:
    """Significant digits without trailing zeros, and the power of ten of the first."""
    mantissa, _, exponent = shown.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = len(whole) - 1 if whole.strip("0") else -(len(fraction) - len(fraction.lstrip("0"))) - 1
    return digits.rstrip("0"), power + int(exponent or 0)


def _float_text(value: float, single: bool) -> str:
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0"
    digits, exponent = _digits((_quick_single if single else _quick_double)(abs(value)) or _shortest(value, single))
    if -4 <= exponent < (6 if single else 15):
        return sign + _plain(digits, exponent)
    point = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{point}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _plain(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return whole + (f".{fraction}" if fraction else "")


def float8_text(value: float) -> str:
    """A float8 as Postgres prints it."""
    return _float_text(value, single=False)


def float4_text(value: float) -> str:
    """A float4 as Postgres prints it."""
    return _float_text(struct.unpack("f", struct.pack("f", value))[0], single=True)
