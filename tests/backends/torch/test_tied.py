"""Tied weights on torch: an embedding and an output layer of one weight, against one backward pass a sample."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import islices  # noqa: E402
from islices.backends.torch import nn_utils, optim  # noqa: E402

ROWS, WIDTH = 11, 4
IDS = torch.tensor([[0, 3, 3], [5, 0, 10], [7, 7, 7], [1, 2, 3]])
TARGETS = torch.tensor([[3, 3, 1], [0, 10, 4], [7, 7, 7], [2, 3, 0]])


class Tied(nn.Module):
    """Rows, something between, and the same weight as the output layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        dtype = options.pop("dtype", torch.float32)
        self.embed = nn.Embedding(ROWS, WIDTH, dtype=dtype, **options)
        self.mix = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.out = nn.Linear(WIDTH, ROWS, dtype=dtype)
        self.out.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.out(torch.tanh(self.mix(self.embed(ids))))


class Bags(Tied):
    """One product a sample, fewer than the width: the factors' norm is taken by their triangular one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(ROWS, WIDTH, mode="mean", _weight=self.out.weight.detach())
        self.out.weight = self.embed.weight


def loss_of(logits: Any, targets: Any) -> Any:
    targets = targets if logits.ndim == 3 else targets[:, 0]
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")


def alone(model: Any, weight: Any) -> list[Any]:
    """The gradient of each sample by one backward pass each."""
    made = []
    for b in range(len(IDS)):
        (gradient,) = torch.autograd.grad(loss_of(model(IDS[b : b + 1]), TARGETS[b : b + 1]), weight)
        made.append(gradient.to_dense())
    return made


@pytest.mark.parametrize(
    "make",
    [
        Tied,
        Bags,
        lambda: Tied(sparse=True),
        lambda: Tied(padding_idx=3),
        lambda: Tied(dtype=torch.float64),
    ],
    ids=["embedding", "bags", "sparse", "padding", "float64"],
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
    """What DP-SGD clips by: the other parameters' gradients from torch.func, the tied one's from the capture."""
    model = Tied()
    with islices.capture(model) as captured:
        loss_of(model(IDS), TARGETS).backward()
    parameters = {k: v.detach() for k, v in model.named_parameters()}  # out.weight is embed.weight, once

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


@pytest.mark.parametrize("freeze", [False, True])
def test_a_cross_term_of_either_sign_counts(freeze: bool) -> None:
    """The output layer's part cancels the lookups' in sample 0 and doubles it in sample 1."""
    embed, out = nn.Embedding(3, 1), nn.Linear(1, 3, bias=False)
    embed.weight = out.weight = nn.Parameter(torch.ones(3, 1), requires_grad=not freeze)
    model = nn.ModuleDict({"embed": embed, "out": out})
    with islices.capture(model) as captured:
        signs = torch.tensor([[[-1.0]], [[1.0]]])
        (embed(torch.tensor([[2], [2]])) * signs).sum().backward()
        (out(torch.ones(2, 1, 1)) * torch.tensor([0.0, 0.0, 1.0])).sum().backward()
    assert captured.per_sample()["embed"].norms().tolist() == [0.0, 2.0]
    assert (embed.weight.grad is None) == freeze


# ---------------------------------------------------------------------- other uses
def by_hand(model: Any, h: Any) -> Any:
    return functional.linear(h, model.embed.weight)


def by_matmul(model: Any, h: Any) -> Any:
    return h @ model.embed.weight.T


def by_einsum(model: Any, h: Any) -> Any:
    return torch.einsum("...d,vd->...v", h, model.embed.weight)


def by_convolution(model: Any, h: Any) -> Any:
    return functional.conv1d(h.transpose(1, 2), model.embed.weight[..., None]).transpose(1, 2)


def by_a_penalty(model: Any, h: Any) -> Any:
    return model.out(h) + model.embed.weight.square().sum()


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Any, weight: Any) -> Any:
        ctx.save_for_backward(h, weight)
        return h @ weight.T

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:  # type: ignore[override]
        h, weight = ctx.saved_tensors
        return upstream @ weight, torch.einsum("btv,btd->vd", upstream, h)


def by_a_function(model: Any, h: Any) -> Any:
    return Own.apply(h, model.embed.weight)


class Scaled(nn.Linear):
    def forward(self, x: Any) -> Any:
        return functional.linear(x, self.weight) * 2


def by_a_layer_of_its_own_kind(model: Any, h: Any) -> Any:
    return model.scaled(h)


@pytest.mark.parametrize(
    "use",
    [
        by_hand, by_matmul, by_einsum, by_convolution, by_a_penalty, by_a_function, by_a_layer_of_its_own_kind,
    ],
)  # fmt: skip
@pytest.mark.parametrize("sparse", [False, True])
def test_other_uses_of_the_weight_are_refused(use: Any, sparse: bool) -> None:
    model = Tied(sparse=sparse)
    model.scaled = Scaled(WIDTH, ROWS, bias=False)
    model.scaled.weight = model.embed.weight
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
    weight.register_hook(lambda g: g * 2)  # sees, and changes, what the weight gets
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with islices.capture(model) as captured:
        for _ in range(2):
            captured.clear()
            optimizer.zero_grad()
            loss = loss_of(model(IDS), TARGETS)
            assert model.embed.weight is weight
            assert weight.norm().item() > 0  # a number
            loss.backward()
            found = captured.per_sample()["embed"].to_dense()
            wanted = [g / 2 for g in alone(model, weight)]
            torch.testing.assert_close(found, torch.stack(wanted))
            optimizer.step()  # in place, under the alias
    assert len(weight._backward_hooks) == 1
    assert "weight" not in vars(model.embed)
    assert "weight" not in vars(model.out)


def test_a_change_in_place_between_the_passes_is_still_torchs_error() -> None:
    model = Tied()
    with islices.capture(model):
        loss = loss_of(model(IDS), TARGETS)
        with torch.no_grad():
            model.embed.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_output_layers_count_once(reentrant: bool) -> None:
    model = Tied()
    with islices.capture(model) as captured:
        hidden = model.embed(IDS)
        loss_of(checkpoint(model.out, hidden, use_reentrant=reentrant), TARGETS).backward()
    expected = model.embed.weight.grad.clone()
    torch.testing.assert_close(captured.gradients()["embed"], expected)
    torch.testing.assert_close(captured.per_sample()["embed"].sum(), expected)


def test_captures_within_one_another_and_of_a_part() -> None:
    model = Tied()
    with islices.capture(model) as whole, islices.capture(model) as again, islices.capture(model.embed) as part:
        loss_of(model(IDS), TARGETS).backward()
    torch.testing.assert_close(whole.per_sample()["embed"].norms(), again.per_sample()["embed"].norms())
    with pytest.raises(TypeError, match="used beside"):  # by the output layer, which is not in that part
        part.per_sample()
    assert "weight" not in vars(model.embed)


def test_backward_passes_in_threads() -> None:
    found, models = {}, {k: Tied() for k in (1, 2, 4)}  # made one by one: they seed torch's one generator

    def work(k: int) -> None:
        model = models[k]
        for _ in range(3):
            with islices.capture(model) as captured:
                (loss_of(model(IDS), TARGETS) * k).backward()
        found[k] = captured.per_sample()["embed"].norms() / k

    threads = [threading.Thread(target=work, args=(k,)) for k in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[1], found[4])


def test_autocast_and_functional_call() -> None:
    model = Tied()
    parameters = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    with islices.capture(model) as captured, torch.autocast("cpu", dtype=torch.bfloat16):
        loss_of(torch.func.functional_call(model, parameters, IDS), TARGETS).backward()
    weight = parameters["embed.weight"]
    torch.testing.assert_close(captured.gradients()["embed"], weight.grad, rtol=0.02, atol=0.02)


def test_samples_that_do_not_come_first_are_refused() -> None:
    model = Tied()
    with islices.capture(model) as captured:
        model.out(model.embed(IDS).flatten(0, 1)).sum().backward()
    with pytest.raises(ValueError, match=r"layer 'embed': got 12 samples; accepted is the lookups' 4"):
        captured.per_sample()
    torch.testing.assert_close(captured.gradients()["embed"], model.embed.weight.grad)


# ---------------------------------------------------------------------- cost, and the plain gradient
def test_nothing_of_the_tables_size_is_made_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million rows: one float64 table would be 256 MB, one a sample 2 GB."""
    rows, width, batch = 1_000_000, 32, 8
    largest, vdot = 0, np.vdot

    def measured(a: Any, b: Any) -> Any:
        nonlocal largest
        largest = max(largest, a.size)
        return vdot(a, b)

    monkeypatch.setattr(np, "vdot", measured)
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(batch, 1, rows, generator=generator)
    x = torch.randn(batch, 1, width, generator=generator)
    upstream, ids = torch.randn(batch, 3, width, generator=generator), torch.tensor([[1, 5, 999_999]] * batch)
    found = islices.per_sample(upstream, ids, rows, product=(g, x))
    norms = found.norms()
    assert 0 < largest <= 1 << 20
    g, x, upstream = g.double(), x.double(), upstream.double()
    cross = 2 * torch.einsum("bk,bd,bkd->b", g[:, 0, ids[0]], x[:, 0], upstream)
    squares = g.square().sum((1, 2)) * x.square().sum((1, 2)) + upstream.square().sum((1, 2)) + cross
    torch.testing.assert_close(norms, squares.sqrt().float())


@pytest.mark.parametrize("sparse", [False, True])
def test_the_plain_gradient_clipped_and_stepped(sparse: bool) -> None:
    """torch adds a sparse and a dense gradient to a dense one; the fronts take it from there."""
    ours, theirs = Tied(sparse=sparse), Tied()
    assert ours.out.weight is ours.embed.weight
    mine = optim.SGD(ours.parameters(), 0.5)
    stock = torch.optim.SGD(theirs.parameters(), 0.5)
    for _ in range(3):
        for model, optimizer, clip in (
            (ours, mine, nn_utils.clip_grad_norm_),
            (theirs, stock, nn.utils.clip_grad_norm_),
        ):
            optimizer.zero_grad()
            loss_of(model(IDS), TARGETS).backward()
            assert model.embed.weight.grad.layout is torch.strided
            norm = clip(model.parameters(), 1.0)
            assert norm > 1
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_norm_whose_parts_cancel_keeps_its_digits() -> None:
    """Products 2^12 times as large as their sum: squares taken apart would lose what is left."""
    g = torch.tensor([[[4096.0, 0.0, 1.0], [-4096.0, 0.0, 1.0]]])
    x = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0 + 2**-20]]])
    up, ids = torch.tensor([[[0.0, 0.0, 2**-9]]]), torch.tensor([[0]])
    found = islices.per_sample(up, ids, 3, product=(g, x))
    # row 0: (0, 0, 2^-9 - 2^-8), row 2: (2, 2, 2 + 2^-20)
    exact = math.sqrt((2**-9 - 2**-8) ** 2 + 8 + (2 + 2**-20) ** 2)
    assert found.norms().dtype == torch.float32
    assert float(found.norms()[0]) == float(torch.tensor(exact, dtype=torch.float32))
