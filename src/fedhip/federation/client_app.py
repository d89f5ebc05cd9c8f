"""The engine's client app: a shell around `Site`, in a process of its own for each message.

The node's configuration names the site's folder and data:

    site-folder="/…/site-a" data="/…/rows.npz" [out="/…/result"] [weights="/…/encoder.safetensors"] [device="cpu"]
    [allow="why a sum near to one before may be" allow-token="of this start"]

torch is imported by the steps that compute; the others answer without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhip.federation.errors import MessageError, SetupError
from fedhip.federation.site.ledger import Allowance
from fedhip.federation.site.site import Site, code_of
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.transport.wire import (
    PROTOCOL,
    SESSION_BYTES,
    Envelope,
    Letter,
    ProtocolError,
    RoundStep,
    from_message,
    to_records,
)

if TYPE_CHECKING:
    from collections.abc import Callable

app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """The site's answer to one message; whatever goes wrong is a code, for an exception's text would travel."""
    step = message.metadata.message_type.partition(".")[2]
    try:
        site = _site(context)
    except Exception:
        return _refusal(message, SiteCode.FOLDER)
    try:
        question = from_message(message)
        if question.envelope.step != step:
            raise MessageError(f"a message of type {step} holds the step {question.envelope.step}")
    except Exception as error:
        try:
            site.note(f"{step}: refused: {error}")
        except Exception:
            return _refusal(message, SiteCode.FOLDER)
        # Said so that an older server understands it.
        return _refusal(message, code_of(error), error.protocol if isinstance(error, ProtocolError) else PROTOCOL)
    return Message(to_records(site.handle(question, context.node_id)), reply_to=message)


def _site(context: Context) -> Site:
    given = {name: str(value) for name, value in context.node_config.items()}

    def path(name: str) -> Path | None:
        return Path(given[name]) if given.get(name) else None

    folder, data = path("site-folder"), path("data")
    if folder is None or data is None:
        raise SetupError("the node's configuration lacks site-folder or data; start it with: fedhip federation site")
    return Site(
        folder,
        data,
        out=path("out"),
        weights=path("weights"),
        device=given.get("device") or None,
        allow=Allowance(given["allow"], given.get("allow-token", "")) if given.get("allow") else None,
    )


def _refusal(message: Message, code: SiteCode, protocol: int = PROTOCOL) -> Message:
    """A code alone, where the question could not be read."""
    nobody = Envelope(bytes(SESSION_BYTES), "", "", RoundStep.HELLO)
    return Message(to_records(Letter(nobody, code=code), protocol), reply_to=message)


def register(app: ClientApp) -> None:
    """From here on, an app answers the questions of a round."""
    registrars: dict[str, Callable[[str], Callable[..., object]]] = {
        "query": app.query,
        "train": app.train,
        "evaluate": app.evaluate,
    }
    for step in RoundStep:
        category, _, action = step.message_type.partition(".")
        registrars[category](action)(answer)


register(app)
