"""docs/unstable_baselines.md points only at what is there."""

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness.composed import composed

from rlforge.config.compose import compose
from rlforge.config.keys import alike, all_keys
from rlforge.config.plugins import EXTRACTIONS, PROMPTS
from rlforge.config.unstable_names import ARGUMENTS, COMPONENTS
from rlforge.errors import ConfigError
from rlforge.launch import check

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "unstable_baselines.md").read_text()
VALUES, TUNED, NAMES = re.split(r"\n### What rlforge|\n## Components", PAGE)


def rows_of(text: str) -> list[list[str]]:
    """The cells of the rows of all tables, without their headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("UnstableBaselines", "Value", "Key")]


ROWS = rows_of(NAMES)
PLACES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})
KEYS_ASIDE = {key for row in ROWS for key in re.findall(r"`([a-z_]+\.[a-z_]+)(?:: \w+)?`", row[2])}


QUICK_START, BY_RLFORGE = (compose([f"qwen3_1p7b_simpletak{end}"]).config for end in ("", "_tuned"))


def in_code(cell: str) -> Any:
    """The value of a cell: YAML in backticks."""
    assert cell == f"`{cell[1:-1]}`", cell
    return yaml.safe_load(cell[1:-1])


def value_at(config: Any, key: str) -> Any:
    """What a configuration has at a dotted key, as plain data."""
    for part in key.split("."):
        config = config[int(part)] if part.isdigit() else getattr(config, part)
    return config


def said_of(found: Any, said: Any) -> Any:
    """The part of a value that the page speaks of: of entries of lists the keys that it gives."""
    if isinstance(said, list) and said and isinstance(said[0], dict):
        entries = [one if isinstance(one, dict) else vars(one) for one in found]
        assert len(entries) == len(said)
        pairs = zip(entries, said, strict=True)
        return [{key: entry.get(key) for key in given} for entry, given in pairs]
    return found


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a configuration with its value."""
    nested = isinstance(config, list) and config and dataclasses.is_dataclass(config[0])
    if dataclasses.is_dataclass(config) or nested:
        for key, one in enumerate(config) if nested else vars(config).items():
            yield from leaves(one, f"{prefix}{key}.")
    else:
        yield prefix.removesuffix("."), config


@pytest.mark.parametrize("row", rows_of(VALUES), ids=lambda row: row[2].strip("`"))
def test_the_preset_has_the_effective_values_of_the_script(row):
    _, there, key, here = row
    assert there
    said = in_code(here)
    assert said_of(value_at(QUICK_START, key.strip("`")), said) == said


def test_the_other_preset_differs_as_the_page_says_and_gives_a_reason():
    differences = {
        key: (value, other)
        for (key, value), (_, other) in zip(leaves(QUICK_START), leaves(BY_RLFORGE), strict=True)
        if value != other
    }
    rows = rows_of(TUNED)
    assert {in_code(key): (in_code(a), in_code(b)) for key, a, b, _ in rows} == differences
    assert all(why for *_, why in rows)


def test_the_presets_start_with_what_the_page_names(monkeypatch):
    """The one needs a package and a key, the other neither."""
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    check(composed("qwen3_1p7b_simpletak_tuned"))
    plain = ("model.prompt_template=qwen3-zs", "model.action_extraction=boxed")
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY"):
        check(composed("qwen3_1p7b_simpletak", *plain))
    if importlib.util.find_spec("unstable") is None:
        with pytest.raises(ConfigError, match="pip install --no-deps unstable-rl"):
            check(composed("qwen3_1p7b_simpletak"))


def exists(name: str) -> bool:
    """Whether there is a module, class, function or method called ``name``."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, parts[cut:], found)
        except AttributeError:
            return False
        return True
    return False


def test_every_row_has_a_place():
    assert len(ROWS) > 100
    assert [row for row in ROWS if len(row) != 3 or "`" not in row[1]] == []


def test_places_and_keys_in_remarks_exist():
    assert [name for name in PLACES if name.startswith("rlforge.") and not exists(name)] == []
    assert {name for name in PLACES if not name.startswith("rlforge.")} <= set(all_keys())
    keys = KEYS_ASIDE - {"pool.json", "completion.text", "rlforge.run.controller"}
    assert keys
    assert keys <= set(all_keys())


def test_templates_and_extractions_exist():
    text = PAGE.split("## Prompt templates")[1]
    templates, extractions = text.split("Action\nextractions:")
    for name in re.findall(r"`([\w-]+)`", templates.split(":", 1)[1]):
        assert PROMPTS.problem(name) is None
    for name in re.findall(r"`([\w-]+)`", extractions.split(".")[0]):
        assert EXTRACTIONS.problem(name) is None


def left_names() -> dict[str, set[str]]:
    """Every name in the left column of the tables, and what any of its rows has in its place."""
    found: dict[str, set[str]] = {}
    for left, middle, _ in ROWS:
        for quoted in re.findall(r"`([^`]+)`", left):
            if not re.search(r"[<…]", quoted):  # else it is a namespace of metrics
                for name in re.findall(r"[A-Za-z_]\w*", quoted.removesuffix(".py")):
                    found.setdefault(name, set()).update(re.findall(r"`([^`]+)`", middle))
    return found


def test_names_of_the_left_column_are_answered_with_what_is_in_their_place():
    unanswered = {}
    of_modes = rows_of(NAMES.split("## Sampling modes")[1].split("##")[0])
    parts = {part for row in of_modes for part in row[0].strip("`").split("-")}
    names = {name: places for name, places in left_names().items() if name not in parts}
    assert len(names) > 120
    keys = all_keys()
    for name, places in names.items():
        component = COMPONENTS.get(name, ("", ""))[1]
        said = alike(name, keys)  # the end of the message of ``compose``, which takes long
        if "; " not in said and name not in keys:
            with pytest.raises(ConfigError) as refused:
                compose([f"{name}=1"])
            said = str(refused.value)
        here = any(re.search(rf"(?<![\w.]){re.escape(place)}(?![\w.])", said) for place in places)
        # Words such as kind are the ends of keys here, too, which are nearer.
        near = "; did you mean " in said and name not in ARGUMENTS
        if not (name in keys or here or near or (component and f"name: {component}" in said)):
            unanswered[name] = said
    assert unanswered == {}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("line", "mend"),
    [
        ("num_actors=2", "did you mean engine.num_engines?"),
        ("collector.num_actors=2", "did you mean engine.num_engines?"),
        ("+evaluation_envs=[]", "did you mean env.eval?"),
        ("ckpt_root=here", "did you mean run_dir?"),
        ("num_players=3", "did you mean env.train.0.num_players, of each environment?"),
        ("FLUSH_EVERY=8", "did you mean tracker.flush_every_s?"),
        ("RewardForFormat=1.5", "there is rewards.step=[{name: format_reward}]"),
        ("tau=0.001", "there is decay of an entry of rewards.final"),
        ("submit_prompt=1", "there is rlforge.engines.base.Generator.generate"),
        ("env.train.0.env_id=Nim-v0-train", "did you mean env.train.0.id?"),
        ("eval.opponents=[openai/gpt-4o-mini]", "or openrouter:openai/gpt-4o-mini?"),
        ("pool.mode=ts-dist", "did you mean ts_dist?"),
        ("pool.mode=match-quality", "did you mean match_quality?"),
        ("rewards.step=[{name: PenaltyForInvalidMove}]", "did you mean invalid_move_penalty?"),
        ("rewards.final=[{name: role_advantage, tau: 0.001}]", "did you mean decay?"),
        ("rewards.final=[{name: win_draw_loss, win_reward: 2.0}]", "did you mean win?"),
    ],
)
def test_a_migrating_user_is_told_the_name_here(line, mend):
    with pytest.raises(ConfigError) as refused:
        check(compose([line]), keys=False)
    assert mend in str(refused.value)
