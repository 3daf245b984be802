"""Speech tokens to mel: the flow-matching stage, streaming exactly and incrementally, batched over sessions."""
