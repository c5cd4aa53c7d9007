"""`jaxllm complete`: continue texts with a server's model, in the terminal."""

import argparse
import sys

from jaxllm.flags import FlagParser
from jaxllm.serving.cli.api_client import ApiClient, add_client_flags, client_sampling
from jaxllm.serving.cli.terminal import Terminal, say, show_answer

HELP = "Complete texts in the terminal with a server's model: jaxllm's, or any other with OpenAI's API."
EXAMPLES = """examples:
  jaxllm complete                                   complete each line
  jaxllm complete -q "Once upon a time" --max-tokens 50
  jaxllm complete < prompts.txt                     one prompt per line"""

# OpenAI's 16 tokens are too few to see anything.
MAX_TOKENS = 256


def add_arguments(parser: FlagParser) -> None:
    """Declare the server, the text, and sampling parameters."""
    parser.epilog = EXAMPLES
    group = parser.add_argument_group("texts")
    group.add_argument("-q", "--quick", metavar="TEXT", help="Complete this text and exit.")
    add_client_flags(parser, {"max_tokens": MAX_TOKENS})


def run(args: argparse.Namespace) -> int:
    """Continue texts; 0 when the person leaves."""
    with ApiClient.from_flags(args) as client:
        model = client.find_model(args.model_name)[0]
        sampling = {"max_tokens": MAX_TOKENS, **client_sampling(args)}

        def complete(text: str) -> None:
            body = {"model": model, "prompt": text, **sampling}
            show_answer(client.stream("completions", body), lambda choice: str(choice["text"]))

        if args.quick is not None:
            complete(args.quick)
            return 0
        if sys.stdin.isatty():
            say(f"{model} at {client.url} (/help for help)")
        Terminal(complete, {}).run()
    return 0
