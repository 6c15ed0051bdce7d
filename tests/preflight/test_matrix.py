"""Any environment with any experiment and any model is valid, or refused at once.

By default each experiment is tried as it is and with one game and model, before a release with all.
"""

from __future__ import annotations

import time

import pytest
from tests.harness.composed import composed

from rlforge.config.keys import conf_dir
from rlforge.config.schema import RunConfig
from rlforge.errors import ConfigError
from rlforge.launch import check
from rlforge.models.load import check_source
from rlforge.preflight.fit import check_fit
from rlforge.preflight.plan import make_plan
from rlforge.system.hardware import detect

#: What is valid with experiments whose prompts name their game.
ABOUT_A_GAME = {
    "smollm2_kuhn": {("openspiel_kuhn", "smollm2_135m")},
    "smollm2_tictactoe": {("tictactoe", "smollm2_135m"), ("openspiel_tictactoe", "smollm2_135m")},
}
#: What stands in for the prompt template of a package that is not installed.
WITHOUT_ITS_PACKAGE = {
    "qwen3_1p7b_simpletak": ("model.prompt_template=qwen3-zs", "model.action_extraction=boxed")
}
#: Experiments one of whose opponents plays no other games than ``BOARDS``.
ON_BOARDS = ("simpletak_nash", "simpletak_pool", "tictactoe_nash")
BOARDS = ("connectfour", "openspiel_tictactoe", "simpletak", "tictactoe")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))


def refusal(*overrides: str) -> str | None:
    """Why a run is refused before anything starts; None: it is not."""
    try:
        found = composed(*overrides)
        check(found)
        plan = make_plan(found.config, detect())
        check_fit(plan.config, plan.hardware, ())
        check_source(found.config.model)
    except ConfigError as error:
        return str(error)
    return None


EXPERIMENTS = options("experiment")
#: Models that play games on this machine.
HERE = ("tiny", "smollm2_135m")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What the first run of a process imports is not its own time."""
    for chosen in ("kuhn_grpo", "market_continuous"):
        for model in ("smollm2_135m", "qwen2p5_0p5b"):
            refusal(f"+experiment={chosen}", f"model={model}")


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_is_valid_as_it_is(experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "a key")
    found = composed(f"+experiment={experiment}", *WITHOUT_ITS_PACKAGE.get(experiment, ()))
    check(found)
    assert found.config.name == experiment
    assert not experiment.startswith("market_") or found.config.primary == "continuous"
    why = refusal(f"+experiment={experiment}")
    assert (why is not None) == experiment.startswith("qwen"), why  # too large, and on the hub


@pytest.mark.one_in(7)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.release)])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_with_any_game_and_model_is_valid_or_refused_at_once(
    experiment: str, whole: bool
) -> None:
    chosen, place = f"+experiment={experiment}", EXPERIMENTS.index(experiment)
    config = composed(chosen).config
    algorithm, learner = config.algorithm, config.learner
    plays = isinstance(config, RunConfig)
    games = [env for env in options("env") if env != "market"]
    if whole:
        cases = [(env, model) for env in options("env") for model in HERE if plays]
        # That a market's model plays no game depends on neither: one game stands for all.
        cases += [("market", "tiny_market")] if plays else []
        cases += [(games[0], model) for model in options("model") if model not in HERE or not plays]
    else:  # each experiment another one; those about a game that game
        own = sorted(ABOUT_A_GAME.get(experiment, {(games[place % len(games)], HERE[place % 2])}))
        cases = own[:1]
    found, slow = {}, {}
    for env, model in cases:
        began = time.process_time()  # other tests may have the core
        found[env, model] = refusal(chosen, f"env={env}", f"model={model}")
        if (took := time.process_time() - began) >= 3:
            slow[env, model] = took
    assert slow == {}
    refused = {case: why for case, why in found.items() if why is not None}
    # Each reason is a line, with its key.
    lines = {(*case, line) for case, why in refused.items() for line in why.splitlines()}
    assert {line for line in lines if "=" not in line[-1]} == set()
    able = set(found) - set(refused)
    if experiment in ON_BOARDS:
        every = {(env, model) for env in BOARDS for model in HERE}
    else:
        every = {(env, model) for env in games for model in HERE}
        every |= {("market", model) for model in ("tiny_market", "smollm2_135m")}
    if plays and algorithm.name == "grpo" and learner.batch_size % (3 * algorithm.group_size):
        # A batch of whole groups: those of a game of three have three episodes a game.
        every -= {("openspiel_kuhn3", model) for model in HERE}
    if not plays:
        assert able == set(), "a market has no games"
    elif experiment in WITHOUT_ITS_PACKAGE:
        assert able == set(), "no package, no key"
    elif experiment.startswith("qwen"):  # a model with words, and games of two
        assert {model for _, model in able} <= {"smollm2_135m"}
    else:
        assert able == ABOUT_A_GAME.get(experiment, every) & set(found)
