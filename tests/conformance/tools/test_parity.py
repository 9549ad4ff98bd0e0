"""`islices parity`: all backends in step, the bound on what rounding does, and what is said when one leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.cli import main
from islices.conformance.tools.parity import command, training
from islices.conformance.tools.parity.bound import Bound, _between
from islices.conformance.tools.parity.models import MODELS, Model, _sampled_softmax, _sigmoid
from islices.conformance.tools.parity.rounding import EPS, Rounded
from islices.conformance.tools.parity.text import PADDING, default_text, text_of
from islices.conformance.tools.parity.training import OPTIMIZERS, Recipe, Training, has_losses

pytest.importorskip("rich")

TEXT = text_of("topics", default_text())
FRAMEWORKS = [name for name in islices.list_backends() if has_losses(name)]
SMALL = ["--dim", "4", "--batch-size", "16", "--steps", "6"]
several = pytest.mark.skipif(len(FRAMEWORKS) < 2, reason="needs two frameworks with autodiff")
#: Two backends for what does not ask for all of them.
PAIR = [word for name in FRAMEWORKS[:2] for word in ("-b", name)]


def run(path: Path, *words: str, expected: int = 0) -> dict[str, Any]:
    """The JSON of a run of the command."""
    target = path / "run.json"
    assert main(["parity", *SMALL, "--json", str(target), *words]) == expected
    return json.loads(target.read_text("utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def small_model(name: str) -> Model:
    return MODELS[name](TEXT, 16, 4, 3)


# ---------------------------------------------------------------------- the same bits, and the bound
@pytest.mark.repeats_where(lambda model, optimizer: model != next(iter(MODELS)) and optimizer != next(iter(OPTIMIZERS)))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", list(MODELS))
def test_shared_upstream_same_bits(model: str, optimizer: str, tmp_path: Path) -> None:
    found = run(tmp_path, "--upstream", "shared", "--model", model, "--optimizer", optimizer)
    assert list(found["backends"]) == islices.list_backends()
    assert found["gap"] == [0.0] * 6
    assert {curve["same_bits"] for curve in found["backends"].values()} == {6}
    losses = [tuple(curve["loss"]) for curve in found["backends"].values()]
    assert len(set(losses)) == 1
    assert len(set(losses[0])) == 6, "every batch is another, and every step moves the tables"


@pytest.mark.parametrize("semantics", ["keras", "optax", "mxnet"])
def test_shared_upstream_of_other_semantics(semantics: str, tmp_path: Path) -> None:
    found = run(tmp_path, "--upstream", "shared", "--semantics", semantics, "--steps", "3")
    assert {curve["same_bits"] for curve in found["backends"].values()} == {3}


@pytest.mark.repeats_where(lambda model, optimizer: model != next(iter(MODELS)) and optimizer != next(iter(OPTIMIZERS)))
@several
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", list(MODELS))
def test_own_autodiff_within_the_bound(model: str, optimizer: str, tmp_path: Path) -> None:
    found = run(tmp_path, "--model", model, "--optimizer", optimizer)
    assert list(found["backends"]) == FRAMEWORKS
    gaps, bounds = np.array(found["gap"]), np.array(found["bound"])
    assert gaps[-1] > 0, "frameworks round in their own way; without any gap nothing would have been compared"
    assert (gaps <= bounds).all(), (gaps, bounds)
    assert max(found["share"]) <= 1, "every element is within what is allowed for it"
    losses = np.array([curve["loss"] for curve in found["backends"].values()])
    assert np.ptp(losses, axis=0).max() < 1e-4


# ---------------------------------------------------------------------- the gradient by hand, and its errors
@pytest.mark.parametrize("name", list(MODELS))
def test_gradient_by_hand_is_the_slope_of_the_loss(name: str) -> None:
    """Central differences of the loss by hand, in float64, in one direction after the other."""
    model = small_model(name)
    batch = next(model.batches())
    start = {key: x.astype(np.float64) for key, x in model.start().items()}
    _, lookups, dense = model.upstream({k: Rounded(x) for k, x in start.items()}, batch)
    gradient = {key: x.value for key, x in dense.items()} | {key: np.zeros_like(start[key]) for key in model.tables}
    for key, ids, x in lookups:
        np.add.at(gradient[key], ids, x.value)
    rng = np.random.default_rng(0)
    for key, x in start.items():
        for _ in range(3):
            direction, h = rng.normal(size=x.shape), 1e-5
            sides = [
                model.upstream({k: Rounded(v + s * h * direction if k == key else v) for k, v in start.items()}, batch)
                for s in (1, -1)
            ]
            slope = (sides[0].loss - sides[1].loss) / (2 * h)
            assert slope == pytest.approx((gradient[key] * direction).sum(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("backend", FRAMEWORKS)
def test_own_gradients_are_as_close_as_the_errors_say(backend: str, name: str) -> None:
    """Each framework's own gradient against the one by hand in float64: within EPS * error, element by element."""
    model = small_model(name)
    trained = Training(backend, Recipe(model, "sgd", 1.0, 1.0), model.start())
    batches = model.batches()
    for _ in range(3):
        batch = next(batches)
        loss, gradients = trained.own_gradients(batch)
        by_hand = model.upstream({k: Rounded(x) for k, x in trained.tables().items()}, batch)
        assert loss == pytest.approx(by_hand.loss, rel=1e-5)
        wanted = dict(by_hand.dense)
        for key, ids, x in by_hand.lookups:
            total = x.scatter(ids, len(TEXT.vocabulary))
            wanted[key] = wanted[key] + total if key in wanted else total
        for key, x in wanted.items():
            got = islices.get_backend(backend).to_numpy(islices.to_dense(gradients[key])).astype(np.float64)
            away, allowed = np.abs(got - x.value), EPS * x.error
            if key in model.tables:
                assert not got[PADDING].any(), "the padding has no gradient"
                away, allowed = away[1:], allowed[1:]
            assert (away <= allowed).all(), (away.max(), allowed.max())
            assert allowed.max() < 1e-4 * np.abs(x.value).max(), "and no more than rounding is allowed"
        trained.step(gradients)


def test_errors_hold_for_float32_in_any_order() -> None:
    """Sums and products in float32, forwards and backwards, against float64."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = (rng.normal(size=(5, 40)).astype(np.float32) * 10.0 ** rng.integers(-3, 3) for _ in range(2))
        exact = (Rounded(a) * Rounded(b)).sum(1)
        products = a * b
        for order in (slice(None), slice(None, None, -1)):
            total = np.zeros(5, np.float32)
            for column in products[:, order].T:
                total = total + column
            assert (np.abs(total - exact.value) <= EPS * exact.error).all()
        by_matrix = Rounded(a) @ Rounded(b).T
        assert (np.abs(a @ b.T - by_matrix.value) <= EPS * by_matrix.error).all()


def test_errors_hold_where_what_comes_in_is_far_off() -> None:
    """Inputs off by up to a hundredth, a tenth and ten: products, functions and the softmax stay within bounds."""
    rng = np.random.default_rng(0)
    for off in (1e-2, 0.1, 10.0):
        a, b, radius = rng.normal(size=(6, 5)), rng.normal(size=(6, 5)), off * rng.random((6, 5))
        share = rng.random((6, 1))
        given, others = Rounded(a, radius / EPS), Rounded(b, radius / EPS)
        told = [given * others, given @ others.T, given.apply(np.tanh, lambda x: 1 - np.tanh(x) ** 2)]
        told += _sampled_softmax(Rounded(a[:, :1], radius[:, :1] / EPS), others, share)[1:]
        for _ in range(200):
            x, y = (v + radius * rng.choice([-1.0, 0.3, 1.0], radius.shape) for v in (a, b))
            found = [x * y, x @ y.T, np.tanh(x)]
            logits = np.concatenate([x[:, :1], y], 1)
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            found += [share * (p[:, :1] - 1), share * p[:, 1:]]
            for one, bounded in zip(found, told, strict=True):
                assert (np.abs(one - bounded.value) <= EPS * bounded.error).all()


def test_slope_far_below_zero_has_its_digits() -> None:
    """1 + tanh cancels there: the gradient by hand of a score of -30 was off by a thousandth."""
    x = np.array([-700.0, -30.0, 0.0, 30.0])
    np.testing.assert_allclose(_sigmoid(x), [np.exp(-700.0), 9.357622968839299e-14, 0.5, 1.0], rtol=1e-13)


def test_adam_between_the_ends() -> None:
    """The movement (a + c g) / sqrt(b + d g^2) peaks inside of an interval; that much is added to its ends."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        a, c, x = rng.normal(size=3)
        b, d, reach = rng.random(3) * 10.0 ** rng.uniform(-4, 1, 3)

        def moved(g: Any, a: float = a, b: float = b, c: float = c, d: float = d) -> Any:
            return (a + c * g) / np.sqrt(b + d * g * g)

        ends = moved(np.array([x - reach, x + reach, np.clip(0.0, x - reach, x + reach)]))
        inside = moved(np.linspace(x - reach, x + reach, 2001))
        more = float(_between(np.array(x), np.array(reach))) * np.abs(ends).max()
        assert max(inside.max() - ends.max(), ends.min() - inside.min()) <= more + 1e-12


def test_a_norm_that_rounding_takes_over_the_limit() -> None:
    """By hand nothing is clipped; a backend whose norm rounds up is, and the bound knows."""
    model = small_model("skipgram")
    batch, start = next(model.batches()), model.start()
    gaps = {name: np.zeros(x.shape) for name, x in start.items()}

    def clipped(max_norm: float) -> dict[str, Rounded]:
        bound = Bound(Recipe(model, "sgd", 1.0, max_norm), start)
        bound.step(batch, start, gaps, start)
        return bound.clipped_by_hand

    norm = np.sqrt(sum((x.value**2).sum() for x in clipped(np.inf).values()))
    near, far = clipped(norm * (1 + 1e-9)), clipped(norm * 2)
    for name, x in near.items():
        assert np.array_equal(x.value, far[name].value)
        assert (x.error >= far[name].error + 4 * x.size).all()


@several
@pytest.mark.parametrize(("model", "optimizer", "lr"), [("translation", "adam", "3"), ("skipgram", "adagrad", "1000")])
def test_a_training_that_runs_wild_is_no_fault(
    model: str, optimizer: str, lr: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounding grows a thousandfold a step there; the bound grows with it, and the verdict says what that is worth."""
    words = ["--dim", "16", "--batch-size", "64", "--model", model, "--optimizer", optimizer, "--lr", lr, "--seed", "7"]
    found = run(tmp_path, *words, "--steps", "12", *PAIR)
    assert max(found["share"]) <= 1
    assert ("that says little" in capsys.readouterr().out) == (found["typical"][-1] > 1e-2 * found["way"][-1])


def test_losses_that_are_no_numbers_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "--lr", "1e30", *PAIR)
    assert "losses are no numbers from step" in capsys.readouterr().out


# ---------------------------------------------------------------------- one that leaves
class Faulty(Training):
    """The second backend does something else from the third step on."""

    culprit, fault = "", ""
    taken = 0

    def own_gradients(self, batch: Any) -> tuple[float, dict[str, Any]]:
        self._before()
        loss, gradients = super().own_gradients(batch)
        return loss, self._after(gradients)

    def recorded_gradients(self, upstream: Any) -> dict[str, Any]:
        self._before()
        return self._after(super().recorded_gradients(upstream))

    def _before(self) -> None:
        self.taken += 1
        self.at_fault = self.name == self.culprit and self.taken == 3
        self.padding_idx = None if self.at_fault and self.fault == "padding" else PADDING
        if self.at_fault and self.fault == "rate":
            self.optimizer = training.make_optimizer(self.recipe._replace(lr=self.recipe.lr * 1.5))

    def _after(self, gradients: dict[str, Any]) -> dict[str, Any]:
        if self.at_fault and self.fault == "mean":
            return {name: islices.scale(x, 1.0 / 16) for name, x in gradients.items()}
        return gradients

    def step(self, gradients: Any) -> float:
        semantics = {"norm of slots": "tensorflow"}.get(self.fault) if self.at_fault else None
        self.recipe = self.recipe._replace(semantics=semantics or "islices")
        return super().step(gradients)


@several
@pytest.mark.parametrize("upstream", ["own", "shared"])
@pytest.mark.parametrize(
    ("fault", "cause"), [("mean", "batch"), ("padding", "padding"), ("rate", ""), ("norm of slots", "duplicates")]
)
def test_it_stops_where_one_leaves_and_says_why(
    fault: str,
    cause: str,
    upstream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "Training", Faulty)
    monkeypatch.setattr(Faulty, "culprit", FRAMEWORKS[1])
    monkeypatch.setattr(Faulty, "fault", fault)
    words = [*SMALL, *PAIR, "--upstream", upstream, "--optimizer", "sgd", "--max-norm", "0.05"]
    assert main(["parity", *words]) == 1
    shown = capsys.readouterr().out
    assert f"stopped at step 3: {FRAMEWORKS[0]} and {FRAMEWORKS[1]} are" in shown
    found = run(tmp_path, *words, expected=1)
    assert found["stop"]["step"] == found["steps"] == 3
    causes = json.dumps(found["stop"]["difference"]["causes"])
    print(shown, causes)
    assert cause in causes


# ---------------------------------------------------------------------- beside it, the frameworks' own functions
@several
def test_own_functions_are_shown_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(tmp_path, "--own", "--optimizer", "adagrad")
    assert list(found["own"]) == FRAMEWORKS
    assert max(found["gap"]) <= max(found["bound"])
    assert max(found["own_gap"]) > 1000 * max(found["gap"]), "other defaults, and a padding row that is trained"
    assert f"{FRAMEWORKS[0]}'s own functions" in capsys.readouterr().out


# ---------------------------------------------------------------------- what is asked for
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", ""], "cannot read"),
        (["--text", "/no/such/file"], "cannot read /no/such/file: No such file"),
        (["--text", "SMALL"], "different words"),
        (["--text", "BINARY"], "binary file"),
        (["--text", "LATIN"], "no UTF-8 text"),
        (["-b", "numpy"], "takes part with --upstream shared"),
        (["-b", "abacus"], "'abacus', which is not installed"),
        (["-b", "numpy", "--upstream", "shared"], "at least two"),
        (["--own", "--upstream", "shared"], "--own: not"),
        (["--lr", "0"], "above 0"),
        (["--lr", "inf"], "finite"),
        (["--max-norm", "nan"], "above 0"),
        (["--steps", "0"], "at least 1"),
        (["--seed", "-1"], "at least 0"),
        (["--batch-size", "10,000,000"], "examples for skipgram"),
        (["--plot", "picture.svg"], "ends in .png"),
        (["--plot", "/no/such/folder/x.png"], "cannot write"),
        (["--json", "/no/such/folder/x.json"], "cannot write"),
        (["--optimizer", "lion"], "'lion'"),
        (["--semantics", "fbgemm"], "'fbgemm'"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, list) else "",
)  # fmt: skip
def test_usage(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"SMALL": b"A short text. It has few words.", "BINARY": b"\0\1\2" * 100, "LATIN": b"caf\xe9 " * 100}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert main(["parity", *(str(tmp_path / word) if word in files else word for word in words)]) == 2
    assert said in capsys.readouterr().err


def test_native_is_a_deprecated_name_of_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(DeprecationWarning, match=r"--native is deprecated: use --own.*0\.2"):
        assert main(["parity", "--native", "--upstream", "shared"]) == 2
    assert "--own: not with" in capsys.readouterr().err


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [a + b for a in "größe" for b in "abcdefghijklmnop"]
    lines = [" ".join(rng.choice(words, 8)) for _ in range(60)]
    (tmp_path / "text").write_text(".\n".join(lines), "utf-8")
    found = run(tmp_path, "--text", str(tmp_path / "text"), "--upstream", "shared", "-b", "numpy", "-b", FRAMEWORKS[0])
    assert found["text"]["words"] == len(set(words))
    assert found["text"]["lines"] == 60
    assert {curve["same_bits"] for curve in found["backends"].values()} == {6}


@pytest.mark.parametrize("name", list(MODELS))
def test_batches_are_padded_and_repeat_with_the_seed(name: str) -> None:
    first, again = small_model(name).batches(), small_model(name).batches()
    other = MODELS[name](TEXT, 16, 4, 4).batches()
    padded = 0
    for _ in range(8):
        batch, same, another = next(first), next(again), next(other)
        assert all(np.array_equal(batch[key], same[key]) for key in batch)
        assert any(not np.array_equal(batch[key], another[key]) for key in batch)
        ids = [x for x in batch.values() if x.dtype == np.int32]
        assert all(x.min() >= 0 and x.max() < len(TEXT.vocabulary) for x in ids)
        padded += sum(int((x == PADDING).sum()) for x in ids)
    assert padded > 8


# ---------------------------------------------------------------------- pictures, pipes
@several
@pytest.mark.parametrize("words", [["--own"], ["--upstream", "shared"]], ids=lambda words: words[-1])
def test_picture(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "curves.png"
    run(tmp_path, *PAIR, *words, "--plot", str(target))
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.outside
def test_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """No colours, no bar, nothing on stderr; JSON on stdout alone where it is asked for."""
    words = ["parity", *SMALL, "--upstream", "shared", "-b", "numpy", "-b", FRAMEWORKS[0]]
    done = subprocess.run(
        [sys.executable, "-m", "islices", *words], text=True, capture_output=True, check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert "the same bits on 2 backends after each of 6 steps" in done.stdout
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 6


def test_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are left out, none is cut."""
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["parity", *SMALL, "--upstream", "shared", "-b", "numpy", "-b", FRAMEWORKS[0]]) == 0
    shown = capsys.readouterr().out
    assert "\u2026" not in shown
    assert "last loss" in shown
    assert "units" not in shown


def test_a_broken_framework_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*given: Any) -> None:
        raise ImportError("libfoo.so is missing")

    monkeypatch.setattr(command, "Training", broken)
    assert main(["parity", *SMALL, "--upstream", "shared"]) == 3
    assert "libfoo.so is missing" in capsys.readouterr().err
