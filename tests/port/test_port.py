"""Launch scripts of UnstableBaselines become experiments; nothing of them is executed."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlforge.config.compose import compose
from rlforge.config.schema import RunConfig
from rlforge.errors import ConfigError
from rlforge.games.originals import absent_noted
from rlforge.launch import check
from rlforge.port.configuration import port
from rlforge.port.launch_script import calls_of
from rlforge.port.script_values import Unread
from rlforge.port.unstable_package import EFFECTIVE, POSITIONS, POSITIONS_2

SCRIPTS = Path(__file__).parent / "launch_scripts"


def composed(script: Path, folder: Path) -> RunConfig:
    """The checked configuration of what a script was made into, on three cards."""
    experiment = folder / "experiment" / f"{script.stem}.yaml"
    experiment.parent.mkdir(exist_ok=True)
    experiment.write_text(port(script).yaml)
    result = compose([f"+experiment={script.stem}", "hardware=multi_gpu"], folder)
    with absent_noted():
        check(result, keys=False)
    return result.config


def test_the_quick_start_becomes_its_preset(tmp_path):
    ported = composed(SCRIPTS / "quick_start.py", tmp_path)
    preset = compose(["qwen3_1p7b_simpletak", "hardware=multi_gpu"]).config
    assert ported.model.name.casefold() == preset.model.name.casefold()
    assert (ported.name, ported.tracker.wandb_project, ported.tracker.wandb_mode) == (
        *("demo", "UB"),
        "online",
    )
    labels = {
        "name": preset.name,
        "model": dataclasses.replace(ported.model, name=preset.model.name),
        "tracker": preset.tracker,
    }
    assert dataclasses.replace(ported, **labels) == preset
    assert port(SCRIPTS / "quick_start.py").remarks == ()


def test_names_numbers_and_transforms_of_a_function_are_read(tmp_path):
    config = composed(SCRIPTS / "opponents.py", tmp_path)
    assert (config.model.name, config.name) == ("meta-llama/Llama-3.2-3B-Instruct", "opponents")
    lora = config.model.lora
    assert (lora.rank, lora.alpha, lora.dropout) == (16, 32, 0.05)
    assert lora.target_modules == ["q_proj", "k_proj", "v_proj", "o_proj"]
    engine = config.engine
    assert (engine.temperature, engine.top_p, engine.max_tokens) == (1.0, 0.9, 1024)
    assert [(env.id, env.prompt_template) for env in (*config.env.train, *config.env.eval)] == [
        ("LiarsDice-v0-train", "unstable:llama-instruct-zs"),
        ("Nim-v0-train", "unstable:llama-instruct-zs"),
        ("KuhnPoker-v0-train", "unstable:default"),
    ]
    assert config.buffer.max_size == 768
    assert config.pool.mode == "match_quality"
    assert config.pool.fixed_opponents == [
        *("openrouter:openai/gpt-4o-mini", "openrouter:qwen/qwen-2.5-7b-instruct")
    ]
    assert config.rewards.final == [
        {"name": "win_draw_loss", "draw": -0.2},
        {"name": "role_advantage", "decay": 0.99, "order": "update_then_subtract"},
    ]
    assert config.rewards.step == [
        {"name": "format_reward", "reward": 0.1, "penalty": -0.1},
        {"name": "invalid_move_penalty", "penalty": -0.5},
    ]
    assert config.rewards.sampling == [{"name": "normalize", "z_score": False}]
    learner = config.learner
    assert (learner.grad_clip, learner.gradient_checkpointing, learner.save_every) == (1.0, True, 2)
    assert (learner.mini_batch_size, learner.learning_rate, learner.total_updates) == (2, 5e-6, 50)
    assert (config.eval.max_games_per_checkpoint, config.eval.games) == (20, 20)
    assert config.collector.filter_opponent_invalid


def test_what_has_no_counterpart_is_a_line_with_its_place_and_the_rest_is_written():
    remarks = port(SCRIPTS / "opponents.py").remarks
    lines = (SCRIPTS / "opponents.py").read_text().splitlines()
    for part, said in {
        "StepBuffer.remote(": "LengthBonus: a transform of yours is named as module:Class here",
        "Games.remote(": "num_actors: only running the script gives int(…); set engine.num_engines",
        "Tracker.remote(": "set name",
        "StandardLearner.options": "shuffle=True: has no counterpart",
        "add_fixed.remote(name=": "prior_mu=27.0: ratings begin at 25",
    }.items():
        number = next(place for place, line in enumerate(lines, 1) if part in line)
        [remark] = [one for one in remarks if said in one]
        assert remark.startswith(f"opponents.py:{number}: ")
    lagged = " ".join(port(SCRIPTS / "lagged.py").remarks)
    assert "unstable.experimental.Curriculum(…) is not known" in lagged
    assert "use_dora=True: has no counterpart" in lagged
    assert "ckpt_root='somewhere': versions are in checkpoints/" in lagged


def test_version_2_plays_all_seats_or_a_fixed_opponent(tmp_path):
    config = composed(SCRIPTS / "standard.py", tmp_path)
    assert (config.pool.mode, config.collector.learned_seats) == ("fixed", "all")
    assert config.pool.fixed_opponents == ["openrouter:google/gemini-2.0-flash-lite-001"]
    assert (config.pool.rating_beta, config.learner.total_updates) == (5.0, 99)
    assert (config.eval.continuous, config.eval.every) == (False, 0)
    assert (config.rewards.final, config.name) == ([], "fixed-4b")
    assert [env.prompt_template for env in config.env.eval] == [
        *("unstable:qwen3-zs", "unstable:qwen3-sp")
    ]


def test_the_runtime_object_has_its_own_defaults(tmp_path):
    config = composed(SCRIPTS / "short.py", tmp_path)
    assert (config.learner.batch_size, config.buffer.max_size) == (128, 256)
    assert (config.learner.learning_rate, config.learner.grad_clip) == (2e-5, 0.2)
    assert config.rewards == compose(["rewards=unstable_baselines"]).config.rewards
    assert (config.engine.temperature, config.engine.max_loras) == (0.6, 8)
    assert config.model.lora.target_modules[-1] == "down_proj"
    assert config.eval.opponents == ["openrouter:openai/gpt-4o-mini"]
    assert config.learner.total_updates == 59


def test_a2c_of_version_2_learns_from_episodes(tmp_path):
    config = composed(SCRIPTS / "a2c.py", tmp_path)
    assert (config.algorithm.name, config.buffer.kind) == ("a2c", "episode")
    assert (config.algorithm.gae_lambda, config.algorithm.value_learning_rate) == (1.0, 1e-4)
    assert config.algorithm.normalize_advantages
    assert (config.learner.batch_size, config.learner.total_updates) == (40, 50)
    assert config.rewards.sampling == []  # its buffer of episodes does not apply them


def test_lagged_opponents_are_all_active_versions_and_an_adapter_is_kept(tmp_path):
    ported = port(SCRIPTS / "lagged.py").yaml
    assert "initial_adapter: outputs/warm/checkpoints/iteration-30" in ported
    assert "lag_range: [0, 3]" in ported
    assert "run_dir:" not in ported


def test_a_script_is_read_and_not_executed(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import os\nos.mkdir('made')\n"
        "N, (A, B) = 3, [1, 2]\nfor N in range(4):\n    pass\n"
        "X = {'a': 1, **{'b': -B}}\nX['c'] = f'{A}-{B}'\nY = [1 / 0, 2 * 3 // 4, 'a' * 9]\n"
        "done = made.options(num_gpus=1).remote(N, X, k=Y, **{'z': X['b']})\n"
    )
    [call] = [one for one in calls_of(script) if one.name == "made"]
    assert not (tmp_path / "made").exists()
    assert call.line == 9
    assert call.arguments == (
        Unread(source="N (`for N in range(4)` in line 4)"),
        {"a": 1, "b": -2, "c": "1-2"},
    )
    assert call.keywords["k"] == [Unread(source="1 / 0"), 1, Unread(source="'a' * 9")]
    assert call.keywords["z"] == -2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "run.py: cannot be read"),
        ("print 'old'", "run.py:1: is not Python 3"),
        ("a\0b", "run.py: is not Python 3"),
        ("model.train(3)", "is no launch script of UnstableBaselines"),
        ("x = " + "-" * 3000 + "1", "is nested too deeply|is not Python 3"),
    ],
)
def test_other_files_are_refused(tmp_path, text, said):
    script = tmp_path / "run.py"
    if text is not None:
        script.write_text(text)
    with pytest.raises(ConfigError, match=said):
        port(script)


def test_odd_arguments_are_remarks(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import unstable\n"
        "unstable.Collector.remote(vllm_config=[1], training_envs=[('A-v0',)], num_actors=None)\n"
        "unstable.ModelPool.remote(sample_mode=3)\n"
        "learner.train.remote('all', extra=[one\n  for one in range(99)])\n"
    )
    found = port(script)
    assert "model_name was not found; set model.name" in found.remarks[0] + found.remarks[1]
    others = " ".join(found.remarks)
    for said in ("2: vllm_config: [1] is of another form", "2: training_envs: [('A-v0',)] is"):
        assert f"run.py:{said}" in others
    assert "run.py:3: sample_mode: 3 is of another form than is known; set pool.mode" in others
    assert "run.py:4: iterations: 'all' is of another form" in others
    assert "run.py:4: extra: only running the script gives [one for one in range(99)]" in others
    assert "num_engines: null" in found.yaml


PARTS = """
t = unstable.Tracker.remote("run", None)
b = unstable.StepBuffer.remote(768, t)
p = unstable.ModelPool.remote("mirror", 3, t)
vllm = {"model_name": "Qwen/Qwen3-0.6B", "max_loras": 5, "max_tokens": 512, "max_model_len": 4096}
games = [("TicTacToe-v0-train", 2, "qwen3-zs")]
"""
MADE = {
    "c": "c = unstable.Collector.remote(2, b, p, t, vllm, games, games)",
    "l": "l = unstable.StandardLearner.remote('Qwen/Qwen3-0.6B', b, p, batch_size=384, "
    "mini_batch_size=1, learning_rate=1e-5)",
    "run": "c.collect.remote(384, 16)\nray.get(l.train.remote(200))",
}


def script_of(folder, before="", name="run.py", **parts):
    """A launch script that composes, but for parts that are other ones. before: its first lines."""
    lines = [
        "import os, random, sys",
        "import ray, unstable",
        before,
        PARTS,
        *(MADE | parts).values(),
    ]
    script = folder / name
    script.write_text("\n".join(lines) + "\n")
    return script


def learner(**given):
    """A call that makes one; given: arguments, as text."""
    words = {"batch_size": "384", "mini_batch_size": "1", "learning_rate": "1e-5"} | given
    text = ", ".join(f"{name}={word}" for name, word in words.items())
    return f"l = unstable.StandardLearner.remote('Qwen/Qwen3-0.6B', b, p, {text})"


def collector(more, **given):
    """Lines, and the call that makes one after them; given: arguments, as text."""
    words = ", ".join(f"{name}={word}" for name, word in given.items())
    return f"{more}\nc = unstable.Collector.remote(2, b, p, t, vllm, games, games, {words})"


def sure(written, **parts):
    return pytest.param(parts, written)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("parts", "written"),
    [
        sure("batch_size: 512", before="N = 2**9", l=learner(batch_size="N")),
        sure("batch_size: 256", l=learner(batch_size="1 << 8")),
        sure("3.0e-06", before="C = {'lr': 3e-6}", l=learner(learning_rate="C.get('lr')")),
        sure("2.0e-06", before="C = {}", l=learner(learning_rate="C.get('lr', 2e-6)")),
        sure("max_tokens: 1024", c=collector("vllm.update({'max_tokens': 1024}, top_p=0.5)")),
        sure("temperature: 0.25", c=collector("vllm |= dict(temperature=0.25)")),
        sure("top_p: 0.5", c=collector("same = vllm\nsame['top_p'] = 0.5")),
        sure("id: Nim-v0-train", c=collector("games.append(('Nim-v0-train', 2, 'qwen3-zs'))")),
        sure("id: Nim-v0-train", c=collector("games += [('Nim-v0-train', 2, 'qwen3-zs')]")),
        sure(
            "er:a/b', 'openrouter:c/d'",
            run="for one in ['a/b', 'c/d']:\n    p.add_fixed.remote(one)",
        ),
        sure(
            "e: 384",
            before="D = False",
            l=f"if D:\n    {learner(batch_size='8')}\nelse:\n    {learner()}",
        ),
        sure("batch_size: 64", before="D = True", l=learner(batch_size="64 if D else 8")),
        sure("total_updates: 7", run="if not sys.argv:\n    sys.exit()\nl.train.remote(7)"),
        sure(
            "batch_size: 320",
            l="B = 64\nr = 9e-9\ndef make(B, r=1e-4):\n    "
            f"{learner(batch_size='B', learning_rate='r')}\n    return l\nl = make(320, r=2e-5)",
        ),
        sure(
            "learning_rate: 0.0001",
            l=f"def build(r=1e-4):\n    {learner(learning_rate='r')}\n    return l\nl = build()",
        ),
        sure("size: 24", before="L = unstable.StandardLearner", l="l = L.remote(batch_size=24)"),
        sure("name: r-007", run="unstable.Tracker.remote(run_name=f'r {7:03d}')"),
        sure("total_updates: 7", run="ones = [l]\nones[0].train.remote(7)"),
        sure("total_updates: 7", run="get()[0].train.remote(7)"),
        sure("total_updates: 7", run="try:\n    l.train.remote(7)\nexcept ValueError:\n    pass"),
        sure("total_updates: 7", run="l.train.remote(7)\nsys.exit()\nl.train.remote(8)"),
        sure("name: run", name="run demo.v2.py", run="unstable.Tracker.remote()"),
        sure("max_staleness: 7", l=learner(save_every="5")),
        sure("override /pool: mirror", run="unstable.ModelPool.remote('lagged', 1, t)"),
    ],
)
def test_what_is_known_for_sure_is_read(tmp_path, parts, written):
    script = script_of(tmp_path, **parts)
    text = port(script).yaml
    assert written in text
    assert "UnstableBaselines 0.1" in text
    assert "does not compose" not in text


IF = "if len(sys.argv) > 1:\n    "


def unsure(said, unwritten, **parts):
    return pytest.param(parts, said, unwritten)


def of_size(before, said="batch_size: only", size="B"):
    """A batch size that lines before do not give for sure."""
    return unsure(said, " batch_size: ", before=before, l=learner(batch_size=size))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("parts", "said", "unwritten"),
    [
        of_size(f"B = 384\n{IF}B = 8", "batch_size: .*line 4"),
        of_size(
            "try:\n    B = 8\nexcept ImportError:\n    B = 9",
            "batch_size: .*an exception in line 3",
        ),
        of_size("B = 2\nwhile f():\n    B = B * 2"),
        of_size("for B in f():\n    pass"),
        of_size("B = 8\nf() or (B := 9)"),
        of_size(f"B = 8\n{IF}from conf import B"),
        of_size("B = 384\ndef f(**B):\n    return B", size="f(B=8)"),
        of_size(f"def f():\n    return 8\n{IF}def f():\n        return 9", size="f()"),
        of_size(
            "def f():\n    B = 4\n    def g():\n        nonlocal B\n        B = 8\n"
            "    g()\n    return B",
            size="f()",
        ),
        of_size("", size="10**10**10"),
        unsure(
            "learning_rate: .*os.environ.get",
            "LR\n",
            l=learner(learning_rate="os.environ.get('LR')"),
        ),
        unsure(
            "wandb_project: ",
            "P  #",
            run="unstable.Tracker.remote(wandb_project=os.environ.get('P'))",
        ),
        unsure("run_name: ", "NAME  #", run="unstable.Tracker.remote(run_name=os.getenv('NAME'))"),
        unsure("max_tokens: only", "max_tokens: 9 ", c=collector(f"{IF}vllm['max_tokens'] = 9")),
        unsure(
            "max_tokens: only", "max_tokens: 512", c=collector(f"{IF}vllm.update(max_tokens=9)")
        ),
        unsure(r"\*\*: only", "Call", c=collector("vllm.update(**os.environ)")),
        unsure("model_name: only .*popitem", "Call", c=collector("vllm.popitem()")),
        unsure(
            r"random.shuffle\(…\) may change games", "Call", c=collector("random.shuffle(games)")
        ),
        unsure("training_envs: only", "TicTacToe", c=collector(f"{IF}games.append(1)")),
        unsure(
            r"training_envs: .*\*sys.argv", "TicTacToe", c=collector("games = [*games, *sys.argv]")
        ),
        unsure(
            r"training_envs: only .*games.pop\(\)",
            "TicTacToe",
            c=collector("games = [*games, *f()]\ngames.pop()"),
        ),
        unsure(
            "training_envs: .* is of another form",
            "Nim",
            c=collector("games = [('Nim-v0-train', 2, ['qwen3-zs'])]"),
        ),
        unsure(
            "depends on `if .*; it is not read",
            " batch_size: ",
            l=f"{IF}{learner(batch_size='8')}\nelse:\n    {learner()}",
        ),
        unsure(
            r"train\(…\) depends on .*not read",
            "total_updates: 3",
            run=f"l.train.remote(200)\n{IF}l.train.remote(3)",
        ),
        unsure(
            r"train\(…\) depends on `if len\(sys.argv\) > 1` in line",
            "Call",
            run=f"{IF}l.train.remote(3)",
        ),
        unsure(
            "depends on a call of main of line",
            "batch_size: 8",
            l=f"def main(B=8):\n    {learner(batch_size='B')}\nfire.Fire(main)",
        ),
        unsure(
            "batch_size: only",
            "batch_size: 8",
            l=f"@cli\ndef main(B=8):\n    {learner(batch_size='B')}\nmain()",
        ),
        unsure(
            "batch_size: only",
            "batch_size: 8",
            l=f"def make(*a):\n    {learner(batch_size='a[0]')}\nmake(8)",
        ),
        unsure(
            "mine.StandardLearner.* not read: batch_size",
            "batch_size: 8",
            l="from mine import StandardLearner as S\nl = S.remote(batch_size=8)",
        ),
        unsure(
            "not read: batch_size",
            "batch_size: 8",
            l="class S(unstable.StandardLearner):\n    x = 1\nl = S.remote(batch_size=8)",
        ),
        unsure(
            "run_name: only",
            "name: 1",
            run="unstable.Tracker.remote(run_name=f'{1:d}-{1!r}-{1:x{y}}')",
        ),
        unsure(
            r"max_train_len: only running the script gives \.\.\.",
            "max_train_len",
            l=learner(max_train_len="..."),
        ),
        unsure(
            "evaluation_opponent: None is of another form",
            "None",
            c=collector("", evaluation_opponent="None"),
        ),
        unsure(
            "'hf:a/b' is of another form",
            "hf:a/b'\\]",
            c=collector("", evaluation_opponent="'hf:a/b'"),
        ),
        unsure(
            "initial_lora_path: {'r': 8} is of",
            "initial_adapter",
            l=learner(initial_lora_path="{'r': 8}"),
        ),
        unsure(
            "learner.total_updates=4 replaces 3 of line 13",
            "updates: 3",
            run="l.train.remote(3)\nl.train.remote(4)",
        ),
        unsure(
            r"add_fixed\(…\) depends on `\[p.add_fixed.remote\(one\) for one in",
            "fixed_opponents",
            run="ray.get([p.add_fixed.remote(one) for one in ['a/b']])",
        ),
        unsure(
            r"add_fixed\(…\) depends on a call of main of line",
            r"fixed_opponents: \['openrouter:./.'\]",
            run="def main(n):\n    p.add_fixed.remote('a/b')\n    p.add_fixed.remote('c/d')\n"
            "fire.Fire(main)",
        ),
        unsure(
            r"name=\\ud800 replaces run of line 5",
            "name: run",
            run=r"unstable.Tracker.remote(run_name='\ud800')",
        ),
        unsure(
            r"iterations: only running the script gives sys.argv\[1\]",
            "total_updates: ",
            run="f()[0].train.remote(sys.argv[1])",
        ),
        unsure(
            "engine.vllm.enforce_eager sets it",
            "eager:",
            c=collector("vllm['enforce_eager'] = True"),
        ),
    ],
)
def test_what_is_not_known_for_sure_is_a_remark_with_its_line(tmp_path, parts, said, unwritten):
    ported = port(script_of(tmp_path, **parts))
    ported.yaml.encode()
    [*found] = [one for one in ported.remarks if re.search(rf"run\.py:\d+: .*{said}", one)]
    assert found, ported.remarks
    written = "\n".join(line for line in ported.yaml.splitlines() if not line.startswith("#"))
    assert not re.search(unwritten, written)


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("buffer.max_size=768: never", {"l": learner(batch_delay_buffer="4")}),
        ("engine.num_engines=0: ", {"c": "num = 0\n" + MADE["c"].replace("(2", "(num")}),
        ("learner.learning_rate=inf: ", {"l": learner(learning_rate="1e400")}),
        ("learner.num_learners=two: must be a whole number", {"l": learner(num_learners="'two'")}),
    ],
)
def test_what_does_not_compose_is_a_remark_with_the_line_that_set_it(tmp_path, said, parts):
    script = script_of(tmp_path, **parts)
    lines = script.read_text().splitlines()
    calls = {"buffer": "StepBuffer.remote", "engine": "Collector.remote"}
    word = calls.get(said.partition(".")[0], "StandardLearner.remote")
    [place] = [number for number, line in enumerate(lines, 1) if word in line]
    begun = f"run.py:{place}: does not compose: {said}"
    assert [one for one in port(script).remarks if one.startswith(begun)]


def test_the_runtime_object_normalizes_advantages_of_a2c(tmp_path):
    script = tmp_path / "run.py"
    spec = "unstable.TrainEnvSpec(env_id='Nim-v0-train', num_players=2)"
    script.write_text(
        "from unstable import *\nimport unstable\n"
        f"build(model_name='a/b', train_envs=[{spec}], algorithm='a2c', max_generation_len=...)\n"
    )
    text = port(script).yaml
    assert "normalize_advantages: true  # there" in text
    assert "run.py:3: max_generation_len: only running the script gives ..." in text


def signatures(package: Path) -> dict[str, dict[str, object]]:
    """Arguments and defaults of each ``__init__``, function and method, by class or own name."""
    found: dict[str, dict[str, object]] = {}
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            owner = node.name if isinstance(node, ast.ClassDef) else ""
            for one in node.body if owner else [node]:
                if isinstance(one, ast.FunctionDef):
                    names = [each.arg for each in one.args.args if each.arg != "self"]
                    defaults = [ast.unparse(each) for each in one.args.defaults]
                    bare = [None] * (len(names) - len(defaults))
                    name = owner if one.name == "__init__" else one.name
                    found.setdefault(name, dict(zip(names, [*bare, *defaults], strict=True)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.1.2", "0.2.2"])
def test_arguments_and_defaults_are_those_of_the_package(version, tmp_path):
    asked = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    done = subprocess.run(
        [*asked, f"unstable-rl=={version}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"it cannot be installed here: {done.stderr[-200:]}")
    package = signatures(tmp_path / "unstable")
    orders = {**POSITIONS, **(POSITIONS_2 if version.startswith("0.2") else {})}
    both = package.keys() & orders.keys() - {"build", "start", "initialize_algorithm"}
    assert len(both) >= 8
    for name in both:
        assert list(package[name])[: len(orders[name])] == list(orders[name]), name
    if "BaseLearner" in package:
        assert list(package["BaseLearner"]) == list(orders["A2CLearner"])
    if version == "0.1.2":
        learner, collector = package["StandardLearner"], package["Collector"]
        assert float(str(learner["grad_clip"])) == EFFECTIVE["learner.grad_clip"]
        assert float(str(learner["batch_delay_buffer"])) == EFFECTIVE["learner.batch_delay_buffer"]
        assert learner["gradient_checkpointing"] == learner["activation_checkpointing"] == "True"
        games = int(str(collector["max_eval_games_per_ckpt"]))
        assert games == EFFECTIVE["eval.max_games_per_checkpoint"]
        text = (tmp_path / "unstable" / "actor.py").read_text()
        assert f"'temperature', {EFFECTIVE['engine.temperature']}" in text.replace('"', "'")
        assert f"'top_p', {EFFECTIVE['engine.top_p']}" in text.replace('"', "'")
