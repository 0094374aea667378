"""open-instruct's YAML as it is read: which names and values it may have, and how a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.errors import ExitCode, LonghaulError
from profiles.open_instruct.document import read, settings_of
from profiles.open_instruct.options import DEFAULTS, FORK_ALONE, KNOWN, LEAST, RENAMED, UPSTREAM


def test_names_of_upstream_and_of_the_fork_are_both_read() -> None:
    found = settings_of("rho_clamp_upper_bound: 2.0\nformat_reward_pattern: x\nnum_learners_per_node:\n  - 1\n", "g")
    assert found == {"rho_clamp_upper_bound": 2.0, "format_reward_pattern": "x", "num_learners_per_node": [1]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "vllm_num_engine: 3",
            "vllm_num_engine: neither upstream nor the fork knows it; did you mean vllm_num_engines?",
        ),
        ("1: 2", "1: neither upstream nor the fork knows it"),
        ("save_freq: often", "save_freq = often is not a whole number"),
        ("save_freq: true", "save_freq = True is not a whole number"),
        ("save_freq: 2\nsave_freq: 3", "save_freq is there twice"),
        ("save_freq:", "save_freq has no value"),
        ("beta: .nan", "beta = nan is not a number"),
        ("learning_rate: 1e-6", "for YAML it is a text: write 1.0e-06"),
        ("gather_whole_model: 1", "gather_whole_model = 1 is not true or false"),
        ("num_learners_per_node: []", "is not a list of whole numbers"),
        ("num_learners_per_node: [4, 0]", "is less than 1"),
        ("vllm_tensor_parallel_size: 0", "vllm_tensor_parallel_size = 0 is less than 1"),
        ("num_unique_prompts_rollout: -3", "is less than 1"),
        ("[1, 2]", "is not a list of settings"),
        ("", "is not a list of settings"),
        ("a: [", "is not valid YAML"),
        ("a: !!python/object:os.system x", "is not valid YAML"),
        ("[" * 5000, "is not valid YAML"),
        ("model_name_or_path: \x1b[31m", "is not valid YAML"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line_or_name(text: str, said: str) -> None:
    with pytest.raises(LonghaulError) as caught:
        settings_of(text, "g.yaml")
    assert said in caught.value.what and caught.value.exit_code == ExitCode.INPUT
    assert "\x1b" not in caught.value.what


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(LonghaulError, match=r"(?s)2 problems.*seeds.*save_freq"):
        settings_of("seeds: 1\nsave_freq: x", "g.yaml")


def test_a_file_that_is_missing_huge_or_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    for content, said in ((None, "cannot be read"), (b"#" * (1 << 20 | 1), "larger than 1 MiB"), (b"\xff", "UTF-8")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(LonghaulError, match=said):
            read(path)


def test_the_tables_of_options_agree() -> None:
    assert set(DEFAULTS) <= set(UPSTREAM) and set(LEAST) <= set(DEFAULTS)
    assert (
        not set(UPSTREAM) & set(FORK_ALONE)
        and set(RENAMED) <= set(FORK_ALONE)
        and set(RENAMED.values()) <= set(UPSTREAM)
    )
    assert len(KNOWN) == len(UPSTREAM) + len(FORK_ALONE)
