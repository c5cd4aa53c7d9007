"""The report for people: a line for each stage."""

from collections.abc import Iterator

from jaxllm.doctor.result import Report, StageReport

_NAME, _STATUS = 17, 8
_SHOWN = 6
"""Lines of a failed stage's standard error; `--report` has more."""


def stage_lines(report: StageReport) -> Iterator[str]:
    """The finding of a stage; below it what to do, and the end of what a stage said that crashed."""
    yield f"{report.status:{_STATUS}}{report.name:{_NAME}}{report.seconds:6.1f} s  {report.summary}"
    indent = " " * _STATUS
    if report.advice:
        yield f"{indent}-> {report.advice}"
    if report.status == "failed":
        yield from (f"{indent}|  {line[:160]}" for line in report.log[-_SHOWN:])


def verdict(report: Report) -> str:
    """The last line."""
    by_status = {status: [stage.name for stage in report.stages if stage.status == status] for status in _ORDER}
    found = [f"{status}: {', '.join(names)}" for status, names in by_status.items() if names]
    return f"{'all stages passed' if not found else '; '.join(found)} ({report.seconds:.0f} s)"


_ORDER = ("failed", "slow", "skipped")
