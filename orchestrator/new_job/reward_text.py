"""Writes the reward file of a new job: a function that works, and one in TRL's signature as a comment. (pure)"""

from __future__ import annotations

from keyword import iskeyword

from orchestrator.new_job.mapping import ColumnMap
from profiles.harmless import harmless

FOR_ANSWERS = "brief"
WITHOUT_ANSWERS = "to_the_point"
"""Names of the functions, which are also the names of the parts in metrics."""
SOLVED_AT = {FOR_ANSWERS: 0.8, WITHOUT_ANSWERS: 0.5}
"""What each gives at least to a completion that will do: the least of a right answer; half of the words."""
SHOWN = 12
"""Columns that the comment lists."""

HEAD = '''\
"""Reward functions of your own. A profile names them as FILE.py:FUNCTION in grpo.rewards.

Each is called once for each rollout, in a process of its own with limits of time and memory ([grpo.reward]):

    problem      prompt, answer and messages; other columns as attributes or by name: problem["level"]
                 columns of your data: {columns}
    completion   the text that the model wrote
    facts        tokens           length of the completion
                 finish_reason    "stop", or "length" if it was cut
                 is_truncated     whether it was cut
                 is_correct       whether its answer is right, by the program's own comparison
                 is_well_formed   whether it has the format that the prompt asks for

Return a number, or a dict of named numbers: their sum counts, and each is in the metrics. Rollouts of one problem are
compared with each other: a function that gives all of them the same teaches nothing.
"""
'''

BODY_FOR_ANSWERS = '''

def brief(problem, completion, facts):
    """0 for a wrong answer or one that was cut; 1 for a right one, and up to 0.2 less the longer it is."""
    if facts["is_truncated"] or not facts["is_correct"]:
        return 0.0
    return 1.0 - 0.2 * min(1.0, facts["tokens"] / {longest})
'''

BODY_WITHOUT_ANSWERS = '''

def to_the_point(problem, completion, facts):
    """Share of the prompt's longer words that the completion takes up; 0 if it was cut."""
    if facts["is_truncated"]:
        return 0.0
    words = {{word.strip(".,;:?!").lower() for word in problem.prompt.split() if len(word) > 4}}
    taken_up = sum(word in completion.lower() for word in words)
    return taken_up / max(1, len(words))
'''

TRL = """

# A function written for TRL works as it is: it gets all rollouts of a problem, and columns as lists of the same length.
#
# def {name}(prompts, completions, {parameters}**columns):
#     return [{expression}]
"""


def function_of(mapping: ColumnMap) -> str:
    """Name of the function in the file."""
    return FOR_ANSWERS if mapping.answer else WITHOUT_ANSWERS


def reward_text(mapping: ColumnMap, max_completion_tokens: int) -> str:
    """max_completion_tokens: of the profile."""
    used = [name for name in (mapping.prompt, mapping.answer, mapping.tests, *mapping.others) if name]
    shown = [_shown(name) for name in used[:SHOWN]] + (["..."] if len(used) > SHOWN else [])
    head = HEAD.format(columns=", ".join(shown))
    if mapping.answer:
        column = mapping.answer if mapping.answer.isidentifier() and not iskeyword(mapping.answer) else ""
        body = BODY_FOR_ANSWERS.format(longest=max_completion_tokens)
        return head + body + _trl_of_answers(column)
    return (
        head
        + BODY_WITHOUT_ANSWERS.format()
        + TRL.format(name="short", parameters="", expression="1.0 / (1 + len(text.split())) for text in completions")
    )


def _trl_of_answers(column: str) -> str:
    given = column or "answer"
    return TRL.format(
        name="mentions_answer",
        parameters=f"{given}, ",
        expression=f"float(str(right) in text) for text, right in zip(completions, {given})",
    )


def _shown(name: str) -> str:
    """The name of a column inside a docstring."""
    return harmless(name).replace("\\", "/").replace('"', "'")
