"""Pictures as SVG, drawn on the server. Pure: figures in, markup out; colours are classes, so that the style sheet decides them.

Each picture has a title and a description for whoever does not see it. Nothing here holds a ``style`` attribute: the pages forbid them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from markupsafe import Markup, escape

from modak.core.partition import Partition, PartitionState
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.web.console import words

_WIDTH = 640
_MAP_WIDTH = 1120
_BLOCKS_MAX = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 26
Point = tuple[float, float]
# What a state means to whoever looks at the map.
_STATES = {PartitionState.DROPPED: "cold", PartitionState.TIERED: "cold, and in the heap still"}


@dataclass(frozen=True)
class Line:
    """One series; ``look`` names its class, ``chart-<look>``."""

    name: str
    points: Sequence[Point]
    look: str = "one"


def line_chart(title: str, lines: Sequence[Line], *, kind: str = "count", height: int = 190, empty: str = "No figures yet.") -> Markup:
    """Values over time. The lowest is 0 always, so that a picture does not make mountains of nothing. ``kind``: count, bytes or span."""
    known = [line for line in lines if line.points]
    if not known:
        return _nothing(title, empty)
    divisor, text = words.scale(max(value for line in known for _, value in line.points), kind)
    known = [replace(line, points=[(at, value / divisor) for at, value in line.points]) for line in known]
    first, last = min(line.points[0][0] for line in known), max(line.points[-1][0] for line in known)
    ticks = nice_ticks(max(value for line in known for _, value in line.points))
    frame = _Frame(first, max(last, first + 1), ticks[-1], height)
    parts = [frame.grid(ticks, text), frame.times()]
    parts += [frame.path(line, is_filled=len(known) == 1) for line in known]
    parts += [frame.dot(line) for line in known]
    described = "; ".join(f"{line.name} now {text(line.points[-1][1])}" for line in known)
    return Markup("{}{}").format(_svg(title, described, height, parts), _legend(known, text) if len(known) > 1 else Markup(""))


def bar_chart(
    title: str,
    bars: Sequence[tuple[float, Sequence[tuple[str, float]]]],
    *,
    looks: Sequence[str],
    first: float,
    last: float,
    step: float,
    text: Callable[[float], str] = words.short,
    height: int = 190,
    empty: str = "Nothing happened in this time.",
) -> Markup:
    """Sums per step of time, stacked by name. ``looks`` are all names, in the order of the stack."""
    shown = [(at, [(name, value) for name, value in parts if value > 0]) for at, parts in bars]
    if not any(parts for _, parts in shown):
        return _nothing(title, empty)
    ticks = nice_ticks(max(sum(value for _, value in parts) for _, parts in shown))
    frame = _Frame(first, last, ticks[-1], height)
    marks = []
    for at, parts in shown:
        base = 0.0
        for name, value in sorted(parts, key=lambda one: looks.index(one[0])):
            marks.append(frame.bar(at, step, base, value, f"{name}: {text(value)}", f"stack-{looks.index(name) % 6}"))
            base += value
    totals = {name: sum(value for _, parts in shown for found, value in parts if found == name) for name in looks}
    described = "; ".join(f"{name} {text(total)}" for name, total in totals.items() if total)
    legend = [(name, f"stack-{looks.index(name) % 6}", text(total)) for name, total in totals.items() if total]
    return Markup("{}{}").format(
        _svg(title, described, height, [frame.grid(ticks, text), frame.times(), *marks]),
        _legend_of(legend) if len(legend) > 1 else Markup(""),
    )


def spark(title: str, points: Sequence[Point], *, width: int = 120, height: int = 28) -> Markup:
    """A small line without axes, for a row of a table."""
    if len(points) < 2 or len({value for _, value in points}) == 1:
        return Markup("")
    first, last = points[0][0], points[-1][0]
    top = max(value for _, value in points) or 1.0
    place = [
        (2 + (at - first) / max(last - first, 1e-9) * (width - 4), height - 2 - value / top * (height - 4))
        for at, value in _thinned(points)
    ]
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in place)
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}"><path class="chart-line" d="{}"/></svg>'
    ).format(width, height, width, height, title, path)


def partition_map(
    title: str, partitions: Sequence[Partition], key_type: TierKeyType, *, line: int, retention: int | None = None, height: int = 118
) -> Markup:
    """Partitions across the tier key, oldest left, with T where it stands; R too where rows have expired."""
    shown = [one for one in partitions if one.lower < one.upper]
    counts = {state: sum(one.state == state for one in shown) for state in dict.fromkeys(one.state for one in shown)}
    described = f"{len(shown)} partitions, " + ", ".join(f"{count} {state}" for state, count in counts.items())
    described += f"; cut-line T at {words.key(line, key_type)}"
    shown = _joined(shown) if len(shown) > _BLOCKS_MAX else shown
    low, high = _extent(shown)
    if low is None or high is None:
        return _nothing(title, "There is no partition yet.")
    scale = _Scale(low, high)
    band = _TOP + 30
    tall = height - band - _BOTTOM
    parts = [Markup('<rect class="map-ground" x="{}" y="{}" width="{}" height="{}" rx="4"/>').format(scale.left, band, scale.wide, tall)]
    for one in shown:
        start, end = scale.x(one.lower), scale.x(one.upper)
        told = f"{one.name}: {one.state}, {words.key(one.lower, key_type)} to {words.key(one.upper, key_type)}"
        told += f", {one.rows:,} rows" if one.rows is not None else ""
        parts.append(
            Markup('<rect class="map-part state-{}" x="{:.2f}" y="{}" width="{:.2f}" height="{}" rx="2"><title>{}</title></rect>').format(
                one.state, start + 0.5, band + 3, max(end - start - 1, 1), tall - 6, told
            )
        )
    if retention is not None and low < retention < high:
        parts.append(_mark(scale.x(retention), "R", "mark-retention", band, tall, f"retention line {words.key(retention, key_type)}"))
    if line > KEY_MIN and line > key_type.minimum:
        where = min(max(line, low), high)
        parts.append(_mark(scale.x(where), "T " + words.key(line, key_type), "mark-line", band, tall, "the cut-line"))
    parts += _key_axis(scale, key_type, height)
    legend = [(_STATES.get(state, str(state)), f"state-{state}", f"{count:,}") for state, count in counts.items()]
    picture = _svg(title, described, height, parts, _MAP_WIDTH)
    return Markup('<div class="map-scroll scroll">{}</div>{}').format(picture, _legend_of(legend))


def split_bar(title: str, parts: Sequence[tuple[str, float]]) -> Markup:
    """Shares of a whole as one bar: hot and cold bytes."""
    whole = sum(value for _, value in parts)
    if whole <= 0:
        return Markup("")
    place, marks = 0.0, []
    for name, value in parts:
        wide = value / whole * 200
        marks.append(Markup('<rect class="share-{}" x="{:.2f}" y="0" width="{:.2f}" height="8"/>').format(name, place, max(wide, 0.01)))
        place += wide
    return Markup('<svg class="share" viewBox="0 0 200 8" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>').format(
        title, Markup("").join(marks)
    )


def nice_ticks(top: float, count: int = 4) -> list[float]:
    """From 0 to at least ``top``, in steps that people count in."""
    if top <= 0 or not math.isfinite(top):
        return [0.0, 1.0]
    rough = top / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


class _Frame:
    """The axes of a picture: time to the right, values up."""

    def __init__(self, first: float, last: float, top: float, height: int) -> None:
        self.first, self.last, self.top, self.height = first, last, top, height
        self.base = height - _BOTTOM

    def x(self, at: float) -> float:
        return _LEFT + (at - self.first) / (self.last - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.base - value / self.top * (self.base - _TOP)

    def grid(self, ticks: Sequence[float], text: Callable[[float], str]) -> Markup:
        marks = [
            Markup(
                '<line class="chart-grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="chart-text" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(
                _LEFT, _WIDTH - _RIGHT, self.y(tick), self.y(tick), _LEFT - 8, self.y(tick) + 3.5, text(tick)
            )
            for tick in ticks
        ]  # fmt: skip
        return Markup("").join(marks)

    def times(self) -> Markup:
        length = self.last - self.first
        form = "%H:%M:%S" if length < 600 else "%H:%M" if length < 2 * 86_400 else "%d.%m."
        marks = []
        for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
            at = self.first + part * length
            shown = datetime.fromtimestamp(at, UTC).strftime(form)
            marks.append(
                Markup('<text class="chart-text" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                    self.x(at), self.height - 8, anchor, shown
                )
            )
        return Markup("").join(marks)

    def path(self, line: Line, *, is_filled: bool) -> Markup:
        place = [(self.x(at), self.y(value)) for at, value in _thinned(line.points)]
        path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in place)
        drawn = Markup('<path class="chart-line chart-{}" d="{}"/>').format(line.look, path)
        if not is_filled:
            return drawn
        area = f"{path} L{place[-1][0]:.1f},{self.base} L{place[0][0]:.1f},{self.base} Z"
        return Markup('<path class="chart-area chart-{}" d="{}"/>').format(line.look, area) + drawn

    def dot(self, line: Line) -> Markup:
        at, value = line.points[-1]
        return Markup('<circle class="chart-dot chart-{}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(line.look, self.x(at), self.y(value))

    def bar(self, at: float, step: float, base: float, value: float, told: str, look: str) -> Markup:
        left, right = max(self.x(at), _LEFT), min(self.x(at + step), _WIDTH - _RIGHT)
        top = self.y(base + value)
        return Markup('<rect class="chart-bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>').format(
            look, left + 0.5, top, max(right - left - 1, 1.5), max(self.y(base) - top, 1), told
        )


class _Scale:
    """Keys to places, for the map. Keys are large: the differences are taken before they become floats."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.left, self.wide = 1.0, _MAP_WIDTH - 2.0

    def x(self, key: int) -> float:
        return self.left + (min(max(key, self.low), self.high) - self.low) / (self.high - self.low) * self.wide


def _joined(partitions: Sequence[Partition]) -> list[Partition]:
    """Neighbours of one state as one block: more than a few hundred are no picture any more."""
    made: list[Partition] = []
    for one in sorted(partitions, key=lambda part: (part.lower, part.upper)):
        if made and made[-1].state == one.state and made[-1].upper >= one.lower:
            last = made.pop()
            first = last.name.partition(" … ")[0]
            made.append(replace(last, name=f"{first} … {one.name}", upper=max(last.upper, one.upper), rows=None))
        else:
            made.append(one)
    return made


def _extent(partitions: Sequence[Partition]) -> tuple[int | None, int | None]:
    """Finite ends; a partition that is open at one of them gets as much room as a tenth of the rest."""
    keys = [key for one in partitions for key in (one.lower, one.upper) if KEY_MIN < key < KEY_MAX]
    if not keys:
        return None, None
    low, high = min(keys), max(keys)
    room = max((high - low) // 10, 1)
    if any(one.lower == KEY_MIN for one in partitions):
        low -= room
    if any(one.upper == KEY_MAX for one in partitions):
        high += room
    return low, max(high, low + 1)


def _mark(x: float, label: str, look: str, band: float, tall: float, told: str) -> Markup:
    anchor = "start" if x < 90 else "end" if x > _MAP_WIDTH - 90 else "middle"
    return Markup(
        '<g class="{}"><title>{}</title><line x1="{:.2f}" x2="{:.2f}" y1="{}" y2="{}"/>'
        '<text x="{:.2f}" y="{}" text-anchor="{}">{}</text></g>'
    ).format(look, told, x, x, band - 8, band + tall + 4, x, band - 13, anchor, label)


def _key_axis(scale: _Scale, key_type: TierKeyType, height: int) -> list[Markup]:
    marks = []
    for part, anchor in ((0, "start"), (1, "middle"), (2, "end")):
        key = scale.low + (scale.high - scale.low) * part // 2
        marks.append(
            Markup('<text class="chart-text" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                scale.x(key),
                height - 8,
                anchor,
                words.key(key, key_type).partition(",")[0] if key_type.is_time else words.key(key, key_type),
            )
        )
    return marks


def _thinned(points: Sequence[Point], most: int = 300) -> Sequence[Point]:
    """Not more points than there are places; the highest of each group stays, so that no peak is lost."""
    if len(points) <= most:
        return points
    group = math.ceil(len(points) / most)
    kept = [max(points[start : start + group], key=lambda one: one[1]) for start in range(0, len(points), group)]
    return [points[0], *kept[1:-1], points[-1]]


def _svg(title: str, described: str, height: int, parts: Sequence[Markup], width: int = _WIDTH) -> Markup:
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}"><desc>{}</desc>{}</svg>').format(
        width, height, f"{title}: {described}", described, Markup("").join(parts)
    )


def _legend(lines: Sequence[Line], text: Callable[[float], str]) -> Markup:
    return _legend_of([(line.name, f"chart-{line.look}", text(line.points[-1][1])) for line in lines])


def _legend_of(entries: Sequence[tuple[str, str, str]]) -> Markup:
    items = [
        Markup('<li><span class="swatch {}"></span>{} <span class="quiet">{}</span></li>').format(look, name, value)
        for name, look, value in entries
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _nothing(title: str, empty: str) -> Markup:
    return Markup('<p class="chart-empty" role="img" aria-label="{}: {}">{}</p>').format(title, empty, escape(empty))
