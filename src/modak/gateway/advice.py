"""What to do instead: hints for errors that Postgres raises on a view, in its own words and before anything of ours could run."""

from __future__ import annotations

from modak.gateway.analytics.relations import Relations
from modak.gateway.wire.messages import ErrorFields, Message, parse_error


class Advice:
    """Errors are known by where in Postgres they come from, which no language changes; keywords stay as they are in every one."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations

    def given(self, message: Message) -> Message:
        """The error with a hint, where there is one to give and none was given; every other field stays as Postgres sent it."""
        fields = parse_error(message)
        hint = self._hint(fields) if fields.hint is None else None
        # A body ends with an empty field.
        return message if hint is None else Message(message.tag, message.body[:-1] + b"H" + hint.encode() + b"\0\0")

    def _hint(self, fields: ErrorFields) -> str | None:
        if (fields.sqlstate, fields.routine) == ("42809", "truncate_check_rel"):
            heap = self._heap(fields.message)
            return heap and (
                f"The name stands for both tiers: DELETE removes rows of both, and TRUNCATE empties hot partitions of {heap}. To empty the "
                "table for good, modak unregister --drop-lake, TRUNCATE, and register it again."
            )
        if fields.sqlstate == "0A000" and fields.routine == "RewriteQuery" and "ON CONFLICT" in fields.message:
            return self._on_the_heap(None) if any(not relation.is_mirror for relation in self._relations.all()) else None
        if fields.sqlstate == "0A000" and fields.routine == "transformMergeStmt" and "MERGE" in fields.message:
            heap = self._heap(fields.message)
            return heap and self._on_the_heap(heap)
        return None

    def _on_the_heap(self, heap: str | None) -> str:
        where = heap or "the heap, <table>_hot"
        return (
            f"The name is a view over both tiers. Use modak_upsert, or the same statement on {where}, where it sees what stands in the "
            "heap; a table that is registered with --surface heap takes it by its name."
        )

    def _heap(self, message: str) -> str | None:
        """The heap of the view that a message names, by its name alone."""
        found = [relation for relation in self._relations.all() if not relation.is_mirror and f'"{relation.view.name}"' in message]
        return str(found[0].heap) if found else None
