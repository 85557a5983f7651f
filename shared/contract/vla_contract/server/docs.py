"""`/docs`: the JSON routes for people, and a form to try `/act` with. Nothing in it comes from elsewhere."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_contract.server.openapi import ACT_REQUEST

MEDIA_TYPE = "text/html; charset=utf-8"
_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{overflow:auto}"
    "form{display:grid;grid-template-columns:max-content 1fr;gap:.5em 1em;max-width:40em}button{grid-column:2}"
)
_TOKEN = '<label for="token">token</label><input id="token" type="password" autocomplete="off" required>'
_FORM = """<h2>Try it</h2><form id="try">
<label for="picture">picture</label><input id="picture" type="file" accept="image/*" required>
<label for="instruction">instruction</label><input id="instruction" required>
<label for="key">unnorm_key</label><input id="key" placeholder="where the policy has several">
{token}<button>POST /act</button></form><pre id="answer" role="status"></pre><script>{script}</script>"""


def page(found: Mapping[str, Any]) -> str:
    """Returns an OpenAPI document as HTML: every route with what it takes and answers, and a form for `/act`.

    There is no form where `/act` takes something else than a picture and an instruction.
    """
    sections = [
        _section(method, route, operation)
        for route, methods in found["paths"].items()
        for method, operation in methods.items()
    ]
    title, about = (html.escape(found["info"][name]) for name in ("title", "description"))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style><main>'
        f'<h1>{title}</h1><p>{about} For programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{_form(found)}{''.join(sections)}</main></html>"
    )


def _form(found: Mapping[str, Any]) -> str:
    body = found["paths"]["/act"]["post"]["requestBody"]
    if body["content"]["application/json"]["schema"] != ACT_REQUEST:
        return ""
    script = Path(__file__).with_name("docs.js").read_text(encoding="utf-8")
    return _FORM.format(token=_TOKEN if found["security"] else "", script=script)


def _section(method: str, route: str, operation: Mapping[str, Any]) -> str:
    body = operation.get("requestBody")
    shown = f"<pre>{html.escape(json.dumps(body['content'], indent=1))}</pre>" if body else ""
    rows = (f"<li>{code}: {html.escape(answer['description'])}</li>" for code, answer in operation["responses"].items())
    heading = f"<h2>{method.upper()} {html.escape(route)}</h2><p>{html.escape(operation['summary'])}</p>"
    return f"{heading}{shown}<ul>{''.join(rows)}</ul>"
