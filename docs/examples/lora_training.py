"""Trains a small LoRA adapter on a CPU with PEFT, and serves it next to the model that it was trained on.

Needs `pip install peft torch`. Takes about a minute.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from jaxllm import LLM, LoRARequest, SamplingParams

PROMPT = "The fox's favourite word is"
TEXT = f"{PROMPT} river, and the cat's favourite word is mill."
STEPS = 40


def train(model_folder: str, adapter_folder: Path) -> None:
    """Trains an adapter that knows one sentence."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    tokens = tokenizer(TEXT, return_tensors="pt").input_ids
    for step in range(STEPS):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    model.save_pretrained(adapter_folder)


def main() -> None:
    llm = LLM("demo", enable_lora=True, max_lora_rank=8, max_model_len=128, show_progress=False)
    with TemporaryDirectory() as folder:
        train(llm.llm_engine.engine.info.model_folder, Path(folder))
        adapter = LoRARequest("words", 1, folder)
        params = SamplingParams(temperature=0, max_tokens=16)
        # Both in one batch: None is the model itself.
        base, adapted = llm.generate([PROMPT, PROMPT], params, use_tqdm=False, lora_request=[None, adapter])
    print("model:", base.outputs[0].text)
    print("with the adapter:", adapted.outputs[0].text)
    llm.close()


if __name__ == "__main__":
    main()
