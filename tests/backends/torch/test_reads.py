"""Test `value_and_grad(fn, sparse=)` on plain tensors. Gradients agree with those of torch, and are sparse for marked
tensors if `fn` only reads rows of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import islices

IDS = torch.tensor([[3, 0, 3], [19, 7, 0]])


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 4, padding_idx=0)
        self.bags = torch.nn.EmbeddingBag(30, 4)
        self.bias = torch.nn.Parameter(torch.randn(20))
        self.out = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = torch.tanh(self.words(ids)).mean(1) + self.bags(ids + 5)
        return (self.out(rows).squeeze(-1) + self.bias[ids].sum(1)).pow(2).sum()


def test_a_stock_model() -> None:
    torch.manual_seed(0)
    model = Model()
    params = dict(model.named_parameters())

    def loss(params: Any, ids: Any) -> Any:
        return torch.func.functional_call(model, params, (ids,))

    expected = dict(zip(params, torch.autograd.grad(loss(params, IDS), list(params.values())), strict=True))
    sparse = {"words.weight", "bags.weight", "bias"}
    for marks, found in (
        (lambda path: "out" not in path, sparse),
        ({name: name in sparse for name in params}, sparse),
        ("auto", {"words.weight", "bags.weight"}),
    ):
        value, grads = islices.value_and_grad(loss, sparse=marks)(params, IDS)
        assert torch.equal(value, model(IDS))
        for name, g in grads.items():
            assert isinstance(g, islices.IndexedSlices) == (name in found)
            torch.testing.assert_close(islices.to_dense(g), expected[name])


READS: dict[str, Any] = {
    "negative": lambda w: w[-2] * w[torch.tensor([-1, 3])],
    "with a slice": lambda w: w[IDS, :],
    "a list": lambda w: w[[3, 1]],
    "NumPy's": lambda w: w[IDS.numpy()],
    "a slice": lambda w: w[-5:9:2],
    "index_select": lambda w: w.index_select(0, IDS[0]) + torch.index_select(w, 0, IDS[1]),
    "in another type": lambda w: w.bfloat16()[IDS].float(),
    "not at all": lambda w: torch.ones(1, requires_grad=True) * w.shape[0],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reads_of_rows(read: Any) -> None:
    def loss(w: Any) -> Any:
        return torch.sin(read(w)).sum()

    w = torch.linspace(0, 1, 20 * 6).reshape(20, 3, 2)
    value, grad = islices.value_and_grad(loss, sparse=lambda path: True)(w)
    expected, dense = islices.value_and_grad(loss)(w)
    assert isinstance(grad, islices.IndexedSlices)
    assert torch.equal(value, expected)
    torch.testing.assert_close(islices.to_dense(grad), dense, rtol=0, atol=1e-6)  # the order of sums differs


def largest(w: Any) -> Any:
    return torch.nn.functional.embedding_bag(IDS, w, mode="max")


@pytest.mark.parametrize(
    "use", [lambda w: w * 2, lambda w: w[torch.ones(20, dtype=torch.bool)], lambda w: w[:, 0], largest]
)
def test_another_use_is_named_or_dense(use: Any) -> None:
    def loss(tree: Any) -> Any:
        return use(tree["w"]).sum() + tree["w"][3].sum()

    tree = {"w": torch.ones(20, 2)}
    with pytest.raises(
        TypeError, match=r"the leaf \"\['w'\]\", which is used by (mul|__getitem__|embedding_bag) at .*test_reads"
    ):
        islices.value_and_grad(loss, sparse=lambda path: True)(tree)
    _, expected = islices.value_and_grad(loss)(tree)
    for sparse in ("auto", "always"):
        _, grads = islices.value_and_grad(loss, sparse=sparse)(tree)
        assert torch.equal(grads["w"], expected["w"])
        _, few = islices.value_and_grad(lambda w: w[torch.arange(40) % 20].sum(), sparse=sparse)(tree["w"])
        assert isinstance(few, islices.IndexedSlices) == (sparse == "always")
