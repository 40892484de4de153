"""Hugging Face: importing this makes `AutoConfig` and `AutoModelForCausalLM` know our models.

It needs the extra `hf` (transformers), and takes seconds to import; nothing else in the package imports it.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from scse.hf.configuration import ScseConfig
from scse.hf.modeling import ScseCache, ScseForCausalLM

AutoConfig.register(ScseConfig.model_type, ScseConfig, exist_ok=True)
AutoModelForCausalLM.register(ScseConfig, ScseForCausalLM, exist_ok=True)

__all__ = ["ScseCache", "ScseConfig", "ScseForCausalLM"]
