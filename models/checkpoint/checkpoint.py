"""A checkpoint on disk: its files, and the tensors in them."""

from functools import cached_property
from pathlib import Path

from jaxllm.models.checkpoint.other_formats import is_gguf
from jaxllm.models.checkpoint.safetensors_file import Tensor, read_header
from jaxllm.models.checkpoint.weight_files import weight_files
from jaxllm.models.errors import ModelError

DTYPE_NAMES = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""NumPy's names of the types that models compute in, by those of tensors."""


class Checkpoint:
    """The weights in a folder. The header of a file is read when it is first needed, and then never again.

    Each load has its own: files may change later.
    """

    def __init__(self, folder: Path, load_format: str = "auto") -> None:
        """`load_format` is that of `weight_files`. Nothing is read yet."""
        self.folder = folder
        self._load_format = load_format
        self._headers: dict[Path, list[Tensor]] = {}

    @cached_property
    def files(self) -> list[Path]:
        """The files with the weights. Raises `ModelError` where there are none."""
        return weight_files(self.folder, self._load_format)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors of all files. Raises `ModelError`."""
        if is_gguf(self.files[0]):
            # Few checkpoints need it, and every start would pay for it. Parts mean something only together.
            from jaxllm.models.quantization.gguf.widened import widened_tensors

            return widened_tensors(self.files)
        return [tensor for file in self.files for tensor in self.tensors_in(file)]

    def tensors_in(self, path: Path) -> list[Tensor]:
        """The tensors of a file, safetensors or PyTorch's, in the order of their bytes. Raises `ModelError`."""
        if path not in self._headers:
            self._headers[path] = _read_header(path)
        return self._headers[path]

    @cached_property
    def largest_dtype(self) -> str | None:
        """NumPy's name of the type of the first file's largest tensor; None without such a file.

        Scales of quantized matrices count, their values do not.
        """
        try:
            found = [tensor for tensor in self.tensors_in(self.files[0]) if tensor.dtype in DTYPE_NAMES]
        except ModelError:
            return None
        return DTYPE_NAMES[max(found, key=lambda tensor: tensor.num_bytes).dtype] if found else None


def _read_header(path: Path) -> list[Tensor]:
    if path.suffix not in (".bin", ".pt"):
        return read_header(path)
    # Few checkpoints need it, and every start would pay for it.
    from jaxllm.models.checkpoint.torch_file import read_torch_file

    return read_torch_file(path)
