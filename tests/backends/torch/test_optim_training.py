"""islices.backends.torch.optim inside real training loops: DataLoader workers, schedulers, scalers, hooks, compile."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.optim import lr_scheduler  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import islices  # noqa: E402
from islices.backends.torch import GradScaler, clip_grad_norm_, optim  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:.*os.fork")
WORDS = 200


class Reviews(Dataset):  # type: ignore[type-arg]
    """Texts of 1 to 9 words, 0 for padding, and whether the good ones among them weigh more than the bad."""

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
    """(ids, offsets, weights, labels) of a batch."""
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


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def by_hand(make: Callable[[], Any], model: Any, given: Any, *, epochs: int = 1, max_norm: float | None = None) -> None:
    """The loop with functions of islices. make: an optimizer of islices.optim, asked for at each step."""
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


# ---------------------------------------------------------------------- a loader with processes of its own
@pytest.mark.outside
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_model_fed_by_workers(start: str) -> None:
    """Loss goes down; the bits of the loop by hand, without workers."""
    epochs = 6 if start == "fork" else 1
    model, twin = Model(), Model()
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    feeder = loader(num_workers=2, multiprocessing_context=start, persistent_workers=True)
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
    assert same(model, twin)
    if start == "fork":
        assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5]), losses


def test_micro_batches_add_up() -> None:
    model, twin = Model(), Model()
    optimizer = optim.Adagrad(model.parameters(), lr=0.1)
    parts = batches(4)
    for batch in parts:
        (loss_of(model, batch) / len(parts)).backward()
    optimizer.step()
    grads = []
    for batch in parts:
        twin.zero_grad()
        (loss_of(twin, batch) / len(parts)).backward()
        grads.append([p.grad for p in twin.parameters()])
    by = islices.optim.adagrad(0.1)
    for p, *each in zip(twin.parameters(), *grads, strict=True):
        by.step(p, islices.add(*each), by.init(p))
    assert same(model, twin)


def test_gradients_set_to_zero_and_not_to_none() -> None:
    """An empty gradient is a step as any other: torch's zero_grad(set_to_none=False) leaves one."""
    model, twin = Model(), Model()
    one, two = optim.SGD(model.parameters(), lr=0.1), optim.SGD(twin.parameters(), lr=0.1)
    for batch in batches(3):
        one.zero_grad(set_to_none=False)
        two.zero_grad()
        loss_of(model, batch).backward()
        loss_of(twin, batch).backward()
        one.step()
        two.step()
    assert same(model, twin)
    one.zero_grad(set_to_none=False)
    before = copy.deepcopy(model)
    one.step()
    assert same(model, before)
    assert one.state[model.words.weight]["step"].tolist() == [4]


# ---------------------------------------------------------------------- schedules
def schedules() -> Iterator[tuple[str, dict[str, Any], Callable[[Any], Any]]]:
    yield "Adam", {}, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12)
    yield "SGD", {"momentum": 0.9}, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=12)
    yield "RMSprop", {"momentum": 0.9}, lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=3)
    yield "AdamW", {"lr": torch.tensor(0.1)}, lambda o: lr_scheduler.CosineAnnealingLR(o, 7)
    yield "Adagrad", {"lr": 0.1}, lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "hyper", "schedule"),
    list(schedules()),
    ids=["onecycle-betas", "onecycle-momentum", "cyclic-momentum", "tensor-lr", "sequential"],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_schedulers_reach_the_steps(name: str, hyper: dict[str, Any], schedule: Callable[[Any], Any]) -> None:
    """The numbers are torch's; each step is one of a new optimizer of islices.optim with the numbers of the time."""
    model, twin = Model(), Model()
    optimizer = getattr(optim, name)(model.parameters(), **copy.deepcopy(hyper))
    scheduler = schedule(optimizer)
    theirs = getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(1))], **copy.deepcopy(hyper))
    of_torch = schedule(theirs)
    numbers = []
    for batch in batches() * 2:
        group = optimizer.param_groups[0]
        watched = [k for k in ("lr", "betas", "momentum") if k in group]
        assert [group[k] for k in watched] == [theirs.param_groups[0][k] for k in watched]
        given = {k: float(group[k]) for k in ("lr", "momentum", "weight_decay") if k in group}
        given |= dict(zip(("beta1", "beta2"), group["betas"], strict=True)) if "betas" in group else {}
        given |= {"rho": group["alpha"]} if "alpha" in group else {}
        numbers.append(given)
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        theirs.step()
        scheduler.step()
        of_torch.step()
    left = iter(numbers)
    by_hand(lambda: getattr(islices.optim, name.lower())(**next(left)), twin, batches(), epochs=2)
    assert same(model, twin)
    assert len({given["lr"] for given in numbers}) >= 4


def test_a_plateau_and_a_checkpoint_of_the_schedule() -> None:
    def started() -> tuple[Any, Any, Any]:
        model = Model()
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        return model, optimizer, lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    def run(model: Any, optimizer: Any, plateau: Any, first: int, last: int) -> None:
        for step, batch in list(enumerate(batches() * 2))[first:last]:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            plateau.step(float(step // 3))

    whole, part, rest = started(), started(), started()
    run(*whole, 0, 10)
    run(*part, 0, 4)
    for saved, fresh in zip(part, rest, strict=True):
        fresh.load_state_dict(copy.deepcopy(saved.state_dict()))
    run(*rest, 4, 10)
    assert same(whole[0], rest[0])
    assert whole[1].param_groups[0]["lr"] == rest[1].param_groups[0]["lr"] < 0.1


# ---------------------------------------------------------------------- loss scaling
@pytest.mark.parametrize("scaler", [torch.amp.GradScaler, GradScaler], ids=["torch", "islices"])
def test_a_scaler_changes_no_bit_and_skips_what_is_not_finite(scaler: Any) -> None:
    """Scales are powers of two: unscaling is exact."""
    model, twin = Model(), Model()
    optimizer, plain = optim.Adam(model.parameters(), lr=0.1), optim.Adam(twin.parameters(), lr=0.1)
    scaling = scaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step, batch in enumerate(batches()):
        optimizer.zero_grad()
        plain.zero_grad()
        scaling.scale(loss_of(model, batch)).backward()
        loss_of(twin, batch).backward()
        if step == 3:
            model.words.weight.grad._values()[0, 0] = torch.inf
            before, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict()["state"])
            scaling.step(optimizer)
            assert same(model, before)
            for key, held in optimizer.state_dict()["state"].items():
                assert all(torch.equal(held[name], x) for name, x in state[key].items())
        else:
            scaling.unscale_(optimizer)
            if scaler is GradScaler:  # which sums duplicates; what is clipped has been rounded to their sum, then
                for p in twin.parameters():
                    p.grad = islices.coalesce(p.grad)
            norm = clip_grad_norm_(model.parameters(), 0.1)
            assert torch.equal(norm, clip_grad_norm_(twin.parameters(), 0.1))
            scaling.step(optimizer)
            plain.step()
        scaling.update()
        assert same(model, twin)
    assert scaling.get_scale() == 2.0**10


def test_overflow_of_duplicates_is_seen_by_islices_scaler_alone() -> None:
    """3e38 twice is infinite in float32, and neither is."""
    for scaler, skipped in ((torch.amp.GradScaler, False), (GradScaler, True)):
        layer = torch.nn.Embedding.from_pretrained(torch.ones(4, 1), freeze=False, sparse=True)
        optimizer, scaling = optim.SGD(layer.parameters(), lr=1.0), scaler("cpu", init_scale=1.0)
        scaling.scale(3e38 * layer(torch.tensor([1, 2, 1])).sum()).backward()
        scaling.step(optimizer)
        scaling.update()
        assert scaling.get_scale() == (0.5 if skipped else 1.0)
        assert (layer.weight.flatten().tolist() == [1.0] * 4) == skipped
        assert bool(layer.weight.isfinite().all()) == skipped
    off = GradScaler("cpu", enabled=False)
    layer = torch.nn.Embedding.from_pretrained(torch.ones(4, 1), freeze=False, sparse=True)
    optimizer = optim.SGD(layer.parameters(), lr=1.0)
    off.scale(layer(torch.tensor([1, 1])).sum()).backward()
    off.unscale_(optimizer)
    assert not layer.weight.grad.is_coalesced()
    off.step(optimizer)
    assert layer.weight.flatten().tolist() == [1.0, -1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("scaler", "dtype", "clip"),
    [
        (torch.amp.GradScaler, torch.float16, "none"),
        (torch.amp.GradScaler, torch.float16, "max_norm"),
        (GradScaler, torch.float16, "unscale_"),
        (torch.amp.GradScaler, torch.bfloat16, "unscale_"),
        (GradScaler, torch.bfloat16, "max_norm"),
    ],
)
def test_16_bit_tables_train_under_a_scaler(scaler: Any, dtype: Any, clip: str) -> None:
    """The first scales overflow float16: those steps change nothing. Of the others a twin takes the exact gradients."""
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


@pytest.mark.parametrize("scaler", [torch.amp.GradScaler, GradScaler], ids=["torch", "islices"])
def test_a_float16_gradient_is_unscaled_in_float32(scaler: Any) -> None:
    """1e-9 is 0 in float16, and 2**16 times as much is not."""
    layer = torch.nn.Embedding.from_pretrained(torch.ones(4, 1).half(), freeze=False, sparse=True)
    optimizer, scaling = optim.SGD(layer.parameters(), lr=2.0**20, master=True), scaler("cpu")
    scaling.scale(layer(torch.tensor([1])).float().sum() * 2.0**-30).backward()
    scaling.step(optimizer)
    assert layer.weight.flatten().tolist() == [1.0, 1 - 2.0**-10, 1.0, 1.0]


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


# ---------------------------------------------------------------------- the rest of an optimizer's life
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


def test_a_compiled_model() -> None:
    """Dynamo's own graphs, run operation by operation: bits stay; a step that is compiled is not traced."""
    model, twin = Model(), Model()
    optimizer, plain = optim.Adam(model.parameters(), lr=0.1), optim.Adam(twin.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="eager")
    for batch in batches(3):
        for m, own, o in ((compiled, model, optimizer), (twin, twin, plain)):
            o.zero_grad()
            loss_of(m, batch).backward()
            assert own.words.weight.grad.is_sparse
            o.step()
    torch.compile(optimizer.step, backend="eager")()
    plain.step()
    assert same(model, twin)


def test_parameters_on_other_memory() -> None:
    """Not contiguous, of one element, empty, expanded: what is no plain table takes another way to the same bits."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "transposed": torch.randn(4, 3, generator=generator).t(),
        "channels": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
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
    p = torch.nn.Parameter(torch.ones(3, 2))
    p.grad = torch.ones(()).expand(3, 2)
    optim.SGD([p], lr=0.5).step()
    assert p.tolist() == [[0.5, 0.5]] * 3
