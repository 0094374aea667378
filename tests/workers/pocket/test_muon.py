"""Our batched Muon takes the same steps as torch's own."""

import torch

from workers.pocket.muon import Muon


def test_it_takes_the_steps_of_torch_muon() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((6, 6), (12, 6), (6, 12), (6, 6))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    optimizers = (
        Muon(ours, lr=0.02, momentum=0.95, weight_decay=0.02),
        torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.02),
    )
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        # torch orthogonalises in bfloat16, ours in the precision of the weights
        torch.testing.assert_close(mine, other, atol=2e-3, rtol=0)
