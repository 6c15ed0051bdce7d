"""The graph is built and checked against the machine before Ray starts."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pickle
import sys
from pathlib import Path

import pytest
from tests.harness.composed import composed
from tests.harness.in_process import start_in_process

from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import ServingConfig
from rlforge.preflight.plan import make_plan, to_json, to_mermaid, write_plan
from rlforge.specs import ActorSpec
from rlforge.system.hardware import Machine

LAPTOP = Machine(cpus=2, gpus=0)
SERVER = Machine(cpus=16, gpus=4)


def config(*overrides: str) -> RunConfig:
    return composed(*overrides, root=RunConfig).config


def test_every_kind_of_actor_is_in_the_graph_once_with_its_replicas() -> None:
    counts = ["engine.num_engines=2", "collector.num_collectors=3", "learner.num_learners=2"]
    graph = make_plan(config(*counts), LAPTOP)
    once = {"tracker": 1, "pool": 1, "buffer": 1}
    replicas = {node.name: node.replicas for node in graph.nodes}
    assert replicas == once | {"engine": 2, "collector": 3, "learner": 2}
    assert not any(node.num_gpus for node in graph.nodes)
    assert graph.node("engine").actor_names == ("engine-0", "engine-1")
    assert graph.node("learner").actor_names == ("learner", "learner-1")


@pytest.mark.parametrize(("gpus", "engines", "each"), [(1, 1, 0.5), (4, 3, 1.0)])
def test_learner_and_engines_share_one_gpu_or_have_their_own(
    gpus: int, engines: int, each: float
) -> None:
    graph = make_plan(config(f"engine.num_engines={engines}"), Machine(cpus=8, gpus=gpus))
    assert graph.node("learner").num_gpus == graph.node("engine").num_gpus == each
    assert graph.node("learner").placement == "cuda"
    assert sum(node.num_gpus * node.replicas for node in graph.nodes) == gpus


def test_gpus_that_cannot_be_read_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    of_gpus = config("hardware=gpu_1", "engine=transformers")
    notes = make_plan(of_gpus, Machine(cpus=16, gpus=1)).notes
    assert [note for note in notes if "pip install 'rlforge[gpu]'" in note] != []


GRAPHS = {
    "games": config,
    "continuous": lambda: composed(root=ContinuousConfig).config,
    "serving": ServingConfig,
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_edges_join_parts_of_the_run_and_leave_none_out(kind: str) -> None:
    graph = make_plan(GRAPHS[kind](), LAPTOP)
    names = {node.name for node in graph.nodes}
    assert {edge.source for edge in graph.edges} | {edge.target for edge in graph.edges} == names


@pytest.mark.parametrize("kind", GRAPHS)
def test_actors_of_the_graph_are_classes_that_can_be_imported(kind: str) -> None:
    for node in make_plan(GRAPHS[kind](), LAPTOP).nodes:
        if node.actor is not None:
            module, _, name = node.actor.partition(":")
            assert inspect.isclass(getattr(importlib.import_module(module), name))


def test_a_service_starts_its_engines_with_its_own_limit_of_restarts() -> None:
    graph = make_plan(ServingConfig(), LAPTOP)
    assert graph.actor_names == ("engine-0",)
    assert graph.node("engine").restarts == 100
    assert graph.node("service").actor is None


@pytest.mark.parametrize(
    ("overrides", "gpus", "alone"),
    [([], 0, False), ([], 1, True), ([], 4, False), (["hardware.alternate=true"], 0, True)],
)
def test_actors_that_share_a_card_load_one_after_the_other(
    overrides: list[str], gpus: int, alone: bool
) -> None:
    graph = make_plan(config(*overrides), Machine(cpus=8, gpus=gpus))
    assert graph.node("learner").loads_alone == graph.node("engine").loads_alone == alone


def test_json_and_mermaid_hold_the_same_nodes() -> None:
    graph = make_plan(config(), LAPTOP)
    loaded = json.loads(to_json(graph))
    assert [node["name"] for node in loaded["nodes"]] == [node.name for node in graph.nodes]
    mermaid = to_mermaid(graph)
    assert all(f"  {node.name}[" in mermaid for node in graph.nodes)


def test_an_elastic_run_starts_with_the_least_that_its_keys_name() -> None:
    several = ("hardware=cluster", "engine.num_engines=4", "hardware.elastic=true")
    graph = make_plan(config(*several, "engine.min_engines=2"), LAPTOP)
    least = {node.name: (node.number, node.least) for node in graph.nodes if node.least}
    assert least == {"engine": ("2 to 4", 2), "collector": ("1", 1)}
    assert "engine ×2 to 4" in to_mermaid(graph)
    fixed = make_plan(config(*several[:2], "hardware.elastic=false"), LAPTOP)
    assert not any(node.least for node in fixed.nodes)


@dataclasses.dataclass
class Given:
    """An actor that keeps what it is given."""

    config: RunConfig
    hardware: HardwareConfig


async def test_an_actor_holds_what_the_graph_said(tmp_path: Path) -> None:
    plan = make_plan(config("learner.initial_adapter=null", "engine=auto"), LAPTOP)
    own = ActorSpec(name="given", actor=f"{__name__}:Given", reads=("engine", "learner", "model"))
    plan = dataclasses.replace(plan, nodes=(own,))
    (node,) = json.loads(to_json(plan))["nodes"]
    actors = await start_in_process(plan, tmp_path)
    given = await actors.named["given"].__ray_call__.remote(lambda actor: actor)
    held = {group: dataclasses.asdict(getattr(given.config, group)) for group in own.reads}
    assert held == node["config"]
    assert node["config"]["engine"]["name"] == "transformers"
    assert dataclasses.asdict(given.hardware) == json.loads(to_json(plan))["hardware"]


def test_a_plan_does_not_change() -> None:
    plan = make_plan(config("tracker.sinks=[{name: a}]"), LAPTOP)
    for change in (
        lambda: setattr(plan, "nodes", ()),
        lambda: setattr(plan.config.engine, "name", "vllm"),
        lambda: setattr(plan.hardware, "threads", 1),
        lambda: plan.config.tracker.sinks.append({}),
        lambda: plan.config.tracker.sinks[0].update(name="b"),
        lambda: plan.config.env.train.clear(),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_the_plan_of_a_resume_is_beside_the_first_and_names_what_differs(tmp_path: Path) -> None:
    asked = config("hardware=auto", "engine.num_engines=2", "engine.min_engines=1")
    assert write_plan(make_plan(asked, SERVER), tmp_path) == []
    first = (tmp_path / "plan.json").read_text()
    assert write_plan(make_plan(asked, SERVER), tmp_path) == []
    lines = write_plan(make_plan(asked, Machine(cpus=2, gpus=0)), tmp_path)
    assert "hardware.device: cuda before, cpu now" in lines
    assert "engine.replicas: 2 before, 1 now" in lines
    assert (tmp_path / "plan.json").read_text() == first
    assert json.loads((tmp_path / "plan-3.json").read_text())["hardware"]["device"] == "cpu"


def test_every_key_that_was_changed_before_a_resume_is_named(tmp_path: Path) -> None:
    write_plan(make_plan(config("+experiment=blotto_league"), LAPTOP), tmp_path)
    changes = {"seed": "7", "determinism": "strict", "sentinel.warmup": "9"}
    changes |= {"learner.batch_size": "48", "policies.oracle.reset.every": "12"}
    lines = [f"{key}={value}" for key, value in changes.items()]
    said = write_plan(make_plan(config("+experiment=blotto_league", *lines), LAPTOP), tmp_path)
    for key, value in changes.items():
        assert any(line.startswith(f"{key}: ") and f"{value} now" in line for line in said), key


@pytest.mark.parametrize("damage", ["{", "\udcff"])
def test_a_damaged_plan_is_a_line_and_the_new_one_is_written(tmp_path: Path, damage: str) -> None:
    (tmp_path / "plan.json").write_text(damage, errors="surrogateescape")
    (line,) = write_plan(make_plan(config(), LAPTOP), tmp_path)
    assert f"{tmp_path / 'plan.json'} cannot be read: " in line
    assert json.loads((tmp_path / "plan-2.json").read_text())["nodes"]
