"""Copies to a GPU hold the same bits, and let the host go on."""

from __future__ import annotations

import pytest
import torch

from workers.models.host_copies import sent


def test_without_a_gpu_the_tensor_is_already_there() -> None:
    one = torch.arange(5)
    assert sent(one, torch.device("cpu")) is one


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_host_does_not_wait_for_what_the_gpu_computes() -> None:
    device, one = torch.device("cuda"), torch.arange(5)
    sent(one, device)  # pinned memory is allocated once
    torch.cuda.synchronize()
    torch.cuda._sleep(1 << 31)  # about a second
    found = sent(one, device)
    assert not torch.cuda.current_stream().query()
    assert found.tolist() == one.tolist()
