"""``--measure gpu`` as far as it goes without a GPU: real modules on a CPU, an allocator that counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from shardwise.engine.errors import ConfigError
from shardwise.engine.measure.report import measured
from shardwise.engine.recipe import Recipe
from shardwise.engine.recipe_io import load_recipe

torch: Any = pytest.importorskip("torch", reason="runs torch modules")
pytest.importorskip("megatron.core", reason="runs megatron-core's modules")
pytest.importorskip("transformers", reason="runs transformers' models")
TorchFunctionMode: Any = pytest.importorskip("torch.overrides").TorchFunctionMode

_SMALL: dict[str, Any] = {
    "name": "small",
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 16,
    "vocab_size": 512,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 64}
_RESERVED, _FREE, _TOTAL = 7, 30, 100


class _Allocator:
    """``torch.cuda``'s memory functions over the storages that live on the CPU."""

    def __init__(self, live: Any) -> None:
        self.live = live

    def memory_allocated(self) -> int:
        return int(self.live.now)

    def max_memory_allocated(self) -> int:
        return int(self.live.peak)

    def max_memory_reserved(self) -> int:
        return int(self.live.peak) + _RESERVED

    def reset_peak_memory_stats(self) -> None:
        self.live.restart()

    def empty_cache(self) -> None: ...

    def is_available(self) -> bool:
        return True

    def mem_get_info(self) -> tuple[int, int]:
        return _FREE, _TOTAL


class _Redirected(TorchFunctionMode):  # type: ignore[misc]
    """What asks for a tensor on ``cuda`` gets one on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


@contextlib.contextmanager
def _on_cpu(recipe: Recipe, stage: int) -> Iterator[None]:
    from shardwise.engine.measure.megatron import rank_of, real_kernels, without_gpu

    if recipe.framework != "megatron-core":
        yield
        return
    with rank_of(recipe, stage), without_gpu(fused=False), real_kernels(), _Redirected():
        yield


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (_SMALL, {"pp": 2, "transformer_impl": "local"}),
        (_SMALL, {"pp": 2, "vpp": 2, "transformer_impl": "local", "attention_backend": "unfused"}),
        ({**_SMALL, **_EXPERTS}, {"pp": 2, "ep": 2, "transformer_impl": "local"}),
        (_SMALL, {"framework": "pytorch", "norm_fusion": False, "recompute": "full"}),
    ],
    ids=["dense", "interleaved", "experts", "transformers"],
)
@pytest.mark.filterwarnings("ignore")
def test_real_modules_are_measured_by_the_allocator(
    model: dict[str, Any], fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardwise.engine.measure import gpu
    from shardwise.engine.measure.live import LiveStorages

    recipe = load_recipe({"model": model, "cluster": "h100:1x8", "gbs": 64, "seq_len": 64, **fields})
    live = LiveStorages()
    allocator = _Allocator(live)
    for name in (n for n in vars(_Allocator) if not n.startswith("_")):
        monkeypatch.setattr(torch.cuda, name, getattr(allocator, name))
    monkeypatch.setattr(gpu, "_on_gpu", _on_cpu)
    with live:
        (stage,) = measured(recipe, "gpu", 0)["stages"]
    formula, found = stage["formula"], stage["measured"]
    assert found["weights"] == formula["weights"]
    assert abs(found["gradients"] - formula["gradients"]) < 0.05 * formula["gradients"]  # padded buckets
    assert 0 <= found["optimizer"] - formula["optimizer"] < 0.05 * formula["optimizer"] + 4000
    assert found["activations"] > 0
    assert stage["phases"]["second_step"] == found["allocated"]
    assert stage["phases"]["first_backward"] <= found["allocated"]
    # Everything that was allocated was in the allocator at once, at least for a moment.
    assert stage["device"]["reserved"] >= found["allocated"] + _RESERVED
    assert (stage["device"]["device_used"], stage["device"]["device_total"]) == (_TOTAL - _FREE, _TOTAL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    recipe = load_recipe(
        {"model": _SMALL, "cluster": "h100:1x8", "gbs": 8, "seq_len": 64, "transformer_impl": "local"}
    )
    with pytest.raises(ConfigError, match=r"no GPU.*--measure fake"):
        measured(recipe, "gpu")


def test_transformer_engine_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwise.engine.measure import report

    monkeypatch.setattr(report, "_installed", lambda package: package != "transformer_engine")
    recipe = load_recipe({"model": _SMALL, "cluster": "h100:1x8", "gbs": 8, "seq_len": 64})
    with pytest.raises(ConfigError, match=r"transformer_engine is missing.*--transformer-impl local"):
        measured(recipe, "gpu")
