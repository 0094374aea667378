"""Records as a pandas data frame. pandas is imported here alone, and only when a frame is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from profiles.errors import ExitCode, LonghaulError

if TYPE_CHECKING:
    import pandas


def frame(records: Iterable[Any]) -> pandas.DataFrame:
    """A data frame with a row for each record of this package, and a column for each field.

    A mapping becomes columns: `reward/correct` of a step's metrics, `mean/accuracy` of a validation's tasks,
    `reward/low` of a point. Needs the extra `pandas`. Raises LonghaulError (INPUT) without it, and TypeError for what
    is no record.
    """
    try:
        import pandas
    except ImportError as error:
        raise LonghaulError(
            "frame() needs the package pandas, which is not installed",
            kept="everything; records work without it",
            next_command="pip install 'longhaul[pandas]'",
            exit_code=ExitCode.INPUT,
        ) from error
    return pandas.DataFrame([row_of(record) for record in records])


def row_of(record: Any) -> dict[str, Any]:
    """Column -> value. Fields come first and win over metrics of the same name. (pure)"""
    plain: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Mapping):
            inner |= _flat(value)
        else:
            plain[field.name] = value
    return plain | {name: value for name, value in inner.items() if name not in plain}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{above}{name}/") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return found
