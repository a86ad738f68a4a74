"""A data file's statistics for Iceberg, from its Parquet footer.

PyIceberg reads dates and timestamps as Python's, which end at the years 1 and 9999; their bounds are taken from the raw integers instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, TimestampType, TimestamptzType

_TIMES = (DateType, TimestampType, TimestamptzType)


def file_statistics(footer: pq.FileMetaData, schema: Schema, properties: Mapping[str, str]) -> dict[str, Any]:
    """Counts, sizes and bounds as DataFile takes them."""
    ids = parquet_path_to_id_mapping(schema)
    plan = compute_statistics_plan(schema, dict(properties))
    times = {field_id: collector for field_id, collector in plan.items() if isinstance(collector.iceberg_type, _TIMES)}
    counted = {field_id: replace(collector, mode=MetricsMode(MetricModeTypes.COUNTS)) for field_id, collector in times.items()}
    found = data_file_statistics_from_parquet_metadata(footer, plan | counted, ids).to_serialized_dict()
    for field_id, (low, high) in _raw_bounds(footer, ids, set(times)).items():
        found["lower_bounds"][field_id] = to_bytes(times[field_id].iceberg_type, low)
        found["upper_bounds"][field_id] = to_bytes(times[field_id].iceberg_type, high)
    return found


def _raw_bounds(footer: pq.FileMetaData, ids: Mapping[str, int], wanted: set[int]) -> dict[int, tuple[int, int]]:
    bounds: dict[int, tuple[int, int]] = {}
    for group in range(footer.num_row_groups):
        for position in range(footer.num_columns):
            column = footer.row_group(group).column(position)
            field_id = ids.get(column.path_in_schema)
            statistics = column.statistics
            if field_id not in wanted or statistics is None or not statistics.has_min_max:
                continue
            low, high = bounds.get(field_id, (statistics.min_raw, statistics.max_raw))
            bounds[field_id] = (min(low, statistics.min_raw), max(high, statistics.max_raw))
    return bounds
