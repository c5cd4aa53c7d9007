"""`jaxllm bench ...`: measurements, one module per sub-command."""

from jaxllm.serving.cli.entry import Entry

HELP = "Measurements of a server or of an engine."
COMMANDS = {
    "serve": Entry("jaxllm.serving.cli.bench.serve", "Throughput and latency of a server under load."),
}
