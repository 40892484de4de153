"""Our models in lm-eval: `--model scse --model_args path=DIR,num_loops=8`.

lm-eval knows only the models that have been imported, and offers packages no way to announce theirs. So its own
command line is started through here, with ours registered:

    python -m scse.hf.lm_eval run --model scse --model_args path=DIR,num_loops=8 --tasks scse_lambada

In Python, `import scse.hf.lm_eval` before `lm_eval.simple_evaluate(model="scse", …)`. TASKS is the folder of our task
files, for `--include_path`; the command adds it by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer

from scse.errors import UserError
from scse.hf.modeling import ScseForCausalLM

TASKS = Path(__file__).with_name("tasks")


@register_model("scse")
class ScseLM(HFLM):
    """An exported folder at a depth of one's choice."""

    def __init__(self, path: str, num_loops: int | None = None, **more: Any) -> None:
        if not (Path(path) / "config.json").is_file():
            raise UserError(f"no exported model in {path}; write one with 'scse export RUN {path}'")
        model = ScseForCausalLM.from_pretrained(path)
        if num_loops is not None:
            model.config.num_loops = model.generation_config.num_loops = int(num_loops)
        # From a folder on this machine, as seen above, and not from a hub that may have changed.
        tokenizer = AutoTokenizer.from_pretrained(path)  # nosec B615
        super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal", **more)


def main() -> None:
    from lm_eval.__main__ import cli_evaluate

    if "--include_path" not in sys.argv and "run" in sys.argv:
        sys.argv += ["--include_path", str(TASKS)]
    try:
        cli_evaluate()
    except UserError as error:
        print(f"scse: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
