"""The tokenizer of another project's folder as one of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scse.data import Tokenizer
from scse.data.tokenizer import END_OF_TEXT, read_tokenizer_file
from scse.errors import UserError
from scse.layout import TOKENIZER_FILE

NAMED = ("eos_token", "bos_token")  # what ends a text or, where nothing does, begins one
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")


def foreign_tokenizer(folder: Path) -> Tokenizer:
    """Their byte-level BPE, splitting text as they do. Their end of text has the name that it has in ours."""
    path = folder / TOKENIZER_FILE
    stated = _json(path)
    if not isinstance(stated, dict):
        raise UserError(f"cannot read {path}; --weights-only imports the model without a tokenizer")
    try:
        return read_tokenizer_file(json.dumps(_with_our_end(stated, _end(folder)), ensure_ascii=False), path)
    except UserError as error:
        raise UserError(f"{error}; --weights-only imports the model without a tokenizer") from None


def _end(folder: Path) -> str:
    """What the folder's settings call the end of a text."""
    for kind in NAMED:
        for settings in filter(None, (_json(folder / name) for name in SETTINGS)):
            named = settings.get(kind)
            named = named.get("content") if isinstance(named, dict) else named
            if isinstance(named, str):
                return named
    return END_OF_TEXT


def _with_our_end(stated: dict[str, Any], end: str) -> dict[str, Any]:
    listed, model = stated.get("added_tokens"), stated.get("model")
    added = [token for token in listed if isinstance(token, dict)] if isinstance(listed, list) else []
    known = {token.get("content") for token in added}
    if END_OF_TEXT in known or end not in known or not isinstance(model, dict):
        return stated
    words = model.get("vocab")
    if not isinstance(words, dict):
        return stated
    renamed = [{**token, "content": END_OF_TEXT} if token.get("content") == end else token for token in added]
    vocabulary = {END_OF_TEXT if word == end else word: number for word, number in words.items()}
    # What a processor would put around a text, we put there ourselves.
    return {**stated, "added_tokens": renamed, "model": {**model, "vocab": vocabulary}, "post_processor": None}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
