"""Test islices.capture on torch: options of stock layers, hooks, activation checkpointing, and torch.compile."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_models import whole

import islices
from islices.testing import assert_equal

ROWS, DIM = 5, 3
IDS = torch.tensor([[0, 1, 1], [2, 0, 1]])
FLAT = torch.tensor([0, 1, 1, 0, 3, 1])


# ---------------------------------------------------------------------- capture: the layers' options
@pytest.mark.parametrize("options", [{"padding_idx": 1}, {"sparse": True}, {"max_norm": 1.0}], ids=str)
def test_embedding_layers_beside_their_own_gradient(options: dict[str, Any]) -> None:
    layer = nn.Embedding(ROWS, DIM, **options)
    up = whole(2, 3, DIM)
    with islices.capture(layer) as captured:
        (layer(IDS) * up).sum().backward()
    own = layer.weight.grad.to_dense()
    assert_equal(captured.gradients()[""], own)
    for b in range(2):
        layer.weight.grad = None
        (layer(IDS[b]) * up[b]).sum().backward()
        assert_equal(captured.per_sample()[""].slices(b), layer.weight.grad)


@pytest.mark.parametrize(
    ("mode", "padding", "offsets", "weighted", "last"),
    [
        ("sum", None, None, False, False),
        ("sum", 0, [0, 2, 2, 3], True, False),
        ("mean", 0, [0, 0, 6], False, True),
        ("max", 0, [0, 2, 2, 3], False, False),
    ],
)
def test_bags_beside_their_own_gradient(mode: str, padding: Any, offsets: Any, weighted: bool, last: bool) -> None:
    layer = nn.EmbeddingBag(ROWS, DIM, mode=mode, padding_idx=padding, include_last_offset=last, _weight=whole(ROWS, 3))
    ids = IDS if offsets is None else FLAT
    starts = None if offsets is None else torch.tensor(offsets)
    weights = whole(*ids.shape, seed=3) if weighted else None
    with islices.capture(layer) as captured:
        out = layer(ids, starts, weights)
        up = whole(*out.shape, seed=1)
        (out * up).sum().backward()
    got = islices.to_dense(captured.gradients()[""])
    # if the count is not a power of two, torch's result may differ, because torch multiplies by the rounded reciprocal
    # of the count
    torch.testing.assert_close(got, layer.weight.grad, rtol=1e-6, atol=1e-5 if mode == "mean" else 0)
    out = layer(ids, starts, weights)
    for b in range(len(out)):
        (alone,) = torch.autograd.grad((out[b] * up[b]).sum(), layer.weight, retain_graph=True)
        mine = islices.to_dense(captured.per_sample()[""].slices(b))
        torch.testing.assert_close(mine, alone, rtol=1e-6, atol=1e-5 if mode == "mean" else 0)


def test_ids_behind_the_last_offset_are_in_no_bag() -> None:
    """Check that ids after the last offset get no gradient. For these ids, torch's gradient contains uninitialized
    memory."""
    layer = nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True)
    with islices.capture(layer) as captured:
        layer(FLAT, torch.tensor([0, 2, 4])).sum().backward()
    assert captured.gradients()[""].indices.tolist() == [0, 1, 1, 0]


# ---------------------------------------------------------------------- capture: models
class Scaled(nn.Embedding):
    def forward(self, ids: Any) -> Any:
        return super().forward(ids) * 12


def test_layers_with_a_forward_of_their_own() -> None:
    layer = Scaled(ROWS, DIM)
    with islices.capture(nn.Sequential(layer)) as captured:
        (layer(IDS) * whole(2, 3, DIM)).sum().backward()
        with pytest.raises(TypeError):
            layer()  # an error in the layer's forward leaves no state behind
    assert_equal(captured.gradients()["0"], layer.weight.grad)
    assert not any((layer._forward_hooks, layer._forward_pre_hooks, layer._forward_hooks_always_called))
    assert torch.overrides._get_current_function_mode() is None


def test_a_layer_that_cannot_be_seen_into_is_refused() -> None:
    class Indexed(nn.Embedding):
        def forward(self, ids: Any) -> Any:
            return self.weight[ids]

    model = nn.Sequential(Indexed(ROWS, DIM))
    with islices.capture(model), pytest.raises(TypeError, match="got layer '0', a Indexed whose forward"):
        model(IDS)


def test_the_gradient_is_that_of_the_layer_below_the_models_own_hooks() -> None:
    layer = nn.Embedding(ROWS, DIM)
    layer.register_forward_hook(lambda *call: call[-1] * 4)
    with islices.capture(layer) as captured:
        layer(IDS).sum().backward()
    assert_equal(captured.gradients()[""], layer.weight.grad)


def test_tied_and_shared_layers() -> None:
    one, two = nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM)
    two.weight = one.weight
    model = nn.ModuleDict({"one": one, "again": one, "deep": nn.Sequential(two)})
    with islices.capture(model) as captured:
        loss = (one(IDS) + model["again"](IDS) * 2 + model["deep"](IDS) * 4).sum()
        with torch.no_grad():
            one(IDS)
        loss.backward()
    gradients = captured.gradients()
    assert list(gradients) == ["one"]  # two gradients of one weight would omit the cross term of the norm
    assert_equal(gradients["one"], one.weight.grad)
    for b in range(len(IDS)):
        one.weight.grad = None
        (one(IDS[b]) + model["again"](IDS[b]) * 2 + model["deep"](IDS[b]) * 4).sum().backward()
        assert_equal(captured.per_sample()["one"].slices(b), one.weight.grad)


@pytest.mark.parametrize("freeze", [False, True])
def test_backward_passes_add_up_until_cleared(freeze: bool) -> None:
    layer = nn.Embedding(ROWS, DIM)
    layer.weight.requires_grad_(not freeze)
    ids = IDS.clone()
    with islices.capture(layer) as captured:
        loss = layer(ids).sum()
        loss.backward(retain_graph=True)
        first = captured.gradients()[""]
        loss.backward()
        ids.zero_()  # the next batch overwrites the ids of the last one
        assert set(first.values.flatten().tolist()) == {1.0}
        assert islices.to_dense(captured.gradients()[""])[:, 0].tolist() == [4, 6, 2, 0, 0]
        captured.clear()
        (layer(ids) * 3).sum().backward()
    assert islices.to_dense(captured.gradients()[""])[:, 0].tolist() == [18, 0, 0, 0, 0]
    assert freeze == (layer.weight.grad is None)


def test_frozen_layers_stay_as_free_as_they_were() -> None:
    layer, w = nn.Embedding(ROWS, DIM).requires_grad_(False), torch.ones(DIM, requires_grad=True)
    with islices.capture(layer) as captured:
        rows = layer(IDS)
        rows.mul_(2)  # like Dropout(inplace=True)
        (rows * w).sum().backward()
    assert set(captured.gradients()[""].values.flatten().tolist()) == {2.0}
    assert not layer.weight.requires_grad


def test_nothing_stays_behind_an_error_or_in_a_copy() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1))
    before = copy.deepcopy(model.state_dict())
    captured = islices.capture(model)

    def broken() -> None:
        with captured:
            model(IDS).sum().backward()
            copy.deepcopy(model)(IDS).sum().backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert captured.gradients()["0"].indices.shape == (6,)
    assert not model[0]._forward_hooks
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_count_once(reentrant: bool) -> None:
    layer, x = nn.Embedding(ROWS, DIM), torch.zeros(1, requires_grad=True)
    with islices.capture(layer) as captured:
        checkpoint(lambda x: torch.sin(layer(IDS) + x), x, use_reentrant=reentrant).sum().backward()
    expected = torch.zeros(ROWS, DIM).index_add_(0, IDS.flatten(), torch.cos(layer.weight.detach())[IDS.flatten()])
    torch.testing.assert_close(islices.to_dense(captured.gradients()[""]), expected)


def test_compiled_models_run_their_hooks() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1))
    compiled = torch.compile(model, backend="eager")
    compiled(IDS)
    with islices.capture(compiled) as captured:
        compiled(IDS).sum().backward()
    assert_equal(captured.gradients()["_orig_mod.0"], model[0].weight.grad)
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_no_capture_inside_compiled_code() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1))

    @torch.compile(backend="eager", fullgraph=True)
    def step(ids: torch.Tensor) -> Any:
        with islices.capture(model) as captured:
            model(ids).sum().backward()
        return captured.gradients()

    with pytest.raises(RuntimeError, match=r"capture: got a call inside a function that torch\.compile compiles"):
        step(IDS)
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks
    assert model[0].weight.grad is None


def test_models_under_other_transforms() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1)).eval()
    parameters = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    with islices.capture(model) as captured:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.func.functional_call(model, parameters, IDS).float().sum().backward()
        with pytest.raises(NotImplementedError, match=r"capture: got a forward pass inside torch\.func"):
            torch.func.grad(lambda p: torch.func.functional_call(model, p, IDS).sum())(parameters)
    assert_equal(captured.gradients()["0"], parameters["0.weight"].grad)


def test_the_largest_members_are_those_of_the_forward_pass() -> None:
    layer = nn.EmbeddingBag(ROWS, DIM, mode="max")
    with islices.capture(layer) as captured:
        layer(IDS).sum().backward()
    with torch.no_grad():
        layer.weight.neg_()  # like a step of an optimizer
    assert_equal(captured.gradients()[""], layer.weight.grad)


def test_a_model_that_has_not_run_is_said_to_have_not() -> None:
    layer = nn.Embedding(ROWS, DIM)
    with (
        islices.capture(layer) as captured,
        pytest.raises(RuntimeError, match="capture: no embedding layer of the model"),
    ):
        captured.gradients()
    with captured:
        layer(IDS)
        captured.clear()
        assert captured.gradients()[""].indices.tolist() == []
        assert captured.per_sample() == {}


def test_clearing_forgets_what_can_no_longer_come() -> None:
    layer = nn.Embedding(ROWS, DIM, sparse=True)
    with islices.capture(layer) as captured:
        layer(IDS)  # the graph of the first call is freed
        kept = layer(IDS[:1])
        captured.clear()
        assert repr(captured) == "<islices.Capture: 1 layers, 1 lookups>"
        kept.sum().backward()
        assert captured.gradients()[""].indices.tolist() == IDS[0].tolist()
        captured.clear()
        assert captured.gradients()[""].indices.tolist() == []


def test_time_major_ids_have_their_samples_along_axis_1() -> None:
    layer, factors = torch.nn.Embedding(7, 2), torch.tensor([1.0, 2.0, 3.0])
    ids = torch.tensor([[1, 2, 1], [3, 4, 5], [0, 1, 6]])
    found = {}
    for axis, given in ((0, ids), (1, ids.T)):
        with islices.capture(layer) as captured:
            (layer(given).sum(1 - axis).sum(-1) * factors).sum().backward()
        found[axis] = captured.per_sample(sample_axis=axis)[""].to_dense()
    assert torch.equal(found[0], found[1])
    assert found[0][2].sum() == 2 * 3 * 3
