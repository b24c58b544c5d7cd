"""What users see, through the command line only: a judge that stays when the inside is rebuilt.

``cases`` is the table of what is run, ``inputs`` makes what it starts from, ``workshop`` runs it,
``rules`` lists what is not compared, and ``expected/`` holds what must come out, a file for each
case. ``make golden`` writes these files again. A line that changes in them is explained, in one
sentence, where the change is described.

Nothing here imports ``shardwright``.
"""
