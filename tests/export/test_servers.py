"""What ``export --to native`` writes, as text-embeddings-inference 1.9.3 reads it, whose structs are
strict; vLLM 0.24 reads less.
"""

import json

import pytest
import torch
from conftest import make_sentences
from model_cases import build_model
from tokenizers import Tokenizer
from torch.nn.functional import normalize
from transformers import AutoModel

from dystress_text.export.compatible import write_compatible

SENTENCES = make_sentences(5)
CASES = {  # by family and pooler what both servers do; None where they cannot
    **dict.fromkeys([("bert", "cls"), ("bert", "cls_before_pooler")], "cls"),
    **dict.fromkeys([("bert", "avg"), ("modernbert", "avg")], "mean"),
    **dict.fromkeys([("bert", "last"), ("llama", "last")], "lasttoken"),
    **dict.fromkeys([("bert", "avg_top2"), ("bert", "avg_first_last")]),
}
ST = "sentence_transformers.models."

# text-embeddings-inference's structs, of the families whose config.json is written with more than
# transformers writes; fields by kind: "?" may be missing or null, "=" may be missing, others are
# free
KINDS = {
    "usize": lambda x: type(x) is int and 0 <= x < 2**64,
    "float": lambda x: type(x) in (int, float),
    "bool": lambda x: type(x) is bool,
    "text": lambda x: type(x) is str,
    "act": lambda x: (
        x in ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swiglu", "tanh")
    ),
    "module": lambda x: (
        x in [ST + kind for kind in ("Transformer", "Pooling", "Dense", "Normalize")]
    ),
}
POOL = {"bool": "pooling_mode_cls_token pooling_mode_mean_tokens pooling_mode_lasttoken="}
MODULE = {"usize": "idx", "text": "name path", "module": "type"}
SIZES = "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings "
BERT = {
    "usize": SIZES + "type_vocab_size pad_token_id", "bool": "use_cache=", "act": "hidden_act",
    "float": "hidden_dropout_prob initializer_range layer_norm_eps classifier_dropout?",
}  # fmt: skip
FAMILIES = {
    "bert": BERT,
    "modernbert": {
        "usize": SIZES + "pad_token_id eos_token_id bos_token_id cls_token_id sep_token_id global_attn_every_n_layers "
        "local_attention",
        "float": "initializer_range initializer_cutoff_factor norm_eps global_rope_theta local_rope_theta "
        "attention_dropout",
        "bool": "norm_bias attention_bias mlp_bias?", "act": "hidden_activation classifier_activation",
    },
    "llama": {
        "usize": SIZES + "num_key_value_heads head_dim?", "float": "initializer_range rms_norm_eps rope_theta?",
        "act": "hidden_act", "bool": "mlp_bias=",
    },
}  # fmt: skip


def parse(folder, file, struct):
    data = json.loads((folder / file).read_text())
    for one in data if isinstance(data, list) else [data]:
        for kind, field in [
            (kind, field) for kind, fields in struct.items() for field in fields.split()
        ]:
            name = field.rstrip("?=")
            missing = name not in one or (field.endswith("?") and one[name] is None)
            if not (KINDS[kind](one.get(name)) or (missing and name != field)):
                raise ValueError(f"{file}: {name} is {one.get(name)!r}")
    return data


def text_embeddings_inference(folder):
    """How it pools."""
    config = parse(
        folder, "config.json", {"text": "model_type", "usize": "max_position_embeddings"}
    )
    parse(folder, "config.json", FAMILIES[config["model_type"]])
    assert [type(name) for name in config["architectures"]] == [str]
    parse(folder, "sentence_bert_config.json", {"usize": "max_seq_length"})
    modules = parse(folder, "modules.json", MODULE)
    pool = parse(folder, "1_Pooling/config.json", POOL)
    (mode,) = [
        key.split("_")[2] for key, value in pool.items() if value is True
    ]  # vLLM takes the first such flag
    assert [m["type"] for m in modules] == [
        ST + kind for kind in ("Transformer", "Pooling", "Normalize")
    ]
    return mode


@torch.no_grad()
def serve(folder, mode):
    """Vectors of length 1, computed as the servers do, sentence by sentence."""
    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        Tokenizer.from_file(str(folder / "tokenizer.json")),
    )
    ids = [torch.tensor([tokenizer.encode(sentence).ids]) for sentence in SENTENCES]
    states = [model(one).last_hidden_state[0] for one in ids]
    vectors = torch.stack(
        [{"cls": one[0], "mean": one.mean(0), "lasttoken": one[-1]}[mode] for one in states]
    )
    return normalize(vectors)


@pytest.mark.parametrize(("family", "pooler"), CASES)
def test_servers_read_the_layout_or_refuse_a_module_that_they_do_not_know(family, pooler, tmp_path):
    mode = CASES[family, pooler]
    model = build_model(family, pooler, normalize=True)
    write_compatible(model, tmp_path)
    if mode is None:
        with pytest.raises(ValueError, match="WeightedLayerPooling"):
            text_embeddings_inference(tmp_path)
        return
    assert text_embeddings_inference(tmp_path) == mode
    expected = torch.as_tensor(model.encode(SENTENCES))
    torch.testing.assert_close(serve(tmp_path, mode), expected, rtol=0, atol=1e-5)
