"""Compare gradients of tied weights on torch with one backward pass per sample. An embedding and an output layer share
the weights."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import islices

ROWS, WIDTH = 11, 4
IDS = torch.tensor([[0, 3, 3], [5, 0, 10], [7, 7, 7], [1, 2, 3]])
TARGETS = torch.tensor([[3, 3, 1], [0, 10, 4], [7, 7, 7], [2, 3, 0]])


class Tied(nn.Module):
    """A model with an embedding, a hidden layer, and an output layer that shares the embedding's weight."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(ROWS, WIDTH, **options)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, ROWS)
        self.out.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.out(torch.tanh(self.mix(self.embed(ids))))


class Bags(Tied):
    """A model whose samples are bags, so that the output layer computes one product per sample. The weight has more
    columns than a sample has products, so that norms use a triangular factor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(ROWS, WIDTH, mode="mean", _weight=self.out.weight.detach())
        self.out.weight = self.embed.weight


def loss_of(logits: Any, targets: Any) -> Any:
    targets = targets if logits.ndim == 3 else targets[:, 0]
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")


def alone(model: Any, weight: Any) -> list[Any]:
    """Return one dense gradient of `weight` per sample, each from a separate backward pass."""
    made = []
    for b in range(len(IDS)):
        (gradient,) = torch.autograd.grad(loss_of(model(IDS[b : b + 1]), TARGETS[b : b + 1]), weight)
        made.append(gradient.to_dense())
    return made


@pytest.mark.parametrize(
    "make",
    [Bags, lambda: Tied(sparse=True), lambda: Tied(padding_idx=3)],
    ids=["bags", "sparse", "padding"],
)
def test_norms_clips_and_sums_are_those_of_one_backward_pass_a_sample(make: Any) -> None:
    model = make()
    weight = model.embed.weight
    with islices.capture(model) as captured:
        loss_of(model(IDS), TARGETS).backward()
    wanted = alone(model, weight)
    norms = torch.stack([g.norm() for g in wanted])
    samples = captured.per_sample()
    assert list(samples) == ["embed"]
    found = samples["embed"]
    torch.testing.assert_close(found.norms(), norms)
    limit = float(norms.median())
    clipped = [g * min(1.0, limit / float(n)) for g, n in zip(wanted, norms, strict=True)]
    torch.testing.assert_close(found.clip(limit).sum(), sum(clipped))
    torch.testing.assert_close(found.clip(limit).norms(), norms.clamp(max=limit))
    for b, g in enumerate(wanted):
        torch.testing.assert_close(found.slices(b), g)
        torch.testing.assert_close(found.to_dense()[b], g)
    torch.testing.assert_close(captured.gradients()["embed"], weight.grad.to_dense())


def test_one_norm_over_the_tied_weight_and_all_others() -> None:
    """Check clips of samples by a norm that covers all parameters. The gradient of the tied weight is captured, and the
    other gradients come from torch.func."""
    model = Tied()
    with islices.capture(model) as captured:
        loss_of(model(IDS), TARGETS).backward()
    parameters = {k: v.detach() for k, v in model.named_parameters()}  # out.weight is embed.weight, and appears once

    def loss(parameters: Any, ids: Any, targets: Any) -> Any:
        return loss_of(torch.func.functional_call(model, parameters, ids[None]), targets[None])

    every = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, IDS, TARGETS)
    norms = sum(g.flatten(1).square().sum(1) for g in every.values()).sqrt()
    rest = {k: g for k, g in every.items() if k != "embed.weight"}
    (tied, others), found = islices.clip_per_sample([captured.per_sample()["embed"], rest], 1.0)
    torch.testing.assert_close(found, norms)
    factors = (1.0 / norms).clamp(max=1.0)
    torch.testing.assert_close(tied.sum(), torch.einsum("b,bvd->vd", factors, every["embed.weight"]))
    torch.testing.assert_close(others["mix.weight"], every["mix.weight"] * factors[:, None, None])


# ---------------------------------------------------------------------- other uses
def by_hand(model: Any, h: Any) -> Any:
    return functional.linear(h, model.embed.weight)


def by_a_penalty(model: Any, h: Any) -> Any:
    return model.out(h) + model.embed.weight.square().sum()


@pytest.mark.parametrize("use", [by_hand, by_a_penalty])
def test_other_uses_of_the_weight_are_refused(use: Any) -> None:
    model = Tied(sparse=use is by_hand)
    with islices.capture(model) as captured:
        loss_of(use(model, model.embed(IDS)), TARGETS).backward()
        for read in (captured.per_sample, captured.gradients):
            with pytest.raises(TypeError, match="weights of layer 'embed' were used beside the layers"):
                read()
        captured.clear()
        loss_of(model(IDS), TARGETS).backward()
        torch.testing.assert_close(
            captured.per_sample()["embed"].norms(), torch.stack([g.norm() for g in alone(model, model.embed.weight)])
        )


def test_what_the_user_does_with_the_weight_beside_the_loss_is_no_use() -> None:
    model = Tied()
    weight = model.embed.weight
    weight.register_hook(lambda g: g * 2)  # sees and changes the gradient of the weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with islices.capture(model) as captured:
        for _ in range(2):
            captured.clear()
            optimizer.zero_grad()
            loss = loss_of(model(IDS), TARGETS)
            assert model.embed.weight is weight
            assert weight.norm().item() > 0  # a plain read of the weight
            loss.backward()
            found = captured.per_sample()["embed"].to_dense()
            wanted = [g / 2 for g in alone(model, weight)]
            torch.testing.assert_close(found, torch.stack(wanted))
            optimizer.step()  # updates the weight in place, under its alias
    assert len(weight._backward_hooks) == 1
    assert "weight" not in vars(model.embed)
    assert "weight" not in vars(model.out)


def test_captures_within_one_another_and_of_a_part() -> None:
    model = Tied()
    with islices.capture(model) as whole, islices.capture(model) as again, islices.capture(model.embed) as part:
        loss_of(model(IDS), TARGETS).backward()
    torch.testing.assert_close(whole.per_sample()["embed"].norms(), again.per_sample()["embed"].norms())
    with pytest.raises(TypeError, match="used beside"):  # by the output layer, which is not captured
        part.per_sample()
    assert "weight" not in vars(model.embed)


# ---------------------------------------------------------------------- cost, and the plain gradient


def test_nothing_of_the_tables_size_is_made_a_sample() -> None:
    """Check that norms for a table with a million rows need little memory. One float64 copy of the table would need 256
    MB, and one copy per sample 2 GB."""
    rows, width, batch = 1_000_000, 32, 8
    g, x = torch.randn(batch, 1, rows), torch.randn(batch, 1, width)
    found = islices.per_sample(
        torch.ones(batch, 3, width), torch.tensor([[1, 5, 999_999]] * batch), rows, product=(g, x)
    )
    tracemalloc.start()
    norms = found.norms()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (norms.shape, peak < 200 << 20) == ((batch,), True)
