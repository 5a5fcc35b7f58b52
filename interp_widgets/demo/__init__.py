"""Makes the demo pair: training text, tokenizer, training and measurements."""
