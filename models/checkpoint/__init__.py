"""Checkpoints: finding, reading, and filling a model with them. The files in the order in which a start needs them:

- `find_model` finds the folder of a model, on the `hub` if need be. `weight_files` knows which files have the weights,
  and `other_formats` what to say of files that are not read.
- `model_config` reads config.json, a `config_file`, with `overrides`.
- `checkpoint` has the files and their tensors, opened once: each is a tensor of a `safetensors_file`, of a `torch_file`
  (a zip with a `torch_pickle`), or an `array_tensor` in memory. `kv_scales` are numbers among them.
- `names` says how a family's tensors are called, and a `tensor_source` how one is made of another. By these,
  `weight_target` knows where each goes, and `matching` compares that with what is there; `packed_experts` are taken
  apart.
- `loading` fills a model. A `parameter_loader` gets tensors that are `read_ahead`, puts them together on the host
  (`host_parameter`) or the devices, and `quantized_tensors` into several arrays. In place of a checkpoint there are
  `random_weights`, and `random_matrices` of few bits.
- `weight_update` gives a running model other weights, by `parameter_reloader`, in the order of its `leaves`.
- `safetensors_writer` writes.
"""
