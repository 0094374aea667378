"""Whether a hostile JSON value fits a user's JSON schema, in bounded time and without a look at the network.

jsonschema searches with Python's `re`, compares each item with each, and follows a schema as deep as a value goes. So
its rules for patterns and for unique items are replaced, and all of them look at the time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from workers.rewards.patterns import TIME_S, TooLong, compiled, is_found

Rule = Callable[[Any, Any, Any, Any], Any]
"""Of jsonschema: (validator, value of the keyword, instance, schema) -> errors, or None."""


def checked(schema: Any) -> dict[str, Any]:
    """The schema. Raises ValueError, which says why, for what is none, and for what cannot be checked in safety."""
    if not isinstance(schema, dict):
        raise ValueError(f"a schema is an object, not {type(schema).__name__}")
    _check_of(_text(schema))
    return schema


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits a schema; no, if that takes more than a second of CPU time. Not for several threads.

    Raises ValueError as `checked` does, and for a reference to what is not there.
    """
    try:
        return _check_of(_text(schema)).fits(value)
    except (TooLong, RecursionError, ArithmeticError):
        return False
    except Unresolvable as error:
        raise ValueError(f"the JSON schema refers to what is not in it: {error}") from error


def _text(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except TypeError as error:
        raise ValueError(f"a schema holds JSON alone: {error}") from error


@lru_cache(maxsize=1024)
def _check_of(text: str) -> _Check:
    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"this is no JSON schema: {error.message}"[:300]) from error
    schema.pop("$schema", None)  # jsonschema would take its own rules again where a reference leads back here
    for keyword, value in _keywords(schema):
        _refuse(keyword, value, text)
    return _Check(schema, kind)


def _refuse(keyword: str, value: Any, text: str) -> None:
    """Raises ValueError for a keyword that cannot be checked in safety. Names of properties may be mistaken for one."""
    if keyword == "$schema" and isinstance(value, str):
        raise ValueError("$schema stands only at the top")
    if keyword in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(value, str) and not value.startswith("#"):
        raise ValueError(f"{keyword} {value!r} leads out of the schema, and nothing is fetched")
    if keyword == "pattern" and isinstance(value, str):
        compiled(value)
    if keyword == "patternProperties" and isinstance(value, dict):
        for pattern in value:
            compiled(pattern)
    if keyword == "unevaluatedProperties" and '"patternProperties"' in text:
        raise ValueError("unevaluatedProperties beside patternProperties cannot be checked in bounded time")


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, dict):
        yield from schema.items()
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _keywords(one)


class _Check:
    """One schema with our rules. A call sets the time at which it gives up."""

    def __init__(self, schema: dict[str, Any], kind: Any) -> None:
        own = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique,
        }
        rules: Mapping[str, Rule] = {name: own.get(name, rule) for name, rule in kind.VALIDATORS.items()}
        timed = extend(kind, {name: self._timed(rule) for name, rule in rules.items()})
        self._validator: Any = timed(schema, registry=Registry())
        self._end = 0.0

    def fits(self, value: Any) -> bool:
        self._end = time.process_time() + TIME_S
        return bool(self._validator.is_valid(value))

    def _left(self) -> float:
        left = self._end - time.process_time()
        if left <= 0:
            raise TooLong(f"the check took more than {TIME_S} s")
        return left

    def _timed(self, rule: Rule) -> Rule:
        def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            self._left()
            return rule(validator, value, instance, schema)

        return timed

    def _has(self, text: str, pattern: str) -> bool:
        return is_found(pattern, text, time_s=self._left())

    def _pattern(self, _: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(instance, str) and not self._has(instance, pattern):
            yield ValidationError("the pattern does not match")

    def _pattern_properties(
        self, validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
    ) -> Iterator[ValidationError]:
        if isinstance(instance, dict):
            for pattern, inner in patterns.items():
                for name, value in instance.items():
                    if self._has(name, pattern):
                        yield from validator.descend(value, inner, path=name, schema_path=pattern)

    def _additional_properties(
        self, validator: Any, allowed: Any, instance: Any, schema: Any
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        patterns = schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in schema.get("properties", {}) or any(self._has(name, pattern) for pattern in patterns):
                continue
            if isinstance(allowed, dict):
                yield from validator.descend(value, allowed, path=name)
            elif not allowed:
                yield ValidationError("a property too many")

    @staticmethod
    def _unique(validator: Any, is_unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        """By one text for each item. Whole numbers are written the same (`workers/rewards/json.py`)."""
        if is_unique and isinstance(instance, list):
            texts = {json.dumps(item, sort_keys=True) for item in instance}
            if len(texts) < len(instance):
                yield ValidationError("an item twice")
