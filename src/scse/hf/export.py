"""A run as a folder that `transformers` loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import GenerationConfig, PreTrainedTokenizerFast

from scse.accounting import count_parameters
from scse.config import TrainConfig
from scse.config.use import NEW_TOKENS
from scse.data.tokenizer import END_OF_TEXT
from scse.errors import RunFailure, UserError
from scse.evaluation import perplexity_over_depths
from scse.files import replacing_folder, require_fresh
from scse.hf.configuration import ScseConfig
from scse.hf.modeling import ScseForCausalLM
from scse.provenance import provenance
from scse.recurrence import build
from scse.runs import Run

if TYPE_CHECKING:
    from scse.evaluation.perplexity import DepthResult

CARD_DEPTHS = (1, 2, 4, 8, 16, 24, 48)
CARD_WINDOWS = 64


def export(
    run: Run,
    folder: Path,
    num_loops: int,
    data_dir: str | None = None,
    cache_dir: str | None = None,
    show: bool = False,
) -> None:
    """Measure what the card says and write the folder; half an export never exists.

    What stands in the way of writing is told before anything is measured.
    """
    require_fresh(folder)
    if num_loops < 1:
        raise UserError(f"loops must be at least 1, got {num_loops}")
    with replacing_folder(folder) as draft:
        measured, about = measure(run, data_dir, cache_dir, show)
        try:
            _write(run, draft, num_loops)
        except Exception as error:
            # The Rust libraries wrap the system's error in types of their own; the text still carries it.
            if isinstance(error, OSError) or "os error" not in str(error):
                raise
            raise RunFailure(f"cannot write {folder}: {error}; mend this and run the same command again") from None
        (draft / "README.md").write_text(model_card(run, num_loops, measured, about), "utf-8")


def _write(run: Run, folder: Path, num_loops: int) -> None:
    end = run.tokenizer.eot_id
    config = ScseConfig.of(run.model.config, num_loops, bos_token_id=end, eos_token_id=end, pad_token_id=end)
    shell = ScseForCausalLM(config)
    shell.model = run.model
    shell.generation_config = GenerationConfig(
        bos_token_id=end, eos_token_id=end, pad_token_id=end, num_loops=num_loops, max_new_tokens=NEW_TOKENS
    )
    shell.save_pretrained(folder)
    tokenizer(run).save_pretrained(folder)


def tokenizer(run: Run) -> PreTrainedTokenizerFast:
    """The run's tokenizer as `transformers` uses it: padding on the left, where generation needs it."""
    from tokenizers import Tokenizer

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(run.tokenizer.serialised().decode()),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        padding_side="left",
        model_max_length=run.model.config.shape.context,
        clean_up_tokenization_spaces=False,
    )


def measure(run: Run, data_dir: str | None, cache_dir: str | None, show: bool) -> tuple[list[DepthResult], str]:
    """The depth response for the card, on the beginning of the run's own validation split; nothing if that is gone."""
    try:
        split = run.corpus(None, data_dir, cache_dir, progress=show).split("validation")
    except UserError as error:
        return [], str(error)
    found = perplexity_over_depths(run.model, split.tokens, CARD_DEPTHS, limit=CARD_WINDOWS, show=show)
    what = "answers in the first" if run.config.problem else "first"
    return found, f"the {what} {CARD_WINDOWS} windows of {run.config.corpus} validation"


def made_of(config: TrainConfig) -> str:
    """What is looped and what stands around it, and at which depths it was trained."""
    shape, own = config.model.shape, [(config.model.shape.prelude, "before"), (config.model.shape.coda, "after")]
    core = "One Transformer block" if shape.core == 1 else f"{shape.core} Transformer blocks"
    around = " and ".join(f"{count} {place} the loops" for count, place in own if count)
    layers = f", with {around} applied once" if around else ""
    if (layers_of_its_own := build(config.model).core.trained_depth) is not None:
        return f"{core} for each of {layers_of_its_own} steps, which share no weights{layers}."
    depths = config.sampler
    plain = {"uniform": f"depths 1 to {depths.n}", "fixed": f"depth {depths.n}"}
    drawn = plain.get(depths.text, f"depths drawn as `{depths.written}`")
    return (
        f"{core}, applied `num_loops` times in latent space{layers}; the number is chosen at run time. "
        f"It was trained at {drawn}."
    )


def model_card(run: Run, num_loops: int, measured: Sequence[DepthResult], about: str) -> str:
    config, facts = run.config, provenance()
    parameters = count_parameters(config.model).active
    rows = "\n".join(f"| {result.depth} | {result.ppl:.2f} |" for result in measured)
    table = f"Perplexity on {about}:\n\n| loops | perplexity |\n|---|---|\n{rows}"
    response = table if rows else f"Not measured: {about}."
    training = {name: value for name, value in config.to_dict().items() if name != "model"}
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [looped-transformer, scse]
---

# {config.model.family}, {parameters:,} parameters

{made_of(config)} It loops {num_loops} times by default.

## Depth response

{response}

## Use

```python
import scse.hf  # or: trust_remote_code=True below, which runs the code in this folder
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
inputs = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, num_loops={num_loops}, max_new_tokens=20)[0]))
```

`model(ids, num_loops=24, output_hidden_states=True).hidden_states` holds one state per loop. `exit_threshold=x` lets
each token stop after the first loop that moves it by at most x.

## Training

```json
{json.dumps({**training, "steps taken": run.step, "model": config.model.to_dict()}, indent=2)}
```

Written with scse {facts["scse"]} (revision {facts["git"]}), torch {facts["torch"]}.
"""
