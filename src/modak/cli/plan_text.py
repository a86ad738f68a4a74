"""The plan of a registration as a person reads it."""

from __future__ import annotations

from typing import Any

from modak.cli.output import Output, size


def show(output: Output, plan: dict[str, Any]) -> None:
    facts = [
        ("heap will be", plan["heap"]),
        ("two-tier view will be", plan["view"]),
        ("lake table will be", plan["lake_table"]),
        ("primary key", ", ".join(plan["primary_key"])),
        ("tier key", f"{plan['tier_key']} ({plan['tier_key_type']})"),
        ("lake layout", plan["layout"]),
        ("INSERT of a key that is cold", "is refused" if plan["check_cold_keys"] else "replaces the row"),
        ("rows (estimated)", plan["rows_estimated"]),
        ("size now", size(plan["bytes"])),
        ("newest key", plan["newest_key"]),
        ("would leave the heap now", f"{size(plan['due_bytes'])} in {len(plan['due_partitions'])} partitions"),
        ("surface that fits", plan["surface_advice"]),
    ]
    output.table(["plan", "value"], facts, title=plan["table"])
    text_columns = [column["name"] for column in plan["columns"] if column["as_text"]]
    if text_columns:
        output.note(f"kept as text in the lake, exactly: {', '.join(text_columns)}")
    rows = [
        (
            part["name"],
            part["from"],
            part["to"],
            part["rows_estimated"],
            size(part["bytes"]),
            "due" if part["name"] in plan["due_partitions"] else "",
        )
        for part in plan["partitions"]
    ]
    if rows:
        output.table(["partition", "from", "to", "rows", "size", ""], rows)
    for statement in plan["heap_statements"] or ():
        output.note(f"{statement['kind']} ({statement['calls']} calls): {statement['text']}")
    for note in plan["notes"]:
        output.note(f"note: {note}")
    for problem in plan["problems"]:
        output.note(f"blocker: {problem['message']}" + (f"; {problem['hint']}" if problem["hint"] else ""))
    if not output.json:
        output.result(
            None, "this table can be registered" if plan["would_register"] else f"blockers: {len(plan['problems'])}; nothing was changed"
        )
