"""Real training of a tiny model with transformers.Trainer, evaluated at the end. train_transformers.py BASE"""

from __future__ import annotations

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from monitor.capture.transformers import CaptureCallback

WORDS = 16


def in_collator() -> None: ...


def collate(rows):
    in_collator()
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def main(base: str) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.randint(0, WORDS, (6,)), "attention_mask": torch.ones(6), "labels": torch.tensor(0)}
        for _ in range(16)
    ]
    arguments = TrainingArguments(
        output_dir=f"{base}/../out",
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=4,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = CaptureCallback(base, node="0-test", overhead_share=0)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collate,
        callbacks=[callback],
    )
    trainer.train()
    trainer.evaluate()
    callback.capture.close()


main(sys.argv[1])
