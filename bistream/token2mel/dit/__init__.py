"""The flow of CosyVoice3: lookahead convolutions and a transformer (DiT) in place of encoder and U-Net."""
