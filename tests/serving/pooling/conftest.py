"""A cross-encoder with a tokenizer of its own: BERT with one label, and words for pieces."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from tests.compiled import native_kernels
from tests.jaxllm.pooling.checkpoints import VOCAB, save

__all__ = ["native_kernels"]

TEXT = "the cat sat on mat dog ran away once upon a time apples are red green sky is blue what color no yes"
WORDS = TEXT.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def save_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer that writes [CLS] A [SEP] B [SEP] and tells A from B."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = [*SPECIAL, *WORDS, *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"), *"abcdefghijklmnopqrs"]
    backend = Backend(
        models.WordPiece({word: index for index, word in enumerate(dict.fromkeys(vocabulary))}, unk_token="[UNK]")
    )
    assert backend.get_vocab_size() <= VOCAB
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Qwen3 that generates, to be asked for yes or no."""
    folder = tmp_path_factory.mktemp("judge")
    save(folder, "Qwen3ForCausalLM", tie_word_embeddings=False, max_position_embeddings=512)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random BERT with one label."""
    folder = tmp_path_factory.mktemp("cross-encoder")
    save(folder, "BertForSequenceClassification", num_labels=1)
    save_tokenizer(folder)
    return folder
