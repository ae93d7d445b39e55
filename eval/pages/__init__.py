"""Pages in HTML that hold all they need: templates, the scripts within them, and the only way to fill them in."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

import jinja2


def render_page(name: str, **values: Any) -> str:
    """Fill in a template of this folder; every value is escaped, so that no text becomes markup.

    A template may ask for ``script``, the text of a file of this folder, and ``script_hash``, the name that a content
    security policy knows it by.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("eval", "pages"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.globals |= {"script": _script, "script_hash": _script_hash}
    return environment.get_template(name).render(values)


def _script(name: str) -> str:
    return (files("eval") / "pages" / name).read_text(encoding="utf-8")


def _script_hash(name: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(_script(name).encode()).digest()).decode()
