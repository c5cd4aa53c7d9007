"""Counting what the host does in XLA's list of thunks."""

from jaxllm.executor.compile.buckets import Bucket
from scripts.gpu_steps import Asked, count_thunks

IN_A_GRAPH = """
000: kCommandBuffer      [source       | next=148 (1)]
    001: kCustomKernel [source       | next=007 (6)] loop_cosine_sine_fusion grid: [32, 1, 1]
    054: kConditional  [prev=046 (1)  | next=055 (1)]
      false_branch:
        070: kWhile        [prev=069 (1) | next=077 (1)]
          condition:
            071: kCustomKernel [source | sink] wrapped_compare
          body:
            072: kCustomKernel [source | sink] input_reduce_fusion
    055: kCustomCall   [prev=054 (1)  | next=014 (2)] kCustomCall
148: kCopy [source | sink] kCopy
"""

OUTSIDE = """
000: kCommandBuffer      [source       | next=054 (1)]
    001: kCustomKernel [source       | next=007 (6)] loop_cosine_sine_fusion
054: kConditional        [prev=000 (1) | next=102 (1)]
  false_branch:
    070: kWhile [prev=069 (1) | next=077 (1)]
      body:
        000: kCommandBuffer [source | sink]
            072: kCustomKernel [source | sink] input_reduce_fusion
"""


def test_a_graph_is_one_launch_and_no_wait() -> None:
    assert count_thunks(IN_A_GRAPH) == (2, 0, 5, 2)


def test_the_host_waits_for_what_is_outside() -> None:
    from_host, waits, kernels, in_loops = count_thunks(OUTSIDE)
    assert (from_host, waits) == (4, 2)
    assert (kernels, in_loops) == (2, 1)


def test_tokens_of_decodes_with_drafts() -> None:
    assert Asked().buckets()[0] == Bucket(64, 64)
    assert Asked(drafts=3).buckets() == [Bucket(256, 64), Bucket(2048, 64)]
    assert Asked(drafts=4).buckets()[0] == Bucket(512, 64)
