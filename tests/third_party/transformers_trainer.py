"""transformers' Trainer on a tiny GPT-2 with ``torch_compile``, three steps and an evaluation."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

set_seed(0)
config = GPT2Config(
    n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=32, bos_token_id=0, eos_token_id=0
)
rows = [{"input_ids": torch.arange(8) + n % 4, "labels": torch.arange(8) + n % 4} for n in range(8)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        max_steps=3,
        torch_compile=True,
        torch_compile_backend="aot_eager",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows)
    trainer.remove_callback(PrinterCallback)  # prints how long it took
    trained = trainer.train()
    print(f"steps {trained.global_step} loss {trained.training_loss:.4f}")
    print(f"evaluation {trainer.evaluate()['eval_loss']:.4f}")
