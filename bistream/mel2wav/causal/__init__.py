"""The vocoder of CosyVoice3: HiFT whose convolutions look left, apart from four mel frames, and which therefore streams without joints."""
