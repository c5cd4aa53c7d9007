"""Options of `jaxllm bench sweep`, under vLLM's names."""

from dataclasses import dataclass

from jaxllm.config import Section, option
from jaxllm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Section):
    """What is run, and where results go."""

    serve_cmd: str = option("", "Command that serves, such as 'jaxllm serve demo'.")
    bench_cmd: str = option("", "Command that tests, such as 'jaxllm bench serve --num-prompts 100'.")
    after_bench_cmd: str = option("", "Run this after each test, in place of emptying the prefix cache.")
    serve_params: str | None = option(None, "JSON file of settings of the server.")
    bench_params: str | None = option(None, "JSON file of settings of the test.")
    link_vars: str = option(
        "", "As A=B,C=D: only combinations where flag A of the server has the value of flag B of the test."
    )
    num_runs: int = option(3, "Tests of each combination.", minimum=1)
    warmup_num_prompts: int = option(0, "Requests of a test before, not counted.", minimum=0)
    server_ready_timeout: int = option(300, "Seconds that a server may take to start.", minimum=1)
    continue_on_error: bool = option(False, "Note what fails, and go on.")
    dry_run: bool = option(False, "Print the commands and run none.")
    show_stdout: bool = option(False, "Show what servers and tests print.")
    output_dir: str = option("results", "Folder of experiments.", aliases=("-o",))
    experiment_name: str | None = option(None, "Folder of this one; by default date and time.", aliases=("-e",))
    resume: bool = option(False, "Go on with --experiment-name: what it has is not measured again.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("serve_cmd", "bench_cmd"):
            if not getattr(self, name).strip():
                raise ConfigError(f"--{name.replace('_', '-')} is missing: give the command to run")
        if self.resume and self.experiment_name is None:
            raise ConfigError("--resume needs --experiment-name")


@dataclass(frozen=True, kw_only=True)
class PlotOptions(Section):
    """What is drawn."""

    var_x: str = option("request_throughput", "Figure of the horizontal axis.")
    var_y: str = option("p99_e2el_ms", "Figure of the vertical axis.")
    fig_by: str = option("", "A picture for each value of these, with commas between.")
    row_by: str = option("", "A row of panels for each value of these.")
    col_by: str = option("", "A column of panels for each value of these.")
    curve_by: str = option("", "A curve for each value of these.")
    filter_by: str = option("", "Only results such as max_concurrency<1000,max_num_seqs==8.")
    bin_by: str = option("", "Round figures down to multiples, such as request_throughput%1.")
    scale_x: str | None = option(None, "Scale of the axis: log, symlog, ...")
    scale_y: str | None = option(None, "Scale of the axis: log, symlog, ...")
    fig_dir: str = option("", "Folder of the pictures, in that of the results.")
    fig_name: str = option("FIGURE", "What their names begin with.")
    dry_run: bool = option(False, "Say what would be drawn.")
