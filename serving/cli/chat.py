"""`jaxllm chat`: a conversation in the terminal, with a server's model or with one that is loaded for it."""

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.cli.api_client import DEFAULT_URL, ApiClient, add_client_flags, client_sampling
from jaxllm.serving.cli.terminal import Terminal, say, show_answer

if TYPE_CHECKING:
    from jaxllm.serving.cli.local_model import LocalModel

HELP = (
    "Chat in the terminal. MODEL is loaded in this process; without it, chat with a server, jaxllm's or any other "
    "with OpenAI's API."
)
USAGE = "[MODEL | --url URL] [flags]"
EXAMPLES = """examples:
  jaxllm chat demo                                  load a model here: a folder or Hub ID; demo comes with jaxllm
  jaxllm chat                                       use the server on this machine
  jaxllm chat -q "What is 17 plus 25?"              print one answer and exit
  jaxllm chat --url http://gpu-box:8000/v1 --system-prompt "Be brief." --temperature 0.2

In a chat, /reset clears the conversation, /system TEXT sets the system prompt, and Ctrl-C stops an answer."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the server, the messages, and sampling parameters."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="Load this model in this process instead of using a server."
    )
    group = parser.add_argument_group("messages")
    group.add_argument("-q", "--quick", metavar="TEXT", help="Send this message, print the answer and exit.")
    group.add_argument("--system-prompt", metavar="TEXT", help="System message at the start of the conversation.")
    add_client_flags(parser, {"max_tokens": None})


def run(args: argparse.Namespace) -> int:
    """Chat; 0 when the person leaves."""
    with _open(args) as client:
        name = client.find_model(args.model_name)[0] if isinstance(client, ApiClient) else args.model
        chat = ChatSession(client, name, client_sampling(args), args.system_prompt)
        if args.quick is not None:
            chat.answer(args.quick)
            return 0
        if sys.stdin.isatty():
            say(f"{chat.model} at {client.url} (/help for help)")
        Terminal(
            chat.answer,
            {
                "reset": ("clear the conversation", chat.reset),
                "system": (
                    "set the system prompt and clear the conversation; without TEXT, show the prompt",
                    chat.set_system,
                ),
            },
        ).run()
    return 0


def _open(args: argparse.Namespace) -> "ApiClient | LocalModel":
    """The server to chat with. Raises `ConfigError`."""
    if args.model is None:
        return ApiClient.from_flags(args)
    if args.url != DEFAULT_URL or args.model_name is not None:
        raise ConfigError(
            "MODEL is loaded in this process, so it cannot be combined with --url or --model-name; omit it to use a "
            "server"
        )
    SamplingParams(**client_sampling(args))
    # JAX is loaded only for what needs it.
    from jaxllm.serving.cli.local_model import LocalModel

    return LocalModel(args.model)


class ChatSession:
    """A conversation: what was said, and how to go on."""

    def __init__(
        self, client: "ApiClient | LocalModel", model: str, sampling: Mapping[str, Any], system: str | None
    ) -> None:
        self.model = model
        self.messages: list[dict[str, str]] = []
        self._client = client
        self._sampling = sampling
        self._system = system

    def answer(self, text: str) -> None:
        """Say `text` and print the answer; an error leaves the conversation as it was."""
        asked = [*self.messages, {"role": "user", "content": text}]
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        body = {"model": self.model, "messages": [*system, *asked], **self._sampling}
        said = show_answer(
            self._client.stream("chat/completions", body),
            lambda choice: choice["delta"].get("content") or "",
            lambda choice: choice["delta"].get("reasoning_content") or choice["delta"].get("reasoning") or "",
        )
        if said:
            # An answer that was stopped is part of the conversation as far as it came.
            self.messages = [*asked, {"role": "assistant", "content": said}]

    def reset(self, _: str = "") -> None:
        """Forget what was said."""
        self.messages = []

    def set_system(self, text: str) -> None:
        """Start again with this system prompt; with no text, show it."""
        if not text:
            say("no system prompt" if self._system is None else f"system prompt: {self._system}")
            return
        self._system = text
        self.reset()
