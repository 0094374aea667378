"""The command line of open-instruct's program."""

from __future__ import annotations

from pathlib import Path

from workers.open_instruct.command import environment, options, own_options


def test_every_option_is_said_as_hugging_faces_parser_reads_it() -> None:
    found = options({"beta": 0.0, "flag": False, "learners": [4, 4], "text": "a b", "none": None, "freq": -1}, {})
    assert found == ["--beta=0.0", "--flag=False", "--learners", "4", "4", "--text=a b", "--freq=-1"]


def test_the_places_of_the_run_stand_in_for_those_of_the_yaml() -> None:
    found = options({"output_dir": "/tmp/x", "save_freq": 20}, own_options(Path("/a"), Path("/a/state")))
    assert [word for word in found if "output_dir" in word or "save_freq" in word] == [
        "--output_dir=/a/model",
        "--save_freq=-1",
    ]


def test_a_ray_of_its_own_has_a_folder_of_its_own() -> None:
    assert environment("/tmp/r")["RAY_TMPDIR"] == "/tmp/r" and "RAY_TMPDIR" not in environment("")
