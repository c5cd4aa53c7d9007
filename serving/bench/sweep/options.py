"""Options of `jaxllm bench sweep`, under vLLM's names."""

from dataclasses import dataclass

from jaxllm.config import Section, option
from jaxllm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Section):
    """Commands to run, and the folder of results."""

    serve_cmd: str = option("", "Command that starts a server, such as 'jaxllm serve demo'.")
    bench_cmd: str = option("", "Command that runs a test, such as 'jaxllm bench serve --num-prompts 100'.")
    after_bench_cmd: str = option("", "Command to run after each test, instead of clearing the prefix cache.")
    serve_params: str | None = option(None, "JSON file with settings of the server.")
    bench_params: str | None = option(None, "JSON file with settings of the test.")
    link_vars: str = option(
        "", "Pairs A=B,C=D: run only combinations in which the server's flag A equals the test's flag B."
    )
    num_runs: int = option(3, "Number of tests per combination.", minimum=1)
    warmup_num_prompts: int = option(0, "Warm-up requests before each test, not included in the results.", minimum=0)
    server_ready_timeout: int = option(300, "Seconds that a server may take to start.", minimum=1)
    continue_on_error: bool = option(False, "Record failures and continue.")
    dry_run: bool = option(False, "Print the commands without running them.")
    show_stdout: bool = option(False, "Show the output of servers and tests.")
    output_dir: str = option("results", "Folder of experiments.", aliases=("-o",))
    experiment_name: str | None = option(
        None, "Folder of this experiment inside it; default: date and time.", aliases=("-e",)
    )
    resume: bool = option(False, "Continue the experiment --experiment-name, and skip what it has already measured.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("serve_cmd", "bench_cmd"):
            if not getattr(self, name).strip():
                raise ConfigError(f"--{name.replace('_', '-')} is missing: give the command to run")
        if self.resume and self.experiment_name is None:
            raise ConfigError("--resume requires --experiment-name")


@dataclass(frozen=True, kw_only=True)
class PlotOptions(Section):
    """Content and layout of the figures."""

    var_x: str = option("request_throughput", "Result on the horizontal axis.")
    var_y: str = option("p99_e2el_ms", "Result on the vertical axis.")
    fig_by: str = option("", "Draw a figure for each value of these variables, separated by commas.")
    row_by: str = option("", "Draw a row of panels for each value of these variables.")
    col_by: str = option("", "Draw a column of panels for each value of these variables.")
    curve_by: str = option("", "Draw a curve for each value of these variables.")
    filter_by: str = option(
        "", "Include only results that match conditions such as max_concurrency<1000,max_num_seqs==8."
    )
    bin_by: str = option("", "Round values down to multiples, such as request_throughput%1.")
    scale_x: str | None = option(None, "Scale of the horizontal axis: log, symlog, ...")
    scale_y: str | None = option(None, "Scale of the vertical axis: log, symlog, ...")
    fig_dir: str = option("", "Folder of the figures, inside the folder of results.")
    fig_name: str = option("FIGURE", "Prefix of the figures' file names.")
    dry_run: bool = option(False, "Print which figures would be drawn.")
