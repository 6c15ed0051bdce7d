"""Checks of a continuous run across groups, before anything is created."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

from rlforge.config.compose import Composed
from rlforge.config.plugins import EPISODES, EXTRACTIONS, REDACTIONS, SCORERS
from rlforge.config.schema import PolicyConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.decisions.records import WindowGrid, window_start
from rlforge.continuous.decisions.store import check_store
from rlforge.continuous.market.actions import NO_OP, Json
from rlforge.continuous.market.text import describe, forms
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.trading import AgentPrompter, longest_prompt
from rlforge.continuous.market.world import World
from rlforge.continuous.preflight.serving import page_problems
from rlforge.continuous.ruler.scorer import check_judge
from rlforge.engines.base import decoder
from rlforge.errors import (
    ConfigError,
    DamagedError,
    RlforgeError,
    StoreError,
    collected,
    counted,
    raise_all,
    refusals,
)
from rlforge.games.base import View
from rlforge.games.prompts import Prompter
from rlforge.models.load import load_tokenizer, local_copy
from rlforge.preflight.games import opponent_problems
from rlforge.preflight.policy import (
    Problems,
    machine_problems,
    name_problems,
    policy_problems,
    prompt_problems,
    reader_problems,
    reward_problems,
    value_problems,
)
from rlforge.system.hub import check_push
from rlforge.system.values import json_objects


def check_continuous(composed: Composed[ContinuousConfig], *, keys: bool = True) -> None:
    """Raise ConfigError for impossible values and unknown names, or else for contradictions.

    keys: also ask for the API keys and packages that a run would need.
    """
    raise_all(collected(value_problems(composed)) or _continuous_problems(composed, keys=keys))


def _continuous_problems(composed: Composed[ContinuousConfig], *, keys: bool) -> Problems:
    config = composed.config
    yield from policy_problems(composed)
    yield from reward_problems(composed)
    if config.has_market:
        yield from agent_problems(composed, config.market, config.continuous.agents)
    yield from _trader_problems(composed, keys=keys)
    yield from name_problems(composed, "ruler.scoring_method", config.ruler.scoring_method, SCORERS)
    of_source = {
        "market": _market_problems,
        "episodes": _episode_problems,
        "requests": _request_problems,
        "store": _store_problems,
    }
    yield from of_source[config.continuous.source](composed, config)
    if config.continuous.http:
        yield from page_problems(composed, config.serve)
    source = config.continuous.source
    # Trials count outcomes only of a market's agents and of clients.
    if source in ("episodes", "store") and config.deployment.strategy == "ab_test":
        yield composed.error(
            "deployment.strategy",
            f"a trial would never end: continuous.source={source} reports no outcomes; use replace",
        )
    if config.continuous.constrained:
        board = config.model.prompt_template == "board"
        if source != "market" or board:
            found = "model.prompt_template=board" if board else f"continuous.source={source}"
            yield composed.error(
                "continuous.constrained", f"is for agents that answer a market in JSON, not {found}"
            )
    train_on = config.continuous.train_on
    judged = config.ruler.scoring_method == "judge" and train_on in ("score", "mix")
    if judged and source in ("episodes", "requests"):
        yield composed.error(
            "continuous.train_on",
            f"{train_on} would teach answers to please the judge, who reads them, whatever they "
            "are worth; use reward, and continuous.select_by=score to select by the judge",
        )
    if config.continuous.reader_share and not config.market.social:
        yield composed.error(
            "continuous.reader_share", "is for posts in compact text; set market.social=true"
        )
    if config.serve.state_dir is not None:
        yield composed.error("serve.state_dir", "a continuous run keeps its versions with itself")
    # A schedule needs an end to run to.
    if config.learner.schedule != "constant" and config.continuous.windows is None:
        yield composed.error(
            "learner.schedule", "runs over continuous.windows, which has no end; use constant"
        )
    if config.algorithm.replaced_batches:
        yield composed.error(
            "algorithm.dynamic_sampling", "replaces games, and a window's decisions are given"
        )
    if config.learner.train == "full":
        yield composed.error(
            "learner.train", "what is deployed from window to window is an adapter; use lora"
        )
    if keys:
        yield from refusals(lambda: check_judge(config.ruler))
        push = config.store.push
        yield from refusals(lambda: check_push(push, "store.push") if push is not None else None)
        yield from machine_problems(config)


def agent_problems(composed: Composed[PolicyConfig], market: MarketConfig, agents: int) -> Problems:
    """Models that cannot be asked about markets, and prompts about other games."""
    if market.social:
        found = [*reader_problems(composed, "market.social", "social", "markets with it")]
    else:
        found = [*reader_problems(composed, "model.kind", "market", "markets")]
    yield from found
    # The checks below need a model that knows the words of markets.
    if found:
        return
    config = composed.config
    traders = agents + sum(market.traders.values())
    yield from _template_problems(composed, "model.prompt_template", traders)
    if longest_prompt(config) < 1:
        yield composed.error(
            "engine.max_tokens",
            "leaves no room for a prompt in learner.max_train_len="
            f"{config.learner.max_train_len}, of which both are learned from; lower it",
        )
    # A model that is not downloaded yet is checked once it is there.
    if local_copy(config.model) is not None:
        yield from refusals(lambda: check_answers(config, market))


def _template_problems(composed: Composed[PolicyConfig], key: str, traders: int) -> Problems:
    """Find a template of ``key`` that is about other games. traders: all in the market."""
    config = composed.config
    name = attrgetter(key)(config)
    template = Prompter(None, config.prompts).template(name)
    if template.players is not None:
        yield composed.error(
            key,
            f"{name} speaks of a game for {template.players}, and {traders} agents trade in this "
            "market; use chat, or a template of your own (prompts)",
        )
    if lacking := template.lacks(View(player_id=0, observation="", board="")):
        yield composed.error(key, f"{name} shows a {lacking}; markets have none")


def _trader_problems(composed: Composed[ContinuousConfig], *, keys: bool) -> Problems:
    """Find models among ``market.traders`` that cannot be asked."""
    config = composed.config
    names = config.model_traders
    yield from opponent_problems(composed, "market.traders", [*names], (), keys=keys)
    traders = config.continuous.agents + sum(config.market.traders.values())
    for group in ("api", "hf"):
        key = f"traders.{group}.prompt_template"
        name = attrgetter(key)(config)
        found = [*prompt_problems(composed, key, name)]
        yield from found
        if found or not names:
            continue
        yield from _template_problems(composed, key, traders)
        if Prompter(None, config.prompts).template(name).shows_boards_only:
            yield composed.error(key, f"{name} shows boards, and traders read prose; use chat")


def check_answers(config: PolicyConfig, market: MarketConfig) -> None:
    """Raise ConfigError where agents have no room for a prompt or action; loads the tokenizer."""
    tokenizer = load_tokenizer(config.model)
    prompter = AgentPrompter(config, market, tokenizer)
    question = prompter.ask(_fullest_state(market))
    action = "[hold]"
    # An answer must have room for the longest trade of the forms that prompts show.
    if config.model.prompt_template != "board":
        kinds = {"BUY_SHARES": market.predictions > 0, "OPEN_POSITION": bool(market.tickers)}
        shown = [one for one in json_objects(forms(perpetuals=True)) if kinds.get(one["type"])]
        action = max(map(json.dumps, [*shown, NO_OP]), key=len)
    answer = EXTRACTIONS.find(prompter.extraction).write(action)
    tokens = tokenizer.encode(answer, add_special_tokens=False)
    most = config.engine.max_tokens
    if len(tokens) > most:
        raise ConfigError(
            f"engine.max_tokens={most}: an answer with the action {answer} has {len(tokens)} "
            "tokens; raise it to that, and leave room for more in answers of a model that reasons"
        )
    # As the model would write it: a tokenizer may lose characters.
    if prompter.read(question, decoder(tokenizer)(tokens)).action is None:
        raise ConfigError(
            f"model.prompt_template={config.model.prompt_template} "
            f"model.action_extraction={config.model.action_extraction}: {answer!r}, as the model "
            "would write it, is not read as an action; language models need prompt_template=chat, "
            "tiny_market prompt_template=board and action_extraction=bracket"
        )


def _fullest_state(market: MarketConfig) -> Json:
    world = World(market)
    world.join("agent")
    crowd = Crowd(world)
    # Towards the end of an episode the feed and the memory are full.
    for _ in range(market.episode_ticks - 1):
        crowd.act()
        world.tick()
    return max(map(world.state, world.agent_ids), key=lambda state: len(describe(state)))


def _market_problems(composed: Composed[ContinuousConfig], config: ContinuousConfig) -> Problems:
    """Find windows that are never ready, with too few decisions, or outcomes that come late."""
    window, market = config.window, config.market
    ticks = window.minutes / market.tick_minutes
    if window.min_trajectories_per_agent > ticks:
        yield composed.error(
            "window.min_trajectories_per_agent",
            f"an agent decides once per tick, and a window has {ticks:g}: window.minutes="
            f"{window.minutes:g}, market.tick_minutes={market.tick_minutes:g}",
        )
    if window.min_agents > config.continuous.agents:
        yield composed.error(
            "window.min_agents", f"continuous.agents={config.continuous.agents} of them learn"
        )
    yield from _start_problems(composed, config)
    grace = window.grace_seconds
    short = grace is not None and not config.windows_end_settled and grace < config.episode_s
    # With less completeness, late outcomes only make a window smaller.
    if short and window.completeness == 1 and window.mode == "windowed":
        yield composed.error(
            "window.grace_seconds",
            f"outcomes are known at the end of an episode, {config.episode_s:g} seconds at most "
            "after a decision; null waits as long as it takes",
        )
    staleness = config.max_staleness
    assert staleness is not None, "decisions are of this run"
    if staleness < config.windows_waited and window.mode == "windowed":
        yield composed.error(
            "continuous.max_staleness",
            f"{config.windows_waited} windows, each with a new version, may end while one waits "
            "for its outcomes; null allows for that",
        )
    keep = config.store.keep_windows
    if keep is not None and keep < config.windows_open:
        yield composed.error(
            "store.keep_windows",
            f"outcomes of the last {counted(config.windows_open, 'window')} may still come; "
            "keep as many",
        )


def _start_problems(composed: Composed[ContinuousConfig], config: ContinuousConfig) -> Problems:
    window = config.window
    try:
        start = window_start(config.continuous.start)
    except RlforgeError as error:
        yield composed.error("continuous.start", str(error))
        return
    if (
        window.clock == "simulated"
        and WindowGrid(window.minutes).id_of(start) != config.continuous.start
    ):
        yield composed.error(
            "continuous.start", f"no window of {window.minutes:g} minutes begins then"
        )


def _request_problems(composed: Composed[ContinuousConfig], config: ContinuousConfig) -> Problems:
    source = "continuous.source=requests"
    if not config.continuous.http:
        yield composed.error("continuous.http", f"answers nothing; {source} needs it true")
    if config.window.clock != "wall":
        yield composed.error("window.clock", f"requests arrive by the wall clock ({source})")
    if config.requests.redact is not None:
        yield from name_problems(composed, "requests.redact", config.requests.redact, REDACTIONS)


def _episode_problems(composed: Composed[ContinuousConfig], config: ContinuousConfig) -> Problems:
    source = "continuous.source=episodes"
    if config.episodes.function is None:
        yield composed.error("episodes.function", f"names no function, and {source} calls one")
    else:
        yield from name_problems(composed, "episodes.function", config.episodes.function, EPISODES)
    if config.window.clock != "simulated":
        yield composed.error("window.clock", f"{source} needs simulated: it plays when it may")
    if config.window.grace_seconds:
        yield composed.error("window.grace_seconds", "episodes end with their window; use null")
    yield from _start_problems(composed, config)


def _store_problems(composed: Composed[ContinuousConfig], config: ContinuousConfig) -> Problems:
    path, source = config.store.path, "continuous.source=store"
    if path is None:
        yield composed.error("store.path", f"names no store, and {source} reads one")
        return
    try:
        check_store(Path(path))
    except (DamagedError, StoreError) as error:
        yield composed.error("store.path", str(error))
    if config.store.push is not None or config.store.keep_windows is not None:
        key = "push" if config.store.push is not None else "keep_windows"
        yield composed.error(f"store.{key}", f"the store is only read with {source}")
