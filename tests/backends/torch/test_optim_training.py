"""Test islices.backends.torch.optim in real training loops, with DataLoader workers, schedulers, scalers, hooks and
closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset
from torch_models import same_parameters

import islices
from islices.backends.torch import GradScaler, clip_grad_norm_, optim

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:.*os.fork")
WORDS = 200


class Reviews(Dataset):  # type: ignore[type-arg]
    """A dataset of texts. Each text has 1 to 9 words, one weight per word, and a label, which is 1 if good words
    outweigh bad ones. Word 0 is the padding."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, k: int) -> tuple[Any, Any, float]:
        rng = np.random.default_rng(k)
        ids = rng.zipf(1.3, rng.integers(1, 10)) % WORDS
        weights = rng.random(len(ids), np.float32) + 0.5
        worth = np.random.default_rng(99).standard_normal(WORDS)
        worth[0] = 0
        return ids, weights, float((worth[ids] * weights).sum() > 0)


def bags(samples: list[tuple[Any, Any, float]]) -> tuple[Any, Any, Any, Any]:
    """Return the samples as one batch (ids, offsets, weights, labels)."""
    lengths = [len(ids) for ids, _, _ in samples]
    return (
        torch.from_numpy(np.concatenate([ids for ids, _, _ in samples])),
        torch.from_numpy(np.cumsum([0, *lengths[:-1]])),
        torch.from_numpy(np.concatenate([weights for _, weights, _ in samples])),
        torch.tensor([label for _, _, label in samples]),
    )


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.words = torch.nn.EmbeddingBag(WORDS, 8, mode="sum", sparse=True, padding_idx=0)
        self.first = torch.nn.Embedding(WORDS, 8, sparse=True)
        self.head = torch.nn.Linear(8, 1)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / 4)

    def forward(self, ids: Any, offsets: Any, weights: Any) -> Any:
        hidden = self.words(ids, offsets, per_sample_weights=weights) + self.first(ids[offsets])
        return self.head(hidden)[:, 0]


def loss_of(model: Any, batch: Any) -> Any:
    *features, labels = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(model(*features), labels)


def loader(**how: Any) -> Any:
    return DataLoader(Reviews(), batch_size=32, collate_fn=bags, **how)


def batches(n: int = 5) -> list[Any]:
    return list(loader())[:n]


def by_hand(make: Callable[[], Any], model: Any, given: Any, *, epochs: int = 1, max_norm: float | None = None) -> None:
    """Train with functions of islices. For each batch, `make` returns an optimizer of islices.optim."""
    states: dict[Any, Any] = {}
    for _ in range(epochs):
        for batch in given:
            model.zero_grad()
            loss_of(model, batch).backward()
            grads = [p.grad for p in model.parameters()]
            if max_norm is not None:
                grads, _ = islices.clip_by_global_norm(grads, max_norm, semantics="torch")
            optimizer = make()
            for p, grad in zip(model.parameters(), grads, strict=True):
                states.setdefault(p, None)
                states[p] = optimizer.init(p) if states[p] is None else states[p]
                optimizer.step(p, grad, states[p])


# ---------------------------------------------------------------------- a loader with separate processes
@pytest.mark.outside
def test_a_model_fed_by_workers() -> None:
    """Check that the loss falls, and that the weights have the bits of training by hand without workers."""
    epochs = 6
    model, twin = Model(), Model()
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    feeder = loader(num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    losses = []
    for _ in range(epochs):
        for batch in feeder:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    del feeder
    by_hand(lambda: islices.optim.adam(0.05), twin, batches(), epochs=epochs, max_norm=1.0)
    assert same_parameters(model, twin)
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5]), losses


# ---------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("name", "hyper", "schedule"),
    [
        ("Adam", {}, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12)),
        ("RMSprop", {"momentum": 0.9}, lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=3)),
    ],
)
def test_schedulers_reach_the_steps(name: str, hyper: dict[str, Any], schedule: Callable[[Any], Any]) -> None:
    """Check that a scheduler sets the same hyperparameters on optimizers of islices and of torch, and that steps use
    these hyperparameters."""
    model, twin = Model(), Model()
    optimizer = getattr(optim, name)(model.parameters(), **hyper)
    theirs = getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(1))], **hyper)
    schedules, numbers = [schedule(o) for o in (optimizer, theirs)], []
    for batch in batches():
        group, given = optimizer.param_groups[0], theirs.param_groups[0]
        assert [group.get(k) for k in ("lr", "betas", "momentum")] == [
            given.get(k) for k in ("lr", "betas", "momentum")
        ]
        betas = dict(zip(("beta1", "beta2"), given.get("betas", ()), strict=False))
        numbers.append({"lr": given["lr"], **(betas or {"momentum": given["momentum"], "rho": given["alpha"]})})
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        for one in (optimizer, theirs, *schedules):
            one.step()
    left = iter(numbers)
    by_hand(lambda: getattr(islices.optim, name.lower())(**next(left)), twin, batches())
    assert same_parameters(model, twin)
    assert len({given["lr"] for given in numbers}) >= 4


# ---------------------------------------------------------------------- loss scaling


def test_overflow_of_duplicates_is_seen_by_islices_scaler_alone() -> None:
    """Check that the scaler of islices finds the overflow of two gradients of 3e38 for one row. Each gradient is finite
    in float32, but their sum is not."""
    for scaler, skipped in ((torch.amp.GradScaler, False), (GradScaler, True)):
        layer = torch.nn.Embedding.from_pretrained(torch.ones(4, 1), freeze=False, sparse=True)
        optimizer, scaling = optim.SGD(layer.parameters(), lr=1.0), scaler("cpu", init_scale=1.0)
        scaling.scale(3e38 * layer(torch.tensor([1, 2, 1])).sum()).backward()
        scaling.step(optimizer)
        scaling.update()
        assert scaling.get_scale() == (0.5 if skipped else 1.0)
        assert (layer.weight.flatten().tolist() == [1.0] * 4) == skipped
        assert bool(layer.weight.isfinite().all()) == skipped


@pytest.mark.parametrize(
    ("scaler", "dtype", "clip"),
    [
        (torch.amp.GradScaler, torch.float16, "max_norm"),
        (GradScaler, torch.float16, "unscale_"),
        (GradScaler, torch.bfloat16, "none"),
    ],
)
def test_16_bit_tables_train_under_a_scaler(scaler: Any, dtype: Any, clip: str) -> None:
    """Check that steps change nothing while the scaled gradients overflow their dtype. All other steps equal steps of
    islices.optim on unscaled gradients."""
    table = torch.nn.Embedding.from_pretrained(torch.ones(50, 2, dtype=dtype), freeze=False, sparse=True)
    params = [table.weight, torch.nn.Parameter(torch.ones(2, dtype=dtype))]
    twins, rule = [p.detach().clone() for p in params], islices.optim.adam(0.125)
    states = rule.init(twins, master=True)
    optimizer = optim.Adam(params, lr=0.125, master=True, max_norm=2.0 if clip == "max_norm" else None)
    scaling, skipped, losses = scaler("cpu", init_scale=2.0**19), 0, []
    in_float32 = dtype == torch.float16 and clip != "unscale_"
    for step in range(40):
        optimizer.zero_grad()
        loss = (table(torch.tensor([1 + step % 3, 7, 7])) * params[1]).square().sum()
        losses.append(loss.item())
        scaling.scale(loss).backward()
        scale, before = scaling.get_scale(), [p.detach().clone() for p in params]
        grads = [islices.coalesce(params[0].grad.detach()).float() / scale, params[1].grad.float() / scale]
        if clip == "unscale_":
            scaling.unscale_(optimizer)
            clip_grad_norm_(params, 2.0)
        scaling.step(optimizer)
        scaling.update()
        if scaling.get_scale() < scale:
            skipped += 1
            assert all(map(torch.equal, params, before))
            continue
        grads = grads if in_float32 else [g.to(dtype) for g in grads]
        if clip != "none":
            grads, _ = islices.clip_by_global_norm(grads, 2.0, semantics="torch" if clip == "unscale_" else "islices")
        rule.step(twins, grads, states)
    assert bool(skipped) == (dtype == torch.float16)
    assert losses[-1] < 0.1 * losses[0]
    assert all(map(torch.equal, params, twins))
    assert (table.weight != 1).any(1).nonzero().flatten().tolist() == [1, 2, 3, 7]


def test_a_scaler_names_a_gradient_that_is_none_and_changes_nothing() -> None:
    layers = [torch.nn.Embedding(4, 1, sparse=True) for _ in range(2)]
    optimizer, scaling = optim.SGD([{"params": layer.parameters()} for layer in layers], lr=1.0), GradScaler("cpu")
    scaling.scale(sum(layer(torch.tensor([1, 1])).sum() for layer in layers)).backward()
    before = layers[0].weight.grad
    layers[1].weight.grad._indices().fill_(7)
    with pytest.raises(IndexError, match=r"^param_groups\[1\]\['params'\]\[0\]: indices: got 7 at position 0"):
        scaling.unscale_(optimizer)
    assert layers[0].weight.grad is before
    assert not before.is_coalesced()


# ---------------------------------------------------------------------- hooks, closures and parameters on other memory
def test_hooks_and_closures() -> None:
    model, twin = Model(), Model()
    optimizer, plain = optim.AdamW(model.parameters()), optim.AdamW(twin.parameters())
    (batch,) = batches(1)
    order: list[str] = []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: order.append("before"))
    handle = optimizer.register_step_post_hook(lambda o, args, kwargs: order.append("after"))

    def closure() -> Any:
        order.append("closure")
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    value = optimizer.step(closure)
    loss = loss_of(twin, batch)
    loss.backward()
    assert plain.step() is None
    assert (order, value.item()) == (["before", "closure", "after"], loss.item())
    handle.remove()
    optimizer.step()
    assert order[3:] == ["before"]
    assert all(p.is_leaf and p.requires_grad for p in model.parameters())


def test_parameters_on_other_memory() -> None:
    """Check that parameters which are empty, have one element, or are not contiguous get the same bits as contiguous
    copies."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "transposed": torch.randn(4, 3, generator=generator).t(),
        "none": torch.zeros(0, 3),
        "one": torch.ones(1),
        "cut": torch.randn(6, 4)[::2],
    }
    for name, start in shapes.items():
        p, q = (
            torch.nn.Parameter(start),
            torch.nn.Parameter(start.detach().clone(memory_format=torch.contiguous_format)),
        )
        assert name in ("none", "one") or not p.is_contiguous()
        one, two = optim.RMSprop([p], momentum=0.5), optim.RMSprop([q], momentum=0.5)
        for _ in range(3):
            grad = torch.randn(p.shape, generator=generator)
            p.grad, q.grad = grad.clone(), grad.clone()
            one.step()
            two.step()
        assert torch.equal(p, q), name
