"""Every known mistake lands far outside the bound of its formula, and is named as the cause."""

from __future__ import annotations

import numpy as np
import pytest

from islices.conformance.formulas.__main__ import highest
from islices.conformance.formulas.causes import cause_of, wrong_steps
from islices.conformance.formulas.mutants import MUTANTS, mutants
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.trajectories import trajectories


@pytest.mark.parametrize("name", FORMULAS)
def test_every_mistake_scores_above_100(name: str) -> None:
    found = dict(highest(FORMULAS[name]))
    assert {title: scores for title, scores in found.items() if scores[0] <= 100.0} == {}


def test_every_mistake_of_the_catalogue_shows_somewhere() -> None:
    shown = {title for formula in FORMULAS.values() for title, _ in highest(formula)}
    assert {mutant.title for mutant in MUTANTS} - shown == set()


@pytest.mark.parametrize("name", ["torch.AdamW", "keras.SGD", "torch.RMSprop", "fbgemm.EXACT_ROWWISE_ADAGRAD"])
def test_a_mistake_is_named(name: str) -> None:
    formula = FORMULAS[name]
    known = dict(highest(formula))
    for title, wrong in mutants(formula):
        if title not in known:
            continue
        gots = []
        for one in trajectories(formula):
            found = wrong_steps(wrong, one)
            alone = {t: {wrong.gives: x[wrong.gives].astype(np.float32)} for t, x in found.items()}
            gots.append((one, alone))
        assert cause_of(formula, gots) is not None, title
