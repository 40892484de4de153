"""What is served: a model and its tokenizer, from a run or from an exported folder. No code of either is executed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from scse.config.use import LOOPS
from scse.data import Tokenizer, load_tokenizer
from scse.devices import resolve_device
from scse.errors import UserError, checked_choice
from scse.files import expand
from scse.model import LoopedLM
from scse.precision import EXACT, INFERENCE, SERVING
from scse.runs import open_run

OWN_TYPE = __name__.partition(".")[0]  # exports are called like this package
TEMPLATE_FILE = "chat_template.jinja"
SETTINGS_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class Served:
    """`loops` is the depth of requests that name none. `template` is the chat template that came with the tokenizer."""

    name: str
    model: LoopedLM
    tokenizer: Tokenizer
    loops: int = LOOPS
    template: str | None = None


def open_served(path: str, device: str = "auto", precision: str = EXACT) -> Served:
    if checked_choice("precision", precision, INFERENCE) not in SERVING:
        why = "in it, answers would depend on what else is in the batch"
        raise UserError(f"a model is served in {' or '.join(SERVING)}, not in {precision}: {why}")
    folder = expand(path)
    stated = _read_json(folder / "config.json")
    kind = stated.get("model_type", OWN_TYPE)
    if kind != OWN_TYPE:
        raise UserError(f"{folder} holds a '{kind}', not a model of ours; serve a run or what 'scse export' wrote")
    if "model_type" in stated:  # a configuration of transformers, which checks the rest
        return _open_export(folder, device, precision)
    run = open_run(folder, device, precision)
    return Served(folder.resolve().name, run.model, run.tokenizer)


def _open_export(folder: Path, device: str, precision: str) -> Served:
    try:
        from scse.hf.modeling import ScseForCausalLM
    except ImportError:
        raise UserError("an exported folder needs transformers; pip install 'scse[hf]', or serve the run") from None
    try:
        shell = ScseForCausalLM.from_pretrained(folder, local_files_only=True)
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        first = str(error).strip().splitlines()[0]
        raise UserError(f"cannot load the model in {folder}: {first}; export it again") from None
    tokenizer = load_tokenizer(folder)
    model = shell.model.eval().to(resolve_device(device))
    model.lay_out(precision)
    return Served(folder.resolve().name, model, tokenizer, shell.config.num_loops, _template(folder))


def _template(folder: Path) -> str | None:
    """The chat template that `transformers` saved, as its own file or among the tokenizer's settings."""
    try:
        return (folder / TEMPLATE_FILE).read_text("utf-8")
    except OSError:
        found = _read_json(folder / SETTINGS_FILE).get("chat_template")
        return found if isinstance(found, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    """What a file states; nothing where it does not."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Chat:
    """From messages to the tokens of a prompt.

    Without a template of the tokenizer's, each message is a line 'Role: text', and the answer ends where the next
    'User:' would begin. A template runs in Jinja's sandbox; special tokens in it are tokens, while messages that spell
    one out are refused.
    """

    def __init__(self, served: Served) -> None:
        self.tokenizer = served.tokenizer
        self.stops: tuple[str, ...] = () if served.template else ("\nUser:",)
        self._template = None
        if served.template is not None:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
            from tokenizers import Tokenizer as Backend

            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _raise
            try:
                self._template = environment.from_string(served.template)
            except TemplateError as error:
                raise UserError(f"the chat template of {served.name} is damaged: {error}") from None
            self._backend = Backend.from_str(served.tokenizer.serialised().decode())
            self._specials = [t.content for t in self._backend.get_added_tokens_decoder().values() if t.special]

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        if self._template is None:
            lines = [f"{message['role'].capitalize()}: {message['content']}\n" for message in messages]
            return self.tokenizer.encode("".join(lines) + "Assistant:")
        for special in self._specials:
            if any(special in message["content"] for message in messages):
                raise UserError(f"a message spells out the special token {special}; leave it out")
        from jinja2 import TemplateError

        end = self.tokenizer.decode([self.tokenizer.eot_id])
        try:
            text = self._template.render(
                messages=list(messages), add_generation_prompt=True, bos_token=end, eos_token=end
            )
        except (TemplateError, TypeError) as error:
            raise UserError(f"the chat template refuses these messages: {error}") from None
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _raise(message: str) -> None:
    raise UserError(message)
