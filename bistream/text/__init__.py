"""Text processing: the tokenizer, incremental tokenization of arriving text, and upstream's offline front end."""
