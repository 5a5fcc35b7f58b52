"""The making of the demo pair: its training text, its tokenizer, its training and its report card."""
