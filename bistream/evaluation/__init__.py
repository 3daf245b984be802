"""How a checkpoint or a server sounds: sentences spoken in several forms, judged by others' networks, compared sentence by sentence."""
