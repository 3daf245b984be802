"""BiCodec: a recording to semantic and global tokens, and such tokens to 16 kHz audio, incremental and batched over sessions."""
