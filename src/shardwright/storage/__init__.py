"""Where bytes live: a folder of this machine, or one at an object store. Nobody outside asks which.

A folder is a ``place`` (``local``, ``remote``). It lists, opens files that are read (``LocalFile``,
``RemoteFile``), creates files that are written (``sinks``: ``NewFile``, ``Upload``), writes under
conditions, and locks. ``files`` has what is done with one file by its path or ``urls``; ``steps``
changes several files as one. ``extents`` reads pictures and texts, ``fetched`` and ``pieces`` read
packed shards; what they read at a URL is fetched ``ahead``.

There are two ways to the outside, where tests inject faults: ``disk`` has all calls that change a
disk, ``objects`` all requests to a store (``s3``, ``clouds``).
"""
