"""Plain lines: one a fact, never silent while a step is slow, never in the way of the run."""

from __future__ import annotations

import io
import os
from dataclasses import replace

import pytest

from orchestrator.display.plain import Plain
from orchestrator.display.view import EventLine
from tests.builders import NOW, a_history, a_view, validation_facts


def lines_of(*views, stream: io.StringIO | None = None) -> list[str]:
    stream = stream or io.StringIO()
    plain = Plain(stream)
    for view in views:
        plain.update(view)
    return stream.getvalue().splitlines()


def stepped(step: int, now: float):
    return replace(a_view(now=now), step=step, step_in_cycle=step - 40)


def test_the_first_view_tells_where_the_run_is() -> None:
    lines = lines_of(a_view())
    assert lines[0].startswith(
        "validation at step 40: deduction greedy 0.293 [0.24, 0.35] (+6 since the start), sampled"
    )
    assert lines[4] == "cycle 3: self-play, 20 steps from step 41"
    assert lines[-1].startswith("step 54 · 14 of 20 in cycle 3 · reward ")


def test_a_step_is_a_line_at_most_every_five_seconds() -> None:
    views = [stepped(41 + n, 100.0 + n) for n in range(12)]
    assert [line.split(" · ")[0] for line in lines_of(*views) if line.startswith("step")] == [
        "step 41", "step 46", "step 51",
    ]  # fmt: skip


def test_the_last_step_of_a_cycle_is_always_told() -> None:
    lines = lines_of(stepped(58, 100.0), stepped(59, 101.0), stepped(60, 101.5))
    assert [line.split(" · ")[0] for line in lines if line.startswith("step")] == ["step 58", "step 60"]


def test_a_slow_step_keeps_talking_every_thirty_seconds() -> None:
    views = [a_view(now=100.0 + seconds, step_started=100.0) for seconds in range(95)]
    slow = [line for line in lines_of(*views) if line.startswith("still")]
    assert slow == [
        "still in self-play, cycle 3, step 55: update for 30 s (step: 30 s, usually 1.0 s), worker 4711",
        "still in self-play, cycle 3, step 55: update for 1 m 00 s (step: 1 m 00 s, usually 1.0 s), worker 4711",
        "still in self-play, cycle 3, step 55: update for 1 m 30 s (step: 1 m 30 s, usually 1.0 s), worker 4711",
    ]


def test_waiting_says_for_how_long_and_why() -> None:
    lines = lines_of(a_view(), replace(a_view(now=101.0), phase="waiting", waiting_left_s=8.0, last_failure="host_oom"))
    assert lines[-1] == "waiting 8.0 s: host_oom"


def test_a_validation_is_told_once() -> None:
    view = a_view(history=a_history(first_validation=validation_facts(0)))
    lines = lines_of(view, replace(view, now=101.0), replace(view, now=102.0))
    assert sum(line.startswith("validation at step 40: mean") for line in lines) == 1


def test_warnings_are_told_once_and_events_for_the_log_are_not() -> None:
    view = a_view()
    warned = replace(
        view, now=101.0, events=(*view.events, EventLine(NOW, "warning", "low memory"), EventLine(NOW, "memory", "x"))
    )
    lines = lines_of(view, warned, replace(warned, now=102.0))
    assert [line for line in lines if "low memory" in line or line.endswith("x")] == ["warning: low memory"]


def test_foreign_text_is_made_harmless() -> None:
    stream = io.StringIO()
    plain = Plain(stream)
    plain.say("head\n\x1b[2Jbody")
    plain.close("end\x07")
    assert stream.getvalue() == "head\n␛[2Jbody\nend␇\n"


def test_an_encoding_that_lacks_a_character_shows_something_else() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    Plain(stream).say("step · 漢")
    assert raw.getvalue() == b"step ? ?\n"


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        yield reader, stream


def test_a_reader_that_is_gone_ends_the_lines_but_not_the_run(pipe) -> None:
    reader, stream = pipe
    plain = Plain(stream)
    os.close(reader)
    plain.say("into nothing")
    plain.update(a_view())
    plain.close("summary")
    assert plain.stream is None


def test_a_reader_that_is_slow_loses_lines_and_is_told_how_many(pipe) -> None:
    reader, stream = pipe
    plain = Plain(stream)
    for number in range(2000):  # more than a pipe holds
        plain.say(f"line {number} {'x' * 80}")
    lost = plain.dropped
    assert 0 < lost < 2000
    os.read(reader, 1 << 20)
    plain.say("next")
    assert os.read(reader, 1 << 20).decode() == f"({lost} lines could not be shown)\nnext\n"
    os.close(reader)


def test_a_closed_stream_is_silent() -> None:
    stream = io.StringIO()
    stream.close()
    plain = Plain(stream)
    plain.update(a_view())
    plain.close("summary")


def test_no_stream_at_all_is_silent() -> None:
    Plain(None).close("summary")
