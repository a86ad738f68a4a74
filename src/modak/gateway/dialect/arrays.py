"""One-dimensional array literals, as postgres_fdw and drivers print them."""

from __future__ import annotations

from modak.gateway.dialect.errors import Untranslatable


def array_elements(text: str) -> list[str | None]:
    """The elements of ``{a,"b c",NULL}``. Bounds, nesting and stray blanks are refused."""
    if len(text) < 2 or text[0] != "{" or text[-1] != "}":
        raise Untranslatable(f"array literal {text[:40]!r}")
    body, elements, place = text[1:-1], list[str | None](), 0
    while body and place <= len(body):
        element, place = _quoted_element(body, place) if body[place : place + 1] == '"' else _bare_element(body, place)
        elements.append(element)
        if place < len(body) and body[place] != ",":
            raise Untranslatable(f"array literal {text[:40]!r}")
        place += 1
    return elements


def _bare_element(body: str, place: int) -> tuple[str | None, int]:
    end = body.find(",", place)
    element = body[place : end if end >= 0 else len(body)]
    if not element or element != element.strip() or any(char in '"{}\\' for char in element):
        raise Untranslatable(f"array element {element[:40]!r}")
    return (None if element.upper() == "NULL" else element), place + len(element)


def _quoted_element(body: str, place: int) -> tuple[str, int]:
    chars: list[str] = []
    place += 1
    while place < len(body):
        char = body[place]
        if char == '"':
            return "".join(chars), place + 1
        if char == "\\":
            place += 1
            char = body[place : place + 1]
        chars.append(char)
        place += 1
    raise Untranslatable("an array literal without its closing quote")
