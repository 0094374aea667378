"""Prompts of instruct models: what transformers would render, plus the open think tag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import ExitCode, LonghaulError
from tests.workers.azr.small import CHATML, azr_profile, write_tokenizer
from workers.models.load import Tokenizer
from workers.tasks.prompts import chat, wording
from workers.tasks.styles import style_of

SHORT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]"
DATED = "{{ strftime_now('%d %b %Y') }}" + SHORT + "{% endif %}"


def rendered(directory: Path, task: str = "a task") -> str:
    return chat.wrapper_of(directory)(task)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(CHATML, id="chatml"),
        pytest.param("{{ bos_token }}" + SHORT + "{% endif %}{{ eos_token }}", id="tokens by name"),
        pytest.param(
            "{%- set x = {'a': [1, 'é<']} %}\n  {{ x | tojson }}" + SHORT + "{% endif %}", id="json and trimming"
        ),
        pytest.param("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", id="loop controls"),
    ],
)
def test_a_prompt_is_what_transformers_renders_with_an_open_think_tag(template: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    directory = write_tokenizer(tmp_path, template)
    reference: Any = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": wording.CHAT.format(task="a task")}]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered(directory) == expected + "<think>"


def test_a_template_that_opens_the_thought_itself_is_left_as_it_is(tmp_path: Path) -> None:
    text = rendered(write_tokenizer(tmp_path, SHORT + "<think>\n{% endif %}"))
    assert text.endswith("[assistant]<think>\n") and text.count("[assistant]") == 1


def test_a_file_of_its_own_comes_before_the_tokenizer_s_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "never")
    (tmp_path / "chat_template.jinja").write_text(SHORT + "{% endif %}")
    assert rendered(tmp_path).startswith("[user]a task\n")


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    config = {"chat_template": [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(tmp_path) == "yes<think>"


def test_a_template_s_date_never_changes(tmp_path: Path) -> None:
    assert rendered(write_tokenizer(tmp_path, DATED)).startswith("26 Jul 2024[user]")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        pytest.param(None, "is missing", id="none"),
        pytest.param("{% if %}", "is not a template", id="broken"),
        pytest.param("{{ raise_exception('roles must alternate') }}", "roles must alternate", id="refuses"),
        pytest.param("{{ messages.append(1) }}", "fails on a single user message", id="changes what it is given"),
        pytest.param("{{ ''.__class__.__mro__ }}", "fails on a single user message", id="looks behind the curtain"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_the_reason(
    template: str | None, said: str, tmp_path: Path
) -> None:
    directory = write_tokenizer(tmp_path, template)
    with pytest.raises(LonghaulError, match=said) as caught:
        style_of(azr_profile(style="azr-chat"), directory)
    assert caught.value.exit_code == ExitCode.INPUT


def test_control_tokens_of_the_model_are_known_to_the_style(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path)
    for name in ("azr", "azr-chat"):
        style = style_of(azr_profile(style=name), directory)
        assert not style.is_showable("x<|im_end|>") and style.is_showable("x</think>")


def test_template_marks_are_read_as_control_tokens(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path)
    ids = Tokenizer(directory).encode(rendered(directory))
    assert ids[0] == 1 and ids.count(2) == 1


QWEN3 = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{%- endif %}{%- endif %}"
)
"""Qwen 3's switch: a thought that is closed already."""
GRANITE = "{%- if thinking %}[think]{%- endif %}" + SHORT + "{% endif %}"


@pytest.mark.parametrize(
    ("template", "given"),
    [(QWEN3, {"enable_thinking": True}), (QWEN3, {"enable_thinking": False}), (GRANITE, {"thinking": True})],
)
def test_the_switch_for_thinking_does_what_transformers_does_with_it(
    template: str, given: dict[str, bool], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    directory = write_tokenizer(tmp_path, template)
    reference: Any = AutoTokenizer.from_pretrained(directory)
    asked = [{"role": "user", "content": "a task"}]
    expected = reference.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, **given)
    (is_on,) = given.values()
    assert chat.template_of(directory, "on" if is_on else "off")("a task") == expected
    assert chat.conversation_of(directory, "on" if is_on else "off")(asked) == expected


def test_without_the_switch_the_template_decides(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path, QWEN3)
    assert "<think>" not in chat.template_of(directory)("a task")
    assert "<think>" in chat.template_of(directory, "off")("a task")


@pytest.mark.parametrize("thinking", ["on", "off"])
def test_a_template_without_a_switch_is_refused(thinking: chat.Thinking, tmp_path: Path) -> None:
    with pytest.raises(LonghaulError, match="has no such switch") as caught:
        chat.template_of(write_tokenizer(tmp_path), thinking)
    assert caught.value.exit_code is ExitCode.INPUT and "model.thinking=template" in caught.value.next_command


def test_the_profile_s_switch_reaches_the_prompts_of_a_run(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from profiles.schema import Model, Profile
    from workers.suites.answer_formats import format_of_run
    from workers.suites.question import WordProblem

    directory = write_tokenizer(tmp_path, QWEN3)
    for style in ("chat", "boxed-chat"):
        model = Model(path=str(directory), prompt_style=style, thinking="off")  # type: ignore[arg-type]
        profile = Profile(name="x", model=model)
        item = WordProblem("2 + 2", 4)  # type: ignore[arg-type]
        assert format_of_run(profile, directory).ask("maths", item).endswith("<think>\n\n</think>")
        by_itself = replace(profile, model=replace(model, thinking="template"))
        assert "<think>" not in format_of_run(by_itself, directory).ask("maths", item)


def test_a_template_in_the_file_of_a_processor_is_found(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": SHORT + "{% endif %}"}))
    assert chat.has_template(tmp_path)
    assert chat.template_of(tmp_path)("hi") == "[user]hi[assistant]"
