"""The metrics that an update computes over its tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.workers.grpo.small import advantages_of, prepared_of, profile_of, rows_of, tiny_model, update_of, whole
from workers.grpo.prepare import Prepared

MASKS = {
    "off": {},
    "percentile": {"entropy_mask": "percentile", "entropy_keep": 0.3},
    "threshold": {"entropy_mask": "threshold", "entropy_threshold": 4.5612},
    "running": {"entropy_mask": "running"},
    "trainer's numbers": {"entropy_mask": "percentile", "old_source": "trainer"},
    "beside a kl, which reads all": {"entropy_mask": "percentile", "kl_coef": 0.1},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_the_entropy_told_is_that_of_all_tokens_and_beside_it_that_of_the_kept_ones(options: dict[str, Any]) -> None:
    model, profile = tiny_model(), profile_of(**options)
    rows = rows_of(model)
    all_of_them = torch.tensor([value for row in rows for value in row.entropies])
    prepared = prepared_of(model, rows, profile)
    keep = whole(prepared).keep
    kept = all_of_them if keep is None else all_of_them[torch.cat([keep[i] for i in _places(prepared)])]
    _, metrics = update_of(model, profile).apply(1, 1e-2, rows, advantages_of(rows, profile))
    assert metrics["entropy"] == pytest.approx(float(all_of_them.mean()), abs=1e-5)
    assert metrics["entropy_kept"] == pytest.approx(float(kept.mean()), abs=1e-5)
    assert (metrics["entropy_kept"] > metrics["entropy"] + 1e-3) == (keep is not None)


def _places(prepared: Prepared) -> list[int]:
    """For each row, in the order given, its place in the minibatch."""
    order = {row: place for place, row in enumerate(whole(prepared).rows)}
    return [order[row] for row in range(len(prepared.rows))]
