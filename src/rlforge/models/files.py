"""Names of the files that hold models, adapters and critics, as Hugging Face and PEFT have them."""

MODEL_CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

#: A critic's, beside an adapter or a tiny model: weight [1, H] and bias [1].
VALUE_HEAD = "value_head.safetensors"
