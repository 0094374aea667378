"""The pages of the shipped profiles: each profile has a section, with what the planner computes as it is now."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.display.wording import size
from orchestrator.hours.cards import speed_of
from orchestrator.hours.prediction import seconds
from profiles.__main__ import PROFILE_PAGES, main_page
from profiles.load import load_profile, shipped_profiles
from tests.profile_pages import CARDS, DOCS, HOURS, PART, computed, page

DESCRIBED = [name for names in PROFILE_PAGES.values() for name in names]


@pytest.mark.parametrize("name", PROFILE_PAGES)
def test_what_the_planner_computes_stands_on_the_page(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text == page(text), "run: .venv/bin/python -m tests.profile_pages"


@pytest.mark.parametrize("name", PROFILE_PAGES)
def test_each_profile_has_a_section_with_its_computed_part(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == PROFILE_PAGES[name]
    for section in text.split("\n## ")[1:]:
        assert [part[1] for part in PART.findall(section)] == [section.partition("\n")[0]]


def test_every_shipped_profile_has_a_section_or_is_the_twin_of_one_that_has() -> None:
    shipped = shipped_profiles()
    described = {name if name in DESCRIBED else name.removesuffix("-debug") for name in shipped}
    assert described == set(DESCRIBED) and len(DESCRIBED) == len(set(DESCRIBED))
    links = re.findall(r"^\| \[`(\S+)`\]\((\S+)#(\S+)\)", main_page(), re.MULTILINE)
    assert [name for name, _, _ in links] == shipped


@pytest.mark.parametrize(
    ("name", "card", "gigabytes"), [("azr-0.5b", "RTX 4090", 24), ("grpo-1.5b-8gb", "RTX 4060", 8)]
)
def test_the_page_says_what_the_command_says(
    name: str, card: str, gigabytes: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [
        "plan",
        "--profile",
        name,
        "--card",
        str(gigabytes),
        "--card-name",
        card,
        "--json",
        "--runs",
        str(tmp_path),
    ]
    assert main([*words, "--set", "retention.on_small_disk=warn"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (row,) = (line for line in computed(name).splitlines() if line.startswith(f"| {card}, {gigabytes} GB"))
    assert f"| {seconds(facts['prediction']['step_s'])} (" in row
    assert f"| {int(360_000 / facts['prediction']['step_s']):,} |" in row
    assert f"up to {size(facts['prediction']['ram_bytes'])}," in computed(name) or gigabytes > 12
    assert f"| disk | up to {size(facts['disk']['total_bytes'])}," in computed(name)


ON_A_CARD = re.compile(r"^\| (.+?), \d+ GB(?:, tight)? \| .+? \((.+?) to (.+?)\) \| (.+?) \| (.+?)$", re.MULTILINE)


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_profile_for_a_gpu_names_each_card_that_fits_with_its_steps(name: str) -> None:
    profile = load_profile(name).profile
    rows = ON_A_CARD.findall(computed(name))
    is_planned = profile.run.device == "cuda" and profile.run.worker != "verl"
    assert bool(rows) is is_planned
    for card, *_, known in rows:
        speed = speed_of(card)
        assert speed is not None
        assert known.endswith("| scaled |") is not speed.is_measured


def test_a_card_is_named_once_and_the_smallest_is_first() -> None:
    assert [card.gigabytes for card in CARDS] == sorted(card.gigabytes for card in CARDS)
    assert len({card.name for card in CARDS}) == len(CARDS)
    assert HOURS == (1, 10, 100)


def test_a_page_with_a_stale_figure_is_noticed() -> None:
    text = "<!-- computed: fake -->\n| a step | 9 h |\n<!-- end -->\nand what a person wrote\n"
    assert page(text) != text
    assert page(page(text)) == page(text) and page(text).endswith("\nand what a person wrote\n")
