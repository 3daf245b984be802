"""Language models with one table of text and speech tokens (``checkpoints.one_table``): their loading, prompts, sampling and layout.

They run on the engine of the others. All text of a sentence stands before its speech, so a session speaks sentence by sentence, each as a
continuation of those before (``sentence_layout``). A voice is 32 global tokens, of a recording or made by the model (``voice_design``).
"""
