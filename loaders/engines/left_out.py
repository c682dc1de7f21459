"""Saying in a tool's own data that some hosts are not in it, where the UI shows such things."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_DIAGNOSTIC_COLUMNS = ["severity", "message"]


def mention_left_out(tool: str, data: bytes, left_out: Mapping[str, str]) -> bytes:
    """Adds a warning per host that was left out to the diagnostics that the overview, the input pipeline analysis and
    the pod viewer show. Other tools have no place for one; for them, and these, the response's header says it."""
    if not left_out or tool not in ("overview_page", "input_pipeline_analyzer", "pod_viewer"):
        return data
    content: Any = json.loads(data)
    warnings = [f"Host {host} is left out of this page: {reason}" for host, reason in left_out.items()]
    if isinstance(content, dict) and isinstance(content.get("diagnostics"), dict):
        content["diagnostics"].setdefault("warnings", []).extend(warnings)
    elif isinstance(content, list):
        for table in content:
            columns = [column.get("id") for column in table.get("cols", [])] if isinstance(table, dict) else []
            if columns == _DIAGNOSTIC_COLUMNS:
                table.setdefault("rows", []).extend({"c": [{"v": "WARNING"}, {"v": text}]} for text in warnings)
    return json.dumps(content, separators=(",", ":")).encode()
