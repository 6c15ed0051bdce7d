"""Everything that is chosen by name: ``KINDS`` by a configuration, others by the package itself."""

from __future__ import annotations

from rlforge.config.names import Kind


def _in(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Targets in a module of rlforge; renamed: where a Thing has another name there."""
    things = {**{name: name for name in names}, **renamed}
    return {name: f"rlforge.{module}:{thing}" for name, thing in things.items()}


MODES = Kind(
    "modes",
    "sampling mode",
    "pool.mode",
    "a function from a PoolView to the weight of each opponent",
    _in(
        "league.modes",
        *("fixed", "mirror", "lagged", "random", "match_quality", "ts_dist", "exploration"),
        *("prioritized", "fictitious", "nash", "alpha_rank"),
    ),
)
ALGORITHMS = Kind(
    "algorithms",
    "algorithm",
    "algorithm",
    "a class of (config, max_tokens) with config_class, targets and loss",
    _in(
        "algorithms.policy_gradient",
        reinforce="Reinforce",
        grpo="Grpo",
        window_grpo="WindowGrpo",
        a2c="A2c",
        ppo="Ppo",
        supervised="Supervised",
    ),
    needs=("config_class", "targets", "loss"),
)
FINAL_REWARDS = Kind(
    "final_rewards",
    "reward transform",
    "rewards.final",
    "a dataclass whose instances are called with (rewards, env_id)",
    _in(
        "rewards.final",
        win_draw_loss="WinDrawLoss",
        role_advantage="RoleAdvantage",
        role_advantage_by_env="RoleAdvantageByEnv",
        scale="Scale",
        clamp="Clamp",
    ),
    needs=("__dataclass_fields__",),
)
STEP_REWARDS = Kind(
    "step_rewards",
    "reward transform",
    "rewards.step",
    "a dataclass with adds_feedback whose instances are called with (trajectory, step_index, "
    "base_reward)",
    _in(
        "rewards.step",
        format_reward="FormatReward",
        invalid_move_penalty="InvalidMovePenalty",
        discount="Discount",
        scale="Scale",
        clamp="Clamp",
    ),
    needs=("__dataclass_fields__", "adds_feedback"),
)
SAMPLING_REWARDS = Kind(
    "sampling_rewards",
    "reward transform",
    "rewards.sampling",
    "a dataclass whose instances are called with the steps of a batch",
    _in(
        "rewards.sampling",
        normalize="Normalize",
        normalize_by_env="NormalizeByEnv",
        scale="Scale",
        clamp="Clamp",
    ),
    needs=("__dataclass_fields__",),
)
PLAYERS = Kind(
    "players",
    "player",
    "pool.fixed_opponents, eval.opponents",
    "a class of (env, rng) with act(view)",
    {
        **_in("continuous.market.game", "noise_trader", "momentum_trader", "value_trader"),
        **_in("games.players", random_legal="RandomLegal", win_block="WinBlock", minimax="Minimax"),
    },
    families="rlforge.games.players:FAMILIES",
    forms=("mcts:SIMULATIONS",),
)
SOURCES = Kind(
    "sources",
    "game source",
    "env.train.N.source",
    "a module, or a class without arguments, with make(env, seed), check(env) and env_ids()",
    {
        **{name: f"rlforge.games.{name}" for name in ("textarena", "openspiel")},
        "market": "rlforge.continuous.market.game",
    },
    needs=("make", "check", "env_ids"),
    called=False,
)
PROMPTS = Kind(
    "prompts",
    "prompt template",
    "model.prompt_template",
    "a Template",
    {
        name: f"rlforge.games.prompts:{name.upper().replace('-', '_')}"
        for name in (
            *("default", "chat", "chat-actions", "board"),
            *("qwen3-zs", "qwen3-sp", "qwen3-reasoning", "gemma3-zs", "llama-instruct-zs"),
        )
    },
    needs=("render", "messages", "reply"),
    called=False,
    families="rlforge.games.originals:TEMPLATES",
)
EXTRACTIONS = Kind(
    "extractions",
    "action extraction",
    "model.action_extraction",
    "an Extractor",
    _in(
        "games.actions",
        boxed="BOXED",
        bracket="BRACKET",
        json="JSON",
        last_line="LAST_LINE",
        number="NUMBER",
        raw="RAW",
    ),
    needs=("read", "request", "feedback"),
    called=False,
    families="rlforge.games.originals:EXTRACTIONS",
)
SINKS = Kind(
    "sinks",
    "metric sink",
    "tracker.sinks",
    "a dataclass with open(run, name), write(step, scalars), rewind(step) and close()",
    _in("record.sinks", jsonl="JsonlSink", tensorboard="TensorBoardSink", wandb="WandbSink"),
    needs=("__dataclass_fields__", "open", "write", "rewind", "close"),
)
SCORERS = Kind(
    "scorers",
    "scorer",
    "ruler.scoring_method",
    "a class of (config, seed, local) with score and learn",
    {
        **_in("continuous.ruler.preference", preference="PreferenceScorer"),
        **_in("continuous.ruler.regression", regression="RegressionScorer"),
        **_in("continuous.ruler.judge", judge="JudgeScorer"),
    },
)
MODELS = Kind(
    "models",
    "kind of model",
    "model.kind",
    "a MadeModel",
    {
        "hf": "rlforge.models.load:resolve_model",
        "tiny": "rlforge.models.made:TINY",
        "tiny_market": "rlforge.continuous.loop.tiny_market:TINY_MARKET",
        "tiny_social": "rlforge.continuous.loop.tiny_market:TINY_SOCIAL",
        "smollm2_135m": "rlforge.models.made:SMOLLM2_135M",
    },
    needs=("cache_name", "create"),
    called=False,
)
ENGINES = Kind(
    "engines",
    "engine",
    "engine.name",
    "a function from (config, device, threads, gpus) to a LocalEngine",
    {
        "auto": "rlforge.learner.engine_trial:auto",
        **_in("engines.registry", "transformers", "vllm"),
    },
)

REDACTIONS = Kind(
    "redactions",
    "redaction",
    "requests.redact",
    "a function of (messages or prompt, answer) that returns what to keep of the first, or None",
    {},
)

EPISODES = Kind(
    "episodes",
    "episode function",
    "episodes.function",
    "an async function of a Session that returns the reward",
    {},
    awaited=True,
)

RUN_KINDS = Kind(
    "run_kinds",
    "kind of run",
    "kind",
    "a rlforge.kinds.RunKind",
    {
        "games": "rlforge.run.games:GAMES",
        "sft": "rlforge.run.supervised:SUPERVISED",
        "continuous": "rlforge.continuous.loop.kind:CONTINUOUS",
        "serve": "rlforge.continuous.serving.kind:SERVING",
    },
    needs=("root", "check", "nodes", "controller"),
    called=False,
)

TEACHERS = Kind(
    "teachers",
    "source of answers",
    "data.players",
    "a rlforge.run.supervised.Players",
    _in("run.supervised", games="PLAYERS") | {"market": "rlforge.continuous.loop.teachers:TRADERS"},
    called=False,
)

# The core imports nothing of the wings ``lab`` and ``continuous``: it finds them by name.
MEASURES = Kind(
    "measures",
    "measure of a policy",
    "eval.exploitability",
    "a class with check(env), which raises ConfigError for what it cannot measure",
    _in("lab.exact.table", exploitability="Questions"),
    needs=("check",),
)

OBSERVERS = Kind(
    "observers",
    "observer",
    "a run of games",
    "a class of (RunContext) with the methods of rlforge.run.observers.Observer",
    {
        "recorder": "rlforge.run.observers:Recorder",
        "sentinel": "rlforge.lab.sentinel.guard:Guard",
        "exact": "rlforge.lab.exact.observer:ExactMeasure",
    },
    needs=("updated", "evaluated", "state_dict"),
    chosen=False,
)

SIGNALS = Kind(
    "signals",
    "signal",
    "signals",
    "a rlforge.record.signals.Condition",
    {
        **_in(
            "record.conditions.play",
            *("turn_limit", "time_limit", "context_limit", "failed_games", "cut_answers", "format"),
            *("illegal_moves", "no_batch", "one_seat", "one_opponent", "below_start"),
        ),
        **_in(
            "record.conditions.learning",
            *("no_advantage", "equal_rewards", "no_gradient", "skipped_steps", "nan_steps"),
            *("not_moved", "moved_far", "logprob_gap", "importance", "clipped", "low_entropy"),
            *("high_entropy", "waiting", "idle", "thrown_away", "too_long", "warmup"),
        ),
    },
    needs=("threshold", "check", "figures"),
    called=False,
    chosen=False,
)

LOOKS = Kind(
    "looks",
    "look into runs",
    "a run of the API",
    "a module",
    {"forks": "rlforge.lab.forks", "verify": "rlforge.lab.verify.check"},
    called=False,
)

COMMANDS = Kind(
    "commands",
    "command",
    "rlforge NAME",
    "a function or a typer.Typer",
    {
        "continuous": "rlforge.continuous.cli.windows:continuous",
        "windows": "rlforge.continuous.cli.windows:app",
        **_in("continuous.cli.serving", "serve", "deploy", "rollback", "deployments"),
        "fork": "rlforge.lab.cli.forks:fork",
        "analyse": "rlforge.lab.cli.forks:analyse",
        "verify": "rlforge.lab.cli.verify:verify",
        "ladder": "rlforge.lab.cli.ladder:ladder",
        "exploit": "rlforge.lab.cli.exploit:exploit",
    },
    chosen=False,
)

KINDS = (
    *(MODES, ALGORITHMS, FINAL_REWARDS, STEP_REWARDS, SAMPLING_REWARDS, PLAYERS, SOURCES),
    *(PROMPTS, EXTRACTIONS, SINKS, SCORERS, MODELS, ENGINES),
    *(REDACTIONS, EPISODES, RUN_KINDS),
)
"""Everything that a configuration chooses and that others can add."""
