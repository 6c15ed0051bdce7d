"""What is known to be wrong before a continuous run starts, and where experiments belong."""

import re
from functools import partial
from pathlib import Path

import pytest
from tests.factories import byte_tokenizer, causal_folder, model_files
from tests.harness.composed import composed as configured

import rlforge
from rlforge.config.compose import from_yaml, to_yaml
from rlforge.config.keys import conf_dir
from rlforge.config.roots import compose_any, read_run, root_of
from rlforge.config.schema import RunConfig
from rlforge.config.sft import SftConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.loop.episodes import Session
from rlforge.continuous.market.text import forms
from rlforge.continuous.preflight.continuous import check_answers, check_continuous
from rlforge.errors import ConfigError
from rlforge.preflight.model import other_problems
from rlforge.preflight.plan import make_plan
from rlforge.preflight.sft import check_sft
from rlforge.system.hardware import Machine


async def play(session: Session) -> float:
    return 1.0


def plays_at_once(session: Session) -> float:
    """What refusals.txt names as no function of episodes: it does not wait."""
    return 1.0


class Player:
    async def __call__(self, session: Session) -> float:
        return 1.0


PLAYER = Player()


composed = partial(configured, root=ContinuousConfig)


def checked(*overrides):
    found = composed(*overrides)
    check_continuous(found, keys=False)
    assert isinstance(found.config, ContinuousConfig)
    return found.config


def refused(message, *overrides):
    """Asserts that these overrides are refused with the message, which it gives back."""
    with pytest.raises(ConfigError, match=message) as caught:
        check_continuous(composed(*overrides), keys=False)
    return str(caught.value)


EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("market_*.yaml"))


def test_presets_differ_from_the_first_in_one_line_each():
    folder = conf_dir() / "experiment"
    for name in EXPERIMENTS:
        lines = (folder / f"{name}.yaml").read_text().splitlines()
        own = [line for line in lines if not line.startswith(("#", "name:"))]
        if name != "market_continuous":
            base = "defaults: [market_continuous]"
            # A window of one agent waits for one; agents talk in a market that is made for it.
            follows = name in ("market_one_agent", "market_social")
            single = base in own
            assert len(own) - follows == 1 + single, name


def test_the_preset_of_language_models_is_the_documents_configuration():
    """``GRPOConfig`` of the document, field by field."""
    config = composed("learner=window_grpo").config
    assert config.learner.mini_batch_size == 4
    assert config.learner.gradient_accumulation_steps == 2
    assert config.learner.learning_rate == 1e-6
    assert config.learner.epochs == 10
    assert config.learner.max_train_len == 2048
    assert (config.algorithm.kl.coef, config.algorithm.kl.to) == (0.05, "previous")
    assert (config.continuous.threshold, config.continuous.min_selected) == (0.5, 5)
    assert config.continuous.selects_by == "score"
    assert (config.window.minutes, config.window.min_agents) == (60.0, 3)


def test_a_run_from_requests_needs_no_market_and_options_of_whole_groups_may_bring_other_keys():
    assert not checked("+experiment=served_answers", "model=tiny").has_market
    checked("+experiment=served_answers", "ruler=judge", "continuous.select_by=score")
    checked("learner=tiny_ppo")


@pytest.mark.parametrize(("key", "value"), [("push", "me/data"), ("keep_windows", "9")])
def test_a_store_that_is_read_is_not_written_to(tmp_path, key, value):
    TrajectoryStore(tmp_path / "store").close()
    given = ["continuous.source=store", f"store.path={tmp_path / 'store'}"]
    checked(*given)
    message = r"the store is only read with continuous\.source=store"
    refused(message, *given, f"store.{key}={value}")


def test_looking_at_an_experiment_finds_out_what_it_is():
    assert root_of(["+experiment=market_ppo"]) is ContinuousConfig
    assert root_of(["+experiment=kuhn_grpo"]) is RunConfig
    assert root_of(["seed=3"]) is RunConfig
    assert root_of(["kind=continuous"]) is ContinuousConfig


def test_an_own_experiment_belongs_where_the_one_it_builds_on_does(tmp_path):
    (tmp_path / "experiment").mkdir()
    mine = tmp_path / "experiment" / "mine.yaml"
    mine.write_text("# @package _global_\ndefaults: [market_rolling]\nname: mine\nseed: 4\n")
    config = compose_any(["+experiment=mine"], tmp_path).config
    assert (config.primary, config.seed) == ("continuous", 4)


def test_a_run_knows_what_it_is_of(tmp_path):
    config = composed("+experiment=market_a2c").config
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert read_run(tmp_path, ContinuousConfig) == config
    assert from_yaml(tmp_path / "config.yaml", ContinuousConfig) == config
    with pytest.raises(ConfigError, match="is a continuous run"):
        read_run(tmp_path, RunConfig)
    with pytest.raises(ConfigError, match="is this a run directory"):
        read_run(tmp_path / "nowhere", ContinuousConfig)


def test_the_graph_puts_engine_and_learner_on_the_cards_there_are():
    config = composed().config
    graph = make_plan(config, Machine(cpus=4, gpus=2))
    assert sum(node.num_gpus * node.replicas for node in graph.nodes) == 2.0
    assert {edge.source for edge in graph.edges} <= {node.name for node in graph.nodes}
    assert make_plan(config, Machine(cpus=2, gpus=0)).node("learner").placement == "cpu"


@pytest.mark.parametrize("name", ["play", "PLAYER"])
def test_by_default_all_answers_of_episodes_are_learned_from(name):
    given = ["continuous.source=episodes", "window.clock=simulated"]
    given += [f"episodes.function={__name__}:{name}"]
    config = checked(*given)
    assert config.continuous.selects_by == "all"
    assert config.window.avg_reward_threshold is None
    # One answer in each episode is enough for an agent to count.
    assert config.episodes.per_agent >= config.window.min_trajectories_per_agent
    assert config.episodes.per_agent >= config.window.min_actions
    assert composed(*given, "continuous.select_by=score").config.continuous.selects_by == "score"


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    """The files of a model that checks read: its tokenizer, of about three bytes a token."""
    said = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    tokenizer = byte_tokenizer(
        forms(perpetuals=True), ["<eos>"], 600, eos_token="<eos>", chat_template=said
    )
    folder = tmp_path_factory.mktemp("models") / "text"
    return model_files(tokenizer, folder, '{"model_type": "llama"}')


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.max_tokens=4"], r"engine\.max_tokens=4: an answer .* has \d+ tokens; raise it"),
        (["engine.max_model_len=700"], r"engine\.max_model_len=700: .* raise it to \d{4}"),
        (["learner.max_train_len=800"], r"learner\.max_train_len=800: .* raise it to \d{4}"),
        (
            ["+experiment=market_continuous", "engine.max_tokens=4", "engine.max_model_len=128"],
            r"engine\.max_model_len=128: .* raise it to \d{3}",
        ),
        (
            ["model.prompt_template=board", "model.action_extraction=number"],
            r"model\.action_extraction=number: .*is not read as an action",
        ),
    ],
)
def test_a_model_that_could_not_take_part_is_refused(language_model, overrides, message):
    given = ["model=hf", f"model.name={language_model}"]
    long = ["engine.max_model_len=4096", "learner.max_train_len=null"]
    config = checked(*given, *long)
    check_answers(config, config.market)
    given += overrides if overrides[0].startswith("+") else [*long, *overrides]
    refused(message, *given)
    config = composed(*given).config
    with pytest.raises(ConfigError, match=message):
        check_answers(config, config.market)


def test_a_market_in_prose_is_refused_where_the_last_prompts_of_an_episode_do_not_fit(
    language_model,
):
    """Also to be learned from with ``rlforge sft``."""
    given = ["+experiment=smollm2_market", "model=hf", f"model.name={language_model}"]
    given += ["engine.max_model_len=450", "data=value_trader", "engine.max_tokens=64"]
    with pytest.raises(ConfigError, match=r"engine\.max_model_len=450: .* raise it to"):
        check_sft(configured(*given, root=SftConfig), keys=False)


@pytest.mark.parametrize("extraction", ["number", "bracket", "last_line", "boxed", "raw"])
def test_language_models_take_part_whatever_finds_their_actions_in_games(
    language_model, extraction
):
    given = ["model=hf", f"model.name={language_model}", f"model.action_extraction={extraction}"]
    checked(*given, "engine.max_model_len=4096", "learner.max_train_len=null")


def test_the_documents_grpo_trains_in_the_market_of_the_tiny_trader(language_model):
    grpo = rlforge.GRPOConfig(model_name=str(language_model), max_length=4096)
    for experiment in ("market_continuous", "smollm2_market"):
        engine = checked(f"+experiment={experiment}", *grpo.overrides()).engine
        assert (engine.max_model_len, engine.max_tokens) == (4096, 512)


def test_a_local_model_that_cannot_trade_is_refused_with_the_keys_of_traders(tmp_path):
    plain = ["market=default", "continuous.source=market"]
    nowhere = composed(*plain, "market.traders.hf:./nowhere=1").config
    (said,) = other_problems(nowhere)
    assert said.startswith("market.traders: hf:./nowhere: ")
    rival = causal_folder(tmp_path / "rival", "gpt2")
    short = composed(*plain, f"market.traders.hf:{rival}=1", "traders.hf.max_tokens=8").config
    (said,) = other_problems(short)
    assert re.match(rf"market.traders: hf:{rival}: traders.hf.max_tokens=8: .*raise it to", said)
    fits = [f"market.traders.hf:{rival}=1", "traders.hf.max_tokens=200"]
    assert not [*other_problems(composed(*plain, *fits).config)]
