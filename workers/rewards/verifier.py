"""The part for a right answer: 1, else 0. (pure)"""

from workers.rewards.reward import Case


class Verifier:
    name = "correct"

    def __call__(self, case: Case) -> float:
        return float(case.verdict.correct)
