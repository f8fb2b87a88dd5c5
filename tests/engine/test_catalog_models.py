"""The model catalog: right numbers, any common spelling, nothing parsed before it is needed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.engine import catalog
from shardwise.engine.catalog import names
from shardwise.engine.errors import ConfigError, unknown_name
from shardwise.engine.model import Model

PUBLISHED = {
    # Parameters in billions, without multi-token prediction: model cards and papers.
    "llama-2-7b": 6.738, "llama-2-13b": 13.016, "llama-2-70b": 68.977,
    "llama-3-8b": 8.030, "llama-3-70b": 70.554,
    "llama-3.1-8b": 8.030, "llama-3.1-70b": 70.554, "llama-3.1-405b": 405.853,
    "llama-3.2-1b": 1.236, "llama-3.2-3b": 3.213, "mistral-7b": 7.242,
    "mixtral-8x7b": 46.703, "mixtral-8x22b": 140.621,
    "deepseek-v2-lite": 15.706, "deepseek-v2": 235.741, "deepseek-v3": 671.026,
    "kimi-k2": 1026.4, "moonlight-16b-a3b": 15.96,
    "qwen2.5-7b": 7.616, "qwen2.5-32b": 32.764, "qwen2.5-72b": 72.706, "qwen2-57b-a14b": 57.41,
    "qwen3-8b": 8.191, "qwen3-14b": 14.768, "qwen3-32b": 32.762,
    "qwen3-30b-a3b": 30.532, "qwen3-235b-a22b": 235.094,
    "gpt-oss-20b": 20.915, "gpt-oss-120b": 116.829, "gpt3-175b": 174.6,
}  # fmt: skip
CONTRACT = (
    "mixtral-8x22b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "deepseek-v3", "qwen3-235b-a22b",
    "gpt-oss-120b",
)  # fmt: skip


def attention_parameters(m: Model) -> int:
    hidden, heads = m.hidden_size, m.num_attention_heads
    if m.multi_latent_attention:
        assert m.qk_head_dim is not None
        assert m.qk_pos_emb_head_dim is not None
        assert m.kv_lora_rank is not None
        assert m.v_head_dim is not None
        query = heads * (m.qk_head_dim + m.qk_pos_emb_head_dim)
        rank = m.q_lora_rank
        down_up = hidden * query if rank is None else hidden * rank + rank + rank * query
        latent = hidden * (m.kv_lora_rank + m.qk_pos_emb_head_dim) + m.kv_lora_rank
        return (
            down_up
            + latent
            + heads * (m.kv_lora_rank * (m.qk_head_dim + m.v_head_dim) + m.v_head_dim * hidden)
        )
    query, keys = heads * m.kv_channels, m.num_query_groups * m.kv_channels
    count = hidden * (query + 2 * keys) + query * hidden
    if m.add_bias_linear or m.add_qkv_bias:
        count += query + 2 * keys
    return count + hidden * m.add_bias_linear + 2 * m.kv_channels * m.qk_layernorm + heads * m.attention_sink


def mlp_parameters(m: Model, width: int) -> int:
    if not width:
        return 0
    inputs = 2 if m.gated_linear_unit else 1
    return (inputs + 1) * m.hidden_size * width + m.add_bias_linear * (inputs * width + m.hidden_size)


def parameters(m: Model) -> int:
    """Written for this test alone, so that it cannot share a mistake with the engine's own count."""
    norm = m.hidden_size * (2 if m.normalization == "LayerNorm" else 1)
    total = norm + m.vocab_size * m.hidden_size * (1 if m.share_embeddings_and_output_weights else 2)
    if m.position_embedding_type == "learned_absolute":
        total += m.max_position_embeddings * m.hidden_size
    for routed in m.moe_layers:
        total += attention_parameters(m) + 2 * norm
        if routed:
            assert m.num_experts is not None
            assert m.moe_ffn_hidden_size is not None
            total += m.num_experts * (mlp_parameters(m, m.moe_ffn_hidden_size) + m.hidden_size)
            total += mlp_parameters(m, m.moe_shared_expert_intermediate_size)
        else:
            total += mlp_parameters(m, m.ffn_hidden_size)
    return total


def test_every_catalog_model_has_a_published_total() -> None:
    assert set(PUBLISHED) == set(catalog.models())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_match_the_published_total(name: str) -> None:
    assert parameters(catalog.model(name)) / 1e9 == pytest.approx(PUBLISHED[name], rel=1e-3)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_model_names_its_source(name: str) -> None:
    model = catalog.model(name)
    assert model.name == name
    assert len(model.source) > 10
    if model.is_moe and all(model.moe_layers):
        assert model.ffn_hidden_size == model.moe_ffn_hidden_size


def test_contract_names_are_known() -> None:
    assert set(CONTRACT) <= set(catalog.models())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Mixtral 8x22B", "mixtral-8x22b"),
        ("mixtral_8x22B_v0.1", "mixtral-8x22b"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b"),
        ("Llama3.1-70B", "llama-3.1-70b"),
        ("llama 3.1 405b", "llama-3.1-405b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("LLAMA-3-70B", "llama-3-70b"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("DeepSeek-V3 671B", "deepseek-v3"),
        ("gpt-oss 120b", "gpt-oss-120b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("GPT_OSS_20B", "gpt-oss-20b"),
        ("Qwen3 235B-A22B", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("Qwen2.5 72B", "qwen2.5-72b"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen2-57B-A14B", "qwen2-57b-a14b"),
        ("Kimi K2 1T", "kimi-k2"),
        ("GPT-3 175B", "gpt3-175b"),
        ("  llama-2-70b-hf ", "llama-2-70b"),
        ("llama31_405b", "llama-3.1-405b"),
        ("llama_3_1_405b", "llama-3.1-405b"),
        ("llama3.3-70b", "llama-3.1-70b"),
        ("qwen25_7b", "qwen2.5-7b"),
        ("Mixtral 8 x 22B", "mixtral-8x22b"),
        ("llama3.1:8b", "llama-3.1-8b"),
    ],
)
def test_common_spellings(spelling: str, name: str) -> None:
    assert catalog.model(spelling) == catalog.model(name)


@pytest.mark.parametrize(
    "name", ["mixtral-8x99b", "llama", "", "llama-70b", "🦙", "a/b/c", "x" * 10_000, "qwen257b"]
)
def test_unknown_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.model(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_unknown_name_says_the_nearest() -> None:
    with pytest.raises(ConfigError, match="nearest: mixtral-8x7b, mixtral-8x22b"):
        catalog.model("mixtral-8x99b")


@pytest.mark.parametrize("kind", ["models", "gpus"])
def test_no_spelling_means_two_entries(kind: names.Kind) -> None:
    table = catalog.spellings(kind)
    assert {names.compact(kind, name): name for name in names.names(kind)}.items() <= table.items()
    assert set(table.values()) == set(names.names(kind))


def test_mapping_from_a_base_changes_only_what_it_gives() -> None:
    proxy = catalog.model({"base": "llama-3.1-405b", "num_layers": 8})
    full = catalog.model("llama-3.1-405b")
    assert proxy.name == "llama-3.1-405b-variant"
    assert proxy.with_(name=full.name, source=full.source, num_layers=126) == full


def test_spec_is_the_name_or_a_mapping_that_reads_back() -> None:
    for name, model in catalog.models().items():
        assert catalog.model_spec(model) == name
        other = model.with_(vocab_size=model.vocab_size + 1)
        spec = catalog.model_spec(other)
        assert isinstance(spec, dict)
        assert catalog.model(spec) == other


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"base": "llama-3-8b", "num_layer": 2}, "unknown field 'num_layer' (nearest: num_layers"),
        ({"base": "llama-3-8b", "num_layers": 0}, "num_layers = 0"),
        ({"base": "llama-3-8b", "num_layers": 10**9}, "num_layers is out of range (at most 10000)"),
        ({"base": "llama-3-8b", "num_query_groups": 5}, "must divide num_attention_heads"),
        ({"base": "llama-3-8c"}, "nearest: llama-3-8b"),
        ({"base": "me.yaml"}, "needs a catalog name, not a file"),
        ({"num_layers": 2}, "hidden_size: Field required"),
        ({}, "Field required"),
    ],
)
def test_bad_mappings_are_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.model(data)
    assert message in str(caught.value)


@pytest.mark.parametrize("spec", [5, None, [], True])
def test_specs_of_the_wrong_type_are_refused(spec: object) -> None:
    with pytest.raises(ConfigError, match="needs a catalog name"):
        catalog.model(spec)  # type: ignore[arg-type]


def test_import_parses_nothing_and_a_lookup_one_entry() -> None:
    script = """
import shardwise.engine.catalog as catalog
from shardwise.engine.catalog import documents, names
read = []
real = names.read_mapping
names.read_mapping = lambda path, **more: read.append(path.name) or real(path, **more)
catalog.model("mixtral-8x22b"); print(",".join(read))
catalog.model("mixtral-8x22b"); catalog.gpu("H100-SXM-80GB"); print(",".join(read))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mixtral-8x22b.yaml", "mixtral-8x22b.yaml,aliases.yaml,h100.yaml"]


def test_a_list_of_known_names_says_what_it_leaves_out() -> None:
    few, many = (str(unknown_name("thing", "qqq", [f"x{n:02}" for n in range(count)])) for count in (12, 25))
    assert few.endswith("x11)")
    assert many.endswith("x11 and 13 more)")


def test_a_config_json_beside_you_has_its_folder_as_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {"model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 2048, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(folder)
    assert catalog.model("config.json").name == "My-Llama"
